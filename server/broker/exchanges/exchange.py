"""An exchange: its declaration, what it may be called, and the router of its type.

Must not know other exchanges or queues; the ways between them are the vhost's.

Spec: EXCH-01 … EXCH-10
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.protocol.fields import Field, Table, as_integer, as_text, boolean, long_int, type_name
from vouchmq.server.broker.counters import ExchangeCounters
from vouchmq.server.broker.delays import X_DELAYED_EXCHANGE, X_DELAYED_MESSAGE, X_DELAYED_TYPE
from vouchmq.server.broker.equivalence import (
    require_same_argument,
    require_same_flag,
    require_same_text,
)
from vouchmq.server.broker.exchanges.bindings import Binding, Destination
from vouchmq.server.broker.exchanges.consistent_hash import (
    HASH_HEADER,
    HASH_PROPERTY,
    ConsistentHashRouter,
    check_hash_arguments,
)
from vouchmq.server.broker.exchanges.direct import DirectRouter
from vouchmq.server.broker.exchanges.fanout import FanoutRouter
from vouchmq.server.broker.exchanges.headers import HeadersRouter
from vouchmq.server.broker.exchanges.topic import TopicRouter
from vouchmq.server.broker.features.options import (
    DEFAULT_SIZE,
    MESSAGE_ID,
    X_CACHE_PERSISTENCE,
    X_CACHE_SIZE,
    X_CACHE_TTL,
    X_DEDUPLICATION,
    X_HEADER,
)
from vouchmq.server.broker.names import DEFAULT_EXCHANGE, RESERVED_PREFIX, exchange_text

if TYPE_CHECKING:
    from vouchmq.server.broker.features.dedup import KeyWindow
    from vouchmq.server.broker.queues.spec import QueueSpec

ALTERNATE_EXCHANGE: Final = "alternate-exchange"
DELAYED_MESSAGE: Final = "delayed-message"  # in policies only
# A whole number of at most 63 bits.
DIGITS: Final = re.compile(r"0*[0-9]{1,18}")
# Arguments of a de-duplicating exchange's window.
WINDOW: Final = (X_CACHE_SIZE, X_CACHE_TTL, X_CACHE_PERSISTENCE, X_HEADER)
# Of which type an argument must be, where another one would change nothing.
KINDS: Final = {
    X_DELAYED_EXCHANGE: "t",
    X_DEDUPLICATION: "t",
    HASH_HEADER: "S",
    HASH_PROPERTY: "S",
}
READS_HEADERS: Final = 1
READS_PROPERTIES: Final = 2
READS_KEYS: Final = 4
DEDUP_TYPE: Final = X_DEDUPLICATION
# The journal knows the keys of an exchange as those of a queue with such a name. Line feeds are
# stripped from the names that clients give, so no queue of theirs is called that.
KEY_SCOPE_PREFIX: Final = "\nkeys\n"


class Router(Protocol):
    """How an exchange type keeps and matches its bindings."""

    def validate(self, binding: Binding) -> None:
        """Raise PreconditionFailed (406) when no binding can look like that, or it is too many."""

    def add(self, binding: Binding) -> None:
        """Take in a binding that is not in yet."""

    def remove(self, binding: Binding) -> None:
        """Take out a binding that is in."""

    def drop_destination(self, destination: Destination) -> None:
        """All bindings to it are gone.

        Each is still given to `remove`, later; until then `match` may go on naming them, if that
        keeps none of the others from being named.
        """

    def match(self, keys: Sequence[str], headers: Table | None) -> Iterable[Binding | None]:
        """The bindings that match; the same one may come more than once.

        None stands for work that found none: the walk may be interrupted there.
        """


HEADERS_TYPE: Final = "headers"
HASH_TYPE: Final = "x-consistent-hash"
# What routes by a type's rules, given the arguments of the exchange.
ROUTERS: Final[dict[str, Callable[[Table], Router]]] = {
    "direct": lambda _: DirectRouter(),
    "fanout": lambda _: FanoutRouter(),
    "topic": lambda _: TopicRouter(),
    HEADERS_TYPE: lambda _: HeadersRouter(),
    HASH_TYPE: ConsistentHashRouter,
    DEDUP_TYPE: lambda _: FanoutRouter(),
}

# Name, type, internal (EXCH-02).
PREDECLARED: Final = (
    (DEFAULT_EXCHANGE, "direct", False),
    ("amq.direct", "direct", False),
    ("amq.fanout", "fanout", False),
    ("amq.topic", "topic", False),
    ("amq.headers", "headers", False),
    ("amq.match", "headers", False),
    ("amq.rabbitmq.trace", "topic", True),
)
PREDECLARED_NAMES: Final = frozenset(name for name, _, _ in PREDECLARED)
# Types that plugins add are called like this.
PLUGIN_PREFIX: Final = "x-"


class ExchangeKeys(NamedTuple):
    """The keys that a de-duplicating exchange remembers, and what the journal knows them by.

    That is the declaration of a queue which nobody can name, and which is not made.
    """

    spec: QueueSpec
    window: KeyWindow


@dataclass(slots=True, eq=False)
class Exchange:
    """One exchange of a vhost. Nothing of the declaration changes after it was made, but what its
    policy adds may.

    `delays`: messages with a delay are held (DELAY-10, DELAY-11). `reads`: what of a message
    besides its keys decides where it goes, bits of READS_HEADERS, READS_PROPERTIES and READS_KEYS
    (of de-duplication). `keys` are those that it remembers, None when it remembers none.
    """

    name: str
    vhost: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Table
    alternate: str | None = field(init=False)
    router: Router = field(init=False)
    delays: bool = field(init=False)
    reads: int = field(init=False)
    counters: ExchangeCounters = field(init=False, default_factory=ExchangeCounters)
    keys: ExchangeKeys | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.router = ROUTERS[self.routed_type or "direct"](self.arguments)
        self.apply_policy({})

    def apply_policy(self, policy: Mapping[str, object]) -> None:
        """From now on this policy says what the arguments do not (EXCH-63, DELAY-11)."""
        alternate = as_text(self.arguments.get(ALTERNATE_EXCHANGE))
        if ALTERNATE_EXCHANGE not in self.arguments:
            named = policy.get(ALTERNATE_EXCHANGE)
            alternate = named if isinstance(named, str) else None
        self.alternate = alternate
        asked = self.arguments.get(X_DELAYED_EXCHANGE)
        delays = policy.get(DELAYED_MESSAGE) if asked is None else asked.value
        self.delays = self.type == X_DELAYED_MESSAGE or delays is True
        routed_type = self.routed_type
        self.reads = READS_HEADERS if self.delays or routed_type == HEADERS_TYPE else 0
        if routed_type == HASH_TYPE and HASH_HEADER in self.arguments:
            self.reads |= READS_HEADERS
        if routed_type == HASH_TYPE and HASH_PROPERTY in self.arguments:
            self.reads |= READS_PROPERTIES
        if self.dedup_arguments is not None:
            named = as_text(self.arguments.get(X_HEADER))
            self.reads |= READS_KEYS
            self.reads |= READS_PROPERTIES if named == MESSAGE_ID else READS_HEADERS

    @property
    def window(self) -> KeyWindow | None:
        """The keys that it remembers."""
        return self.keys.window if self.keys is not None else None

    @property
    def reads_beyond_keys(self) -> bool:
        """Whether more than routing keys and de-duplication decides where a message goes."""
        return self.delays or self.routed_type in {HEADERS_TYPE, HASH_TYPE}

    @property
    def dedup_arguments(self) -> Table | None:
        """The arguments of its window, None when it has none (DUP-02, DUP-03)."""
        asked = self.arguments.get(X_DEDUPLICATION)
        if self.type != DEDUP_TYPE and (asked is None or asked.value is not True):
            return None
        named = {name: self.arguments[name] for name in WINDOW if name in self.arguments}
        for name in (X_CACHE_SIZE, X_CACHE_TTL):
            number = whole_number(named.get(name))
            if number is not None:
                named[name] = long_int(number)
        named.setdefault(X_CACHE_SIZE, long_int(DEFAULT_SIZE))
        return named | {X_DEDUPLICATION: boolean(True)}

    @property
    def routed_type(self) -> str | None:
        """The type whose rules route; None when a delaying exchange names none (DELAY-10)."""
        if self.type != X_DELAYED_MESSAGE:
            return self.type
        named = as_text(self.arguments.get(X_DELAYED_TYPE))
        return named if named in ROUTERS else None

    @property
    def text(self) -> str:
        """The {X} of error texts (GEN-04)."""
        return exchange_text(self.name, self.vhost)

    @property
    def is_predeclared(self) -> bool:
        """Whether the vhost made it, so that no client may delete it (EXCH-05)."""
        return self.name == DEFAULT_EXCHANGE or self.name.startswith(RESERVED_PREFIX)

    def require_valid(self) -> None:
        """Check the arguments of a new exchange.

        Raises:
            PreconditionFailed: 406, an argument of the wrong type or of a feature to come.

        Spec: EXCH-09
        """
        alternate = self.arguments.get(ALTERNATE_EXCHANGE)
        if alternate is not None and self.alternate is None:
            raise PreconditionFailed(
                f"invalid type '{type_name(alternate)}' for arg '{ALTERNATE_EXCHANGE}' "
                f"in {self.text}"
            )
        if self.type == X_DELAYED_MESSAGE and self.routed_type is None:
            if as_text(self.arguments.get(X_DELAYED_TYPE)) == X_DELAYED_MESSAGE:
                raise PreconditionFailed(
                    "Invalid argument, 'x-delayed-message' can't be used for 'x-delayed-type'"
                )
            raise PreconditionFailed(
                "Invalid argument, 'x-delayed-type' must be an existing exchange type"
            )
        for name, kind in KINDS.items():
            field = self.arguments.get(name)
            if field is not None and field.kind != kind:
                why = f"{{unacceptable_type,{type_name(field)}}}"
                raise PreconditionFailed(f"invalid arg '{name}' for {self.text}: {why}")
        if self.routed_type == HASH_TYPE:
            check_hash_arguments(self.arguments)
        if self.dedup_arguments is not None:
            check_window(self.arguments, needs_size=self.type == DEDUP_TYPE)

    def require_equivalent(self, declared: Exchange) -> None:
        """Compare with a later declaration of the same name.

        Raises:
            PreconditionFailed: 406, naming the first difference.

        Spec: EXCH-08
        """
        require_same_text("type", self.text, declared.type, self.type)
        require_same_flag("durable", self.text, declared.durable, self.durable)
        require_same_flag("auto_delete", self.text, declared.auto_delete, self.auto_delete)
        require_same_flag("internal", self.text, declared.internal, self.internal)
        for name in (ALTERNATE_EXCHANGE, X_DELAYED_TYPE, *WINDOW):
            require_same_argument(
                name, self.text, declared.arguments.get(name), self.arguments.get(name)
            )


def key_scope_name(exchange: str) -> str:
    """The name under which the journal knows the keys of a de-duplicating exchange."""
    return KEY_SCOPE_PREFIX + exchange


def keys_are_of(name: str) -> str | None:
    """The exchange whose keys the journal knows under this name, None when it is of a queue."""
    return name.removeprefix(KEY_SCOPE_PREFIX) if name.startswith(KEY_SCOPE_PREFIX) else None


def whole_number(field: Field | None) -> int | None:
    """An integer, or a text that is one, as de-duplicating exchanges take them (DUP-02)."""
    number = as_integer(field)
    text = as_text(field)
    if number is None and text is not None and DIGITS.fullmatch(text):
        return int(text)
    return number


def check_window(arguments: Table, *, needs_size: bool) -> None:
    """Check what a de-duplicating exchange is to remember.

    Raises:
        PreconditionFailed: 406

    Spec: DUP-02
    """
    for name in (X_CACHE_SIZE, X_CACHE_TTL):
        field = arguments.get(name)
        if field is None and not (needs_size and name == X_CACHE_SIZE):
            continue
        number = whole_number(field)
        if number is None or number < 1:
            raise PreconditionFailed(
                f"Missing or invalid argument, '{name}' must be an integer greater than 0"
            )
    kept = arguments.get(X_CACHE_PERSISTENCE)
    if kept is not None and as_text(kept) not in {"memory", "disk"}:
        raise PreconditionFailed(
            f"Missing or invalid argument, '{X_CACHE_PERSISTENCE}' must be memory or disk"
        )
    named = arguments.get(X_HEADER)
    if named is not None and as_text(named) is None:
        raise PreconditionFailed(f"Missing or invalid argument, '{X_HEADER}' must be a string")


def has_type(exchange_type: str) -> bool:
    """Whether there is such an exchange type."""
    return exchange_type in ROUTERS or exchange_type == X_DELAYED_MESSAGE


def is_type_of_plugin(exchange_type: str) -> bool:
    """Whether a type is one that another broker has from a plugin, and this one has not."""
    return exchange_type.startswith(PLUGIN_PREFIX) and not has_type(exchange_type)


def check_type(exchange_type: str) -> None:
    """Accept the exchange types there are.

    Raises:
        PreconditionFailed: 406, there is no such type.

    Spec: EXCH-01
    """
    if not has_type(exchange_type):
        raise PreconditionFailed(f"unknown exchange type '{exchange_type}'")
