"""One request, as those see it who answer it: who asks, for what, and where the broker is.

Spec: HTTP-01, HTTP-04
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import DecodeError, Struct, ValidationError, convert, field, json, structs

from vouchmq.management.api.errors import bad_request, not_found, refused

if TYPE_CHECKING:
    from vouchmq.management.api.streams import Streams
    from vouchmq.management.broker import Broker

ADMINISTRATOR: Final = "administrator"
MONITORING: Final = "monitoring"
POLICYMAKER: Final = "policymaker"
MANAGEMENT: Final = "management"
# Tags that give some access, and those that count for more than their own.
ANY_TAG: Final = frozenset({ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT})
MONITORS: Final = frozenset({ADMINISTRATOR, MONITORING})
POLICYMAKERS: Final = frozenset({ADMINISTRATOR, POLICYMAKER})
ADMINISTRATORS: Final = frozenset({ADMINISTRATOR})

WRONG_TAG: Final = {
    ANY_TAG: "Not management user",
    MONITORS: "Not monitor user",
    POLICYMAKERS: "Not policymaker",
    ADMINISTRATORS: "Not administrator user",
}
NOT_YOURS: Final = "User not authorised to access object"

# Methods that say what it is that is not there.
MAKING: Final = frozenset({"PUT", "POST"})

S = TypeVar("S", bound=Struct)


class Visitor(Struct, frozen=True):
    """Who sends a request, as the broker knows the user.

    Args:
        user: name
        tags: of the user
        vhosts: virtual hosts that the user may enter
    """

    user: str
    tags: tuple[str, ...] = ()
    vhosts: frozenset[str] = frozenset()

    def has(self, tags: frozenset[str]) -> bool:
        """Whether one of these is among the user's tags."""
        return not tags.isdisjoint(self.tags)

    @property
    def sees_all(self) -> bool:
        """Whether the clients of others are shown, too: connections, channels, consumers."""
        return self.has(MONITORS)

    def may_enter(self, vhost: object) -> bool:
        """Whether what is in a virtual host is shown: without permissions there, nothing is."""
        return vhost in self.vhosts or self.has(ADMINISTRATORS)

    def may_see(self, vhost: object) -> bool:
        """Whether a virtual host and its clients are shown."""
        return self.sees_all or vhost in self.vhosts


class Call(Struct):
    """A request with a right login.

    Args:
        broker: to ask
        streams: answers that go on
        visitor: who asks
        names: what stands in the path, by the names of the route
        query: parameters behind the path
        body: as received
        method: of HTTP
        headers: of the request, names in lower case
        origin: the address that the request comes from
        listening: `http` or `https`, and the host and port that it came to
    """

    broker: Broker
    streams: Streams
    visitor: Visitor
    names: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes = b""
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""
    listening: tuple[str, str, int] = ("http", "", 0)

    def listener(self, node: str) -> dict[str, Any]:
        """Where this request came in, as the broker's listeners are shown."""
        protocol, host, port = self.listening
        return {"node": node, "protocol": protocol, "ip_address": host, "port": port}

    async def do(self, command: str, **arguments: object) -> dict[str, Any]:
        """Have the broker do something for the user, as far as the user may.

        Raises:
            CommandRefused: it does not
        """
        who = {"user": self.visitor.user, "origin": self.origin}
        return await self.broker.ask(command, **who, **arguments)

    def require(self, tags: frozenset[str]) -> None:
        """Pass when the user has one of these tags.

        Raises:
            ApiError: 401
        """
        if not self.visitor.has(tags):
            raise refused(WRONG_TAG[tags])

    def require_self(self, user: str, tags: frozenset[str] = MONITORS) -> None:
        """Pass when this is about the user who asks, or they have one of these tags.

        Raises:
            ApiError: 401
        """
        if user != self.visitor.user and not self.visitor.has(tags):
            raise refused(NOT_YOURS)

    async def vhost(self) -> str | None:
        """The virtual host of the path, None for all.

        Raises:
            ApiError: 404, there is none of that name that the user may enter
        """
        return await self._vhost(self.visitor.may_enter)

    async def seen_vhost(self) -> str | None:
        """The same, also one whose clients the user may see.

        Raises:
            ApiError: 404
        """
        return await self._vhost(self.visitor.may_see)

    async def _vhost(self, may: Callable[[object], bool]) -> str | None:
        name = self.names.get("vhost")
        if name is None:
            return None
        # As if there were none: whether there is one is nobody else's business.
        if not may(name) or not await self.broker.rows("vhosts", vhost=name):
            raise not_found("vhost_not_found" if self.method in MAKING else "")
        return name

    def content(self, kind: type[S]) -> S:
        """The body, as what it should be; an empty one is an object without keys.

        Raises:
            ApiError: 400
        """
        try:
            given = json.decode(self.body or b"{}")
        except DecodeError:
            raise bad_request("not_json") from None
        except RecursionError:
            raise bad_request("nested too deeply") from None
        if not isinstance(given, dict):
            raise bad_request("not_json")
        # RabbitMQ names all that are missing.
        missing = [
            f"{{key_missing,{each.encode_name}}}"
            for each in structs.fields(kind)
            if each.required and each.encode_name not in given
        ]
        if missing:
            raise bad_request(f"[{','.join(missing)}]")
        try:
            return convert(given, kind)
        except ValidationError as error:
            raise bad_request(str(error)) from None


class Answer(Struct, frozen=True):
    """An answer that is more than 200 with an object of JSON.

    Args:
        status: of HTTP
        content: object of JSON; None: no body
        headers: beside the usual ones
    """

    status: int = 200
    content: Any = None
    headers: dict[str, str] = field(default_factory=dict)


class Streamed(Struct, frozen=True):
    """An answer that is sent as it comes, perhaps until nobody reads it.

    Args:
        pieces: of it
        media_type: what they are
    """

    pieces: AsyncGenerator[bytes, None]
    media_type: str


CREATED: Final = Answer(201)
NO_CONTENT: Final = Answer(204)


def changed(answer: Mapping[str, Any]) -> Answer:
    """What PUT answers: whether there is something new (HTTP-05)."""
    return CREATED if answer.get("created") else NO_CONTENT


Handler = Callable[[Call], Awaitable[object]]


class Route(Struct, frozen=True):
    """A path of the API.

    Args:
        path: `{name}` stands for one part of it
        methods: who answers which method of HTTP
        summary: what is there, in a few words
        tags: one of which the user must have
        is_list: takes the parameters of lists
        bodies: what methods expect in the body
        parameters: what may stand behind the path of a GET: a type and what it means
        changing: instead of `tags` for methods other than GET
    """

    path: str
    methods: Mapping[str, Handler]
    summary: str
    tags: frozenset[str] = ANY_TAG
    is_list: bool = False
    bodies: Mapping[str, type[Any]] = {}
    parameters: Mapping[str, tuple[str, str]] = {}
    changing: frozenset[str] | None = None

    def needed(self, method: str) -> frozenset[str]:
        """The tags of which the user must have one."""
        return self.tags if method == "GET" or self.changing is None else self.changing

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the path."""
        return tuple(self.path.strip("/").split("/"))
