"""From the protocol header to connection.open-ok: a state machine fed with methods.

    header → start → start-ok → [secure → secure-ok] → tune → tune-ok → open → open-ok

`judge_header` judges the first octets. Then `start()` gives the first frame, and `handle()` takes
each method of the client and gives the answer, or raises what the client shall be told. After
open-ok the results are attributes. Must not know sockets, timers or how long a refusal is held
back; a refused login only says whether the client may hear of it (`LoginFailure.notify`).

Spec: CONN-01…46, CONN-70, CONN-71
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

import structlog
from pamqp import base

from vouchmq.protocol import constants as c
from vouchmq.protocol.codec import (
    Command,
    connection_open_ok,
    connection_secure,
    connection_start,
    connection_tune,
    update_secret_ok,
)
from vouchmq.protocol.errors import AmqpError, NotAllowed
from vouchmq.protocol.fields import Field, Table, as_table, as_text, boolean, longstr
from vouchmq.protocol.states import (
    ConnectionEvent,
    ConnectionState,
    is_expected,
    next_connection_state,
)
from vouchmq.protocol.text import encode_text
from vouchmq.server.auth.attempts import AMQP
from vouchmq.server.auth.authenticator import Authenticator, LoginError, Outcome, is_loopback
from vouchmq.server.auth.connection_limits import ConnectionLimits
from vouchmq.server.auth.users import User
from vouchmq.server.connection.login_failures import (
    InvalidResponse,
    LoginFailure,
    LoginRefused,
    UnknownMechanism,
)
from vouchmq.server.connection.sasl import (
    EXTERNAL,
    MECHANISMS,
    Challenge,
    Credentials,
    MalformedResponse,
    Mechanism,
    Mechanisms,
    Proven,
    mechanisms_for,
)

if TYPE_CHECKING:
    from vouchmq.server.broker.data_directory import DataDirectory
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.broker.vhost import VHost

log = structlog.get_logger(__name__)

# Gets what gives the answer, or raises what the client shall be told, once that is known.
Later = Callable[[Callable[[], bytes]], None]

HEADER_SIZE: Final = 8
CLOSE_OK_LIMIT_S: Final = 30.0
# What peers of another protocol say first (CONN-05).
_MISTAKES: Final[tuple[tuple[bytes, str], ...]] = (
    (b"GET ", "HTTP request on the AMQP port"),
    (b"POS", "HTTP request on the AMQP port"),
    (b"HEA", "HTTP request on the AMQP port"),
    (b"\x16\x03", "TLS handshake on the plain AMQP port"),
    (b"AMQP\x00\x01", "AMQP 1.0 client"),
    (b"AMQP\x02\x01", "AMQP 1.0 client over TLS"),
    (b"AMQP\x03\x01", "AMQP 1.0 client"),
    (b"AMQP", "unsupported version of AMQP"),
)
# RabbitMQ's own, and then what clients cannot expect of every broker (CONN-12).
IMMEDIATE: Final = "basic.publish.immediate"
PREFETCH_SIZE: Final = "basic.qos.prefetch_size"
FLOW: Final = "channel.flow"
CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
    IMMEDIATE,
    PREFETCH_SIZE,
    FLOW,
    "delayed_exchange",
    "delayed_retry",
    "message_deduplication",
    "queue_sequence",
)
# What the client must be able to do before its refused login is told to it (CONN-23).
FAILURE_CLOSE: Final = "authentication_failure_close"


def judge_header(octets: bytes) -> bool | None:
    """Whether these first octets are a protocol header we speak; None: send more first.

    Spec: CONN-01…04
    """
    if len(octets) < HEADER_SIZE:
        return None
    return octets[:HEADER_SIZE] in {c.PROTOCOL_HEADER, c.PROTOCOL_HEADER_0_9}


def header_mistake(octets: bytes) -> str:
    """What the peer of a refused header probably took us for, for the log.

    Spec: CONN-05
    """
    for prefix, mistake in _MISTAKES:
        if octets.startswith(prefix):
            return mistake
    return "not AMQP"


@dataclass(slots=True, frozen=True, eq=False)
class Offer:
    """What the broker says of itself and proposes; sizes in octets, 0 is no limit.

    `lacks`: capabilities that the operator has switched off. There is one for all connections, so
    that it is looked up as itself, and not by all that it holds.

    Spec: CONN-11, CONN-12, CONN-13, CONN-30
    """

    node: str
    product: str
    version: str
    platform: str
    channel_max: int = 2047
    frame_max: int = 131072
    heartbeat_s: int = 60
    update_secret_verify: bool = False
    lacks: frozenset[str] = frozenset()
    data_directory_id: str = ""
    start_id: str = ""

    def on(self, directory: DataDirectory) -> Offer:
        """The same from a broker on this data directory (DURABLE-26)."""
        return replace(self, data_directory_id=directory.identity, start_id=directory.start)

    def server_properties(self) -> Table:
        """The table of connection.start.

        Spec: CONN-11, CONN-12, DURABLE-26
        """
        own = {"data_directory_id": self.data_directory_id, "start_id": self.start_id}
        can: Table = {name: boolean(True) for name in CAPABILITIES if name not in self.lacks}
        return {
            "capabilities": Field("F", can),
            "product": longstr(self.product),
            "version": longstr(self.version),
            "platform": longstr(self.platform),
            "cluster_name": longstr(self.node),
            "copyright": longstr("Copyright (c) the VouchMQ authors"),
            "information": longstr("A confirm means: it is on disk"),
            **{name: longstr(value) for name, value in own.items() if value},
        }


class Handshake:
    """One connection's way to connection.open-ok.

    Args:
        offer: what the broker proposes
        auth: knows the users
        find_vhost: name → virtual host, None when there is none
        connection_limits: counts connections
        peer: the connection's name, for the log
        is_loopback: the peer is on this machine (AUTH-08)
        address: the peer's, without its port (AUTH-10)
        mechanisms: name → a fresh SASL mechanism, in the order of the offer

    After open-ok: `user`, `vhost`, and for good `client_properties`, `capabilities` (names the
    client said it has), `connection_name` ("" if it gave none), `mechanism`, `channel_max`,
    `frame_max` (0: no limit) and `heartbeat_s` (0: none).
    """

    user: User
    vhost: VHost[Queue]

    def __init__(
        self,
        offer: Offer,
        auth: Authenticator,
        find_vhost: Callable[[str], VHost[Queue] | None],
        connection_limits: ConnectionLimits,
        *,
        peer: str,
        is_loopback: bool,
        address: str = "",
        mechanisms: Mechanisms = MECHANISMS,
    ) -> None:
        self.state = ConnectionState.STARTING
        self.client_properties: Table = {}
        self.capabilities: frozenset[str] = frozenset()
        self.connection_name = ""
        self.mechanism = ""
        self.channel_max = offer.channel_max
        self.frame_max = offer.frame_max
        self.heartbeat_s = offer.heartbeat_s
        self._offer = offer
        self._auth = auth
        self._find_vhost = find_vhost
        self._connection_limits = connection_limits
        self._peer = peer
        self._is_loopback = is_loopback
        self._address = address
        self._mechanisms = mechanisms
        self._step: Mechanism
        self._has_entered = False
        self._has_left = False

    def start(self) -> bytes:
        """The first frame.

        Spec: CONN-10
        """
        return _start_frame(self._offer, " ".join(self._mechanisms))

    def handle(self, command: Command, later: Later) -> bytes | None:
        """Take the client's next method; returns the answer, b"" when there is none to tune-ok.

        None when the answer hangs on a check that takes long: then `later` gets it, and until
        then no further method may come.

        Raises:
            ChannelError: 504, out of turn (CONN-35).
            LoginFailure: 403, 502 or 503, no login (CONN-22, CONN-24).
            NotAllowed: 530, refused tuning or virtual host (CONN-31, CONN-40…44).
        """
        handler = _HANDLERS.get(command.ids)
        # The second half is for methods that have their turn, but not here: close, update-secret.
        if not is_expected(self.state, command.ids) or handler is None:
            raise ValueError(f"{command.method.name} is no matter of the handshake")
        return handler(self, command, later)

    def update_secret(self, command: Command, later: Later) -> bytes | None:
        """Check the new secret of the user who is logged in; the answer, or None as of `handle`.

        Raises:
            NotAllowed: 530, it is not theirs.

        Spec: CONN-70, CONN-71
        """
        if not self._offer.update_secret_verify:
            return update_secret_ok()
        secret: str = _attribute(command.method, "new_secret")
        try:
            user = self._log_in(
                Credentials(self.user.name, secret),
                lambda outcome: later(partial(self._secret_updated, outcome)),
            )
        except LoginError as error:
            return self._secret_updated(error)
        return self._secret_updated(user) if user is not None else None

    def _secret_updated(self, outcome: Outcome) -> bytes:
        if isinstance(outcome, LoginError):
            log.warning("update_secret.rejected", connection=self._peer, reason=str(outcome))
            raise NotAllowed("New secret was refused by one of the backends") from outcome
        self.user = outcome
        return update_secret_ok()

    def close_limit_s(self, error: AmqpError, failure_delay_s: float) -> float:
        """How long a connection that is closed with this error is kept (CONN-23, CONN-54)."""
        if isinstance(error, LoginFailure):
            return failure_delay_s
        return min(CLOSE_OK_LIMIT_S, self.heartbeat_s) if self.heartbeat_s else CLOSE_OK_LIMIT_S

    def leave(self) -> None:
        """The connection has ended: it no longer counts. May be called more than once."""
        self._has_left = True
        if self._has_entered:
            self._has_entered = False
            self._connection_limits.leave(self.vhost.name, self.user.name)

    def _start_ok(self, command: Command, later: Later) -> bytes | None:
        self.client_properties = command.arguments
        self.capabilities = _capabilities(command.arguments)
        self.connection_name = as_text(command.arguments.get("connection_name")) or ""
        self.mechanism = _attribute(command.method, "mechanism")
        make_mechanism = self._mechanisms.get(self.mechanism)
        if make_mechanism is None:
            log.warning("login.refused", connection=self._peer, mechanism=self.mechanism)
            raise self._told(
                UnknownMechanism(f"unknown authentication mechanism '{self.mechanism}'")
            )
        self._step = make_mechanism()
        return self._authenticate(command, later)

    def _authenticate(self, command: Command, later: Later) -> bytes | None:
        """One response: of start-ok, or of secure-ok after a challenge (CONN-20)."""
        try:
            result = self._step(encode_text(_attribute(command.method, "response")))
        except MalformedResponse as malformed:
            log.warning("login.refused", connection=self._peer, reason="malformed response")
            raise self._told(InvalidResponse(f"{self.mechanism} response invalid")) from malformed
        if isinstance(result, Challenge):
            self._advance(ConnectionEvent.CHALLENGED)
            return connection_secure(result.octets)
        try:
            user = self._user_of(result, later)
        except LoginError as error:
            return self._logged_in(error)
        return self._logged_in(user) if user is not None else None

    def _logged_in(self, outcome: Outcome) -> bytes:
        """What a login came to: tune.

        Raises:
            LoginRefused: 403, nothing
        """
        self._auth.attempts.count(AMQP, is_ok=not isinstance(outcome, LoginError))
        if isinstance(outcome, LoginError):
            if outcome.is_told:
                log.warning("login.refused", connection=self._peer, reason=str(outcome))
            text = (
                f"Login was refused using authentication mechanism {self.mechanism}. "
                "For details see the broker logfile."
            )
            raise self._told(LoginRefused(text, c.NO_IDS)) from outcome
        self.user = outcome
        self._advance(ConnectionEvent.AUTHENTICATED)
        return _tune_frame(self._offer)

    def _user_of(self, result: Credentials | Proven, later: Later) -> User | None:
        if isinstance(result, Proven):
            return self._auth.admit(result.name, is_loopback=self._is_loopback)
        return self._log_in(result, lambda outcome: later(partial(self._logged_in, outcome)))

    def _log_in(self, claim: Credentials, done: Callable[[Outcome], None]) -> User | None:
        return self._auth.log_in(
            claim.name,
            claim.password,
            is_loopback=self._is_loopback,
            address=self._address,
            done=done,
            is_wanted=lambda: not self._has_left,
        )

    def _told(self, failure: LoginFailure) -> LoginFailure:
        return failure.telling(FAILURE_CLOSE in self.capabilities)

    def _tune_ok(self, command: Command, later: Later) -> bytes:
        del later
        method, offer = command.method, self._offer
        self.channel_max = _negotiated(
            "channel_max", 1, offer.channel_max, _number(method, "channel_max")
        )
        self.frame_max = _negotiated(
            "frame_max", c.FRAME_MIN_SIZE, offer.frame_max, _number(method, "frame_max")
        )
        # The client's word is law here, higher or lower (CONN-32).
        self.heartbeat_s = _number(method, "heartbeat")
        self._advance(ConnectionEvent.TUNED)
        return b""

    def _open(self, command: Command, later: Later) -> bytes:
        """Checks in the order of CONN-40…44; no virtual host is ever down here (CONN-45)."""
        del later
        name: str = _attribute(command.method, "virtual_host")
        user = self.user
        self._connection_limits.check_node()
        vhost = self._find_vhost(name)
        if vhost is None:
            raise NotAllowed(f"vhost {name} not found")
        self._connection_limits.check_vhost(name, user.name, vhost.connection_limit)
        self._connection_limits.check_user(user.name, user.max_connections)
        if not user.may_enter(name):
            raise NotAllowed(f"access to vhost '{name}' refused for user '{user.name}'")
        self._connection_limits.enter(name, user.name)
        self._has_entered = True
        self.vhost = vhost
        self._advance(ConnectionEvent.OPENED)
        return connection_open_ok()

    def _advance(self, event: ConnectionEvent) -> None:
        self.state = next_connection_state(self.state, event)


class Handshakes:
    """Begins the handshakes of all connections of one broker.

    Args:
        offer: what the broker proposes
        auth: knows the users
        find_vhost: name → virtual host, None when there is none
        connection_limits: counts connections
        mechanisms: the names of those that clients may use
    """

    def __init__(
        self,
        offer: Offer,
        auth: Authenticator,
        find_vhost: Callable[[str], VHost[Queue] | None],
        connection_limits: ConnectionLimits,
        mechanisms: Iterable[str],
    ) -> None:
        allowed = frozenset(mechanisms)
        self._offer = offer
        self._auth = auth
        self._find_vhost = find_vhost
        self._connection_limits = connection_limits
        self._mechanisms: Mechanisms = {
            name: one for name, one in MECHANISMS.items() if name in allowed
        }
        self._allows_external = EXTERNAL in allowed

    def begin(self, peer: str, address: str, certified: str | None) -> Handshake:
        """The handshake of a connection of this name; see `SocketProtocol` for `certified`."""
        return Handshake(
            self._offer,
            self._auth,
            self._find_vhost,
            self._connection_limits,
            peer=peer,
            is_loopback=is_loopback(address),
            address=address,
            mechanisms=mechanisms_for(
                self._mechanisms, certified if self._allows_external else None
            ),
        )


@lru_cache(maxsize=8)
def _start_frame(offer: Offer, mechanisms: str) -> bytes:
    # The same for every connection of a broker, and dear: a table within a table.
    return connection_start(offer.server_properties(), mechanisms)


@lru_cache(maxsize=8)
def _tune_frame(offer: Offer) -> bytes:
    return connection_tune(offer.channel_max, offer.frame_max, offer.heartbeat_s)


def _capabilities(client_properties: Table) -> frozenset[str]:
    """The names that are true in the table of capabilities; anything else is absent (CONN-14)."""
    table = as_table(client_properties.get("capabilities")) or {}
    return frozenset(
        name for name, field in table.items() if field.kind == "t" and field.value is True
    )


def _negotiated(name: str, minimum: int, offered: int, value: int) -> int:
    """The client's value, if the offer allows it.

    Raises:
        NotAllowed: 530, too low or too high; the ids are those of tune, as RabbitMQ's are.

    Spec: CONN-31
    """
    if value and value < minimum:
        raise NotAllowed(
            f"negotiated {name} = {value} is lower than the minimum allowed value ({minimum})",
            c.CONNECTION_TUNE,
        )
    if offered and (not value or value > offered):
        detail = " (no limit)" if name == "channel_max" and not value else ""
        raise NotAllowed(
            f"negotiated {name} = {value}{detail} is higher than the maximum allowed value "
            f"({offered})",
            c.CONNECTION_TUNE,
        )
    return value


def _attribute(method: base.Frame, name: str) -> str:
    text: str = getattr(method, name)
    return text


def _number(method: base.Frame, name: str) -> int:
    number: int = getattr(method, name)
    return number


_HANDLERS: Final[Mapping[c.Ids, Callable[[Handshake, Command, Later], bytes | None]]] = {
    c.CONNECTION_START_OK: Handshake._start_ok,
    c.CONNECTION_SECURE_OK: Handshake._authenticate,
    c.CONNECTION_TUNE_OK: Handshake._tune_ok,
    c.CONNECTION_OPEN: Handshake._open,
}
