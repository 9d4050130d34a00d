"""The cold verbs as commands on a channel: order of checks, replies, exact texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from pamqp import base, commands

from tests.unit.server.broker.stand_ins import (
    JournalStandIn,
    QueueStandIn,
    integer,
    new_vhost,
    queue,
    routed,
)
from vouchmq.protocol.codec import (
    Command,
    exchange_bind_ok,
    exchange_declare_ok,
    exchange_delete_ok,
    exchange_unbind_ok,
    queue_bind_ok,
    queue_declare_ok,
    queue_delete_ok,
    queue_purge_ok,
    queue_unbind_ok,
)
from vouchmq.protocol.errors import AccessRefused, AmqpError
from vouchmq.protocol.fields import Field, Table, longstr
from vouchmq.server.broker.data_directory import DataDirectory
from vouchmq.server.broker.exchanges.bindings import DestinationKind
from vouchmq.server.broker.vhost import VHost
from vouchmq.server.channel.topology import HANDLERS, POSITION_NAME, Permission, TopicPermission

YOU = object()
LIVE = "amq.rabbitmq.reply-to.live"
DEAD = "amq.rabbitmq.reply-to.dead"
DEFAULT = "ACCESS_REFUSED - operation not permitted on the default exchange"


@dataclass
class UserStandIn:
    """Notes every check; refuses those it is told to."""

    name: str = "u"
    asked: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)

    def require(self, permission: Permission, kind: DestinationKind, name: str, vhost: str) -> None:
        self._check(f"{permission} {kind} {name}")

    def require_any(self, kind: DestinationKind, name: str, vhost: str) -> None:
        self._check(f"any {kind} {name}")

    def require_topic(self, permission: TopicPermission, key: str, name: str, vhost: str) -> None:
        self._check(f"{permission} topic {key} {name}")

    def _check(self, check: str) -> None:
        self.asked.append(check)
        if check in self.refused:
            raise AccessRefused(f"{check} refused")


class ReplyNamesStandIn:
    """One live name."""

    def is_live(self, name: str) -> bool:
        return name == LIVE


class ChannelStandIn:
    """A scope that keeps what is replied."""

    def __init__(self) -> None:
        self.journal = JournalStandIn()
        self.vhost: VHost[QueueStandIn] = new_vhost(self.journal)
        self.number = 7
        self.user = UserStandIn()
        self.owner: object = object()
        self.last_queue: str | None = None
        self.reply_names = ReplyNamesStandIn()
        self.replies: list[tuple[bytes, int]] = []
        self.data_directory = DataDirectory()
        self.data_directory.begin(0, iter(("directory", "start")).__next__)

    def barrier(self) -> int:
        return (7 << 32) + 9

    def in_slices(self, step: Callable[[], bool]) -> None:
        while not step():
            pass

    def serve_first(self, queue_name: str) -> bool:
        return True

    def reply(self, frame: bytes, lsn: int = 0) -> None:
        self.replies.append((frame, lsn))

    def do(
        self, method: type[base.Frame], arguments: Table | None = None, /, **values: object
    ) -> None:
        """Handle a method, its fields zero where they are not given."""
        frame = method.__new__(method)
        for name in method.__slots__:
            setattr(frame, name, values.pop(name, _zero(method.amqp_type(name))))
        assert not values
        HANDLERS[method](self, Command(frame, divmod(method.index, 0x10000), arguments or {}))

    def refuses(
        self, method: type[base.Frame], arguments: Table | None = None, /, **values: object
    ) -> str:
        """The reply text with which a method is refused; nothing may have been said."""
        before = list(self.replies)
        with pytest.raises(AmqpError) as refused:
            self.do(method, arguments, **values)
        assert self.replies == before
        return refused.value.reply_text

    def declares(self, name: str, **values: object) -> None:
        self.do(commands.Queue.Declare, queue=name, **values)


def _zero(kind: str) -> object:
    return {"bit": False, "shortstr": "", "short": 0, "table": {}}[kind]


@pytest.fixture
def channel() -> ChannelStandIn:
    return ChannelStandIn()


def test_every_verb_of_the_two_classes_has_a_handler() -> None:
    assert set(HANDLERS) == {
        commands.Exchange.Declare,
        commands.Exchange.Delete,
        commands.Exchange.Bind,
        commands.Exchange.Unbind,
        commands.Queue.Declare,
        commands.Queue.Bind,
        commands.Queue.Unbind,
        commands.Queue.Purge,
        commands.Queue.Delete,
    }


def test_verb_refuses_a_method_that_is_not_its_own(channel: ChannelStandIn) -> None:
    command = Command(commands.Tx.Select(), (90, 10), {})
    with pytest.raises(TypeError):
        HANDLERS[commands.Queue.Purge](channel, command)


# exchange.declare


def test_exchange_is_declared_and_answered(channel: ChannelStandIn) -> None:
    values = {"exchange": "x\r\n", "exchange_type": "topic"}
    channel.do(commands.Exchange.Declare, {"k": integer(1)}, internal=True, **values)
    made = channel.vhost.exchanges["x"]
    assert (made.type, made.durable, made.internal) == ("topic", False, True)
    assert made.arguments == {"k": integer(1)}
    channel.do(commands.Exchange.Declare, exchange="y", exchange_type="direct", durable=True)
    channel.do(commands.Exchange.Declare, exchange="z", exchange_type="direct", nowait=True)
    assert channel.replies == [
        (exchange_declare_ok(7), 0),
        (exchange_declare_ok(7), channel.journal.lsn),
        (b"", 0),
    ]


def test_exchange_type_is_checked_before_anything_else(channel: ChannelStandIn) -> None:
    assert channel.refuses(commands.Exchange.Declare, exchange="", exchange_type="x-no") == (
        "PRECONDITION_FAILED - unknown exchange type 'x-no'"
    )
    assert channel.user.asked == []


@pytest.mark.parametrize("passive", [False, True])
def test_default_exchange_cannot_be_declared(channel: ChannelStandIn, passive: bool) -> None:
    values = {"exchange": "\n", "exchange_type": "direct", "durable": True, "passive": passive}
    assert channel.refuses(commands.Exchange.Declare, **values) == DEFAULT
    assert channel.user.asked == []


def test_declaring_an_exchange_needs_configure_before_existence(channel: ChannelStandIn) -> None:
    channel.user.refused = {"configure exchange amq.direct", "configure exchange amq.new"}
    for name in ("amq.direct", "amq.new"):
        text = channel.refuses(commands.Exchange.Declare, exchange=name, exchange_type="fanout")
        assert text == f"ACCESS_REFUSED - configure exchange {name} refused"


@pytest.mark.parametrize(("alternate", "resource"), [("alt", "alt"), ("", "amq.default")])
def test_creating_with_an_alternate_needs_read_and_write_on_it(
    channel: ChannelStandIn, alternate: str, resource: str
) -> None:
    arguments = {"alternate-exchange": longstr(alternate)}
    values = {"exchange": "x", "exchange_type": "direct"}
    checks = ["configure exchange x", "read exchange x", f"write exchange {resource}"]
    for check in checks[1:]:
        channel.user.refused = {check}
        text = channel.refuses(commands.Exchange.Declare, arguments, **values)
        assert text == f"ACCESS_REFUSED - {check} refused"
    channel.user.asked.clear()
    channel.user.refused.clear()
    channel.do(commands.Exchange.Declare, arguments, **values)
    assert channel.user.asked == checks
    channel.user.asked.clear()
    channel.do(commands.Exchange.Declare, arguments, **values)
    assert channel.user.asked == checks[:1]


def test_passive_exchange_declare_compares_nothing(channel: ChannelStandIn) -> None:
    values = {"exchange_type": "x-no", "durable": False, "passive": True}
    channel.do(commands.Exchange.Declare, exchange="amq.topic\n", **values)
    assert channel.replies == [(exchange_declare_ok(7), 0)]
    assert channel.refuses(commands.Exchange.Declare, exchange="nx", **values) == (
        "NOT_FOUND - no exchange 'nx' in vhost '/'"
    )
    assert channel.user.asked == ["any exchange amq.topic", "any exchange nx"]
    channel.user.refused = {"any exchange nx"}
    assert channel.refuses(commands.Exchange.Declare, exchange="nx", **values) == (
        "ACCESS_REFUSED - any exchange nx refused"
    )


# exchange.delete


def test_exchange_is_deleted_and_a_missing_one_too(channel: ChannelStandIn) -> None:
    channel.do(commands.Exchange.Declare, exchange="x", exchange_type="direct")
    channel.do(commands.Exchange.Delete, exchange="x\n")
    channel.do(commands.Exchange.Delete, exchange="x", nowait=True, if_unused=True)
    assert "x" not in channel.vhost.exchanges
    assert [frame for frame, _ in channel.replies[1:]] == [exchange_delete_ok(7), b""]


def test_system_exchanges_cannot_be_deleted_even_if_missing(channel: ChannelStandIn) -> None:
    for name in ("amq.direct", "amq.missing"):
        assert channel.refuses(commands.Exchange.Delete, exchange=name) == (
            f"ACCESS_REFUSED - deletion of system exchange '{name}' in vhost '/' not allowed"
        )
    assert channel.refuses(commands.Exchange.Delete, exchange="") == DEFAULT
    assert channel.user.asked == []


def test_deleting_an_exchange_needs_configure(channel: ChannelStandIn) -> None:
    channel.user.refused = {"configure exchange x"}
    assert channel.refuses(commands.Exchange.Delete, exchange="x") == (
        "ACCESS_REFUSED - configure exchange x refused"
    )


def test_exchange_in_use_is_kept(channel: ChannelStandIn) -> None:
    channel.do(commands.Exchange.Declare, exchange="x", exchange_type="direct")
    channel.do(commands.Exchange.Bind, source="x", destination="amq.topic")
    assert channel.refuses(commands.Exchange.Delete, exchange="x", if_unused=True) == (
        "PRECONDITION_FAILED - exchange 'x' in vhost '/' in use"
    )


# bind and unbind


def test_exchanges_are_bound_and_unbound(channel: ChannelStandIn) -> None:
    channel.declares("q")
    ends = {"source": "amq.direct\n", "destination": "amq.topic\r", "routing_key": "k\n"}
    channel.do(commands.Exchange.Bind, **ends)
    channel.vhost.bind("amq.topic", "queue", "q", "#", {}, channel.owner)
    assert routed(channel.vhost, "amq.direct", "k\n") == ["q"]
    assert channel.user.asked[-2:] == ["write exchange amq.topic", "read exchange amq.direct"]
    channel.do(commands.Exchange.Unbind, **ends)
    assert routed(channel.vhost, "amq.direct", "k\n") == []
    channel.do(commands.Exchange.Bind, nowait=True, **ends)
    channel.do(commands.Exchange.Unbind, nowait=True, **ends)
    lsn = channel.journal.lsn
    assert channel.replies[1:] == [
        (exchange_bind_ok(7), lsn - 3),
        (exchange_unbind_ok(7), lsn - 2),
        (b"", lsn - 1),
        (b"", lsn),
    ]


@pytest.mark.parametrize("method", [commands.Exchange.Bind, commands.Exchange.Unbind])
def test_binding_exchanges_checks_write_then_default_then_read_then_existence(
    channel: ChannelStandIn, method: type[base.Frame]
) -> None:
    channel.user.refused = {"write exchange amq.default", "write exchange ny", "read exchange nx"}
    assert channel.refuses(method, source="nx", destination="") == (
        "ACCESS_REFUSED - write exchange amq.default refused"
    )
    assert "write exchange ny" in channel.refuses(method, source="", destination="ny")
    channel.user.refused = {"read exchange nx", "read exchange amq.default"}
    assert channel.refuses(method, source="nx", destination="") == DEFAULT
    assert channel.refuses(method, source="", destination="ny") == DEFAULT
    assert "read exchange nx" in channel.refuses(method, source="nx", destination="ny")


def test_binding_a_missing_exchange_is_not_found(channel: ChannelStandIn) -> None:
    for source, destination, missing in (
        ("nx", "ny", "nx"),
        ("amq.direct", "ny", "ny"),
        ("nx", "amq.direct", "nx"),
    ):
        assert channel.refuses(commands.Exchange.Bind, source=source, destination=destination) == (
            f"NOT_FOUND - no exchange '{missing}' in vhost '/'"
        )
        channel.do(commands.Exchange.Unbind, source=source, destination=destination)


def test_queue_is_bound_and_unbound(channel: ChannelStandIn) -> None:
    channel.declares("q", durable=True)
    values = {"queue": "q\n", "exchange": "amq.direct\n", "routing_key": "k"}
    arguments = {"a": integer(1)}
    channel.do(commands.Queue.Bind, arguments, **values)
    assert channel.replies[-1] == (queue_bind_ok(7), channel.journal.lsn)
    assert channel.user.asked[-2:] == ["write queue q", "read exchange amq.direct"]
    assert routed(channel.vhost, "amq.direct", "k") == ["q"]
    channel.do(commands.Queue.Unbind, **values)
    assert routed(channel.vhost, "amq.direct", "k") == ["q"]
    channel.do(commands.Queue.Unbind, arguments, **values)
    assert channel.replies[-1] == (queue_unbind_ok(7), channel.journal.lsn)
    assert routed(channel.vhost, "amq.direct", "k") == []
    channel.do(commands.Queue.Bind, nowait=True, **values)
    assert channel.replies[-1] == (b"", channel.journal.lsn)


def test_binding_errors_have_their_texts(channel: ChannelStandIn) -> None:
    channel.declares("q")
    bind = commands.Queue.Bind
    assert channel.refuses(bind, queue="q", exchange="") == DEFAULT
    assert channel.refuses(commands.Queue.Unbind, queue="q", exchange="") == DEFAULT
    assert channel.refuses(bind, queue="nq", exchange="amq.direct") == (
        "NOT_FOUND - no queue 'nq' in vhost '/'"
    )
    assert channel.refuses(bind, queue="q", exchange="nx") == (
        "NOT_FOUND - no exchange 'nx' in vhost '/'"
    )
    assert channel.refuses(
        bind, {"x-match": longstr("foo")}, queue="q", exchange="amq.headers"
    ) == (
        'PRECONDITION_FAILED - Invalid x-match field value <<"foo">>; '
        "expected all, any, all-with-x, or any-with-x"
    )
    assert channel.refuses(bind, queue="q", exchange="amq.topic", routing_key="#.#.#") == (
        "PRECONDITION_FAILED - Topic binding key '#.#.#' uses 3 '#' wildcards, "
        "at most 2 are allowed"
    )


@pytest.mark.parametrize("name", [LIVE, DEAD])
@pytest.mark.parametrize("method", [commands.Queue.Bind, commands.Queue.Unbind])
def test_reply_names_cannot_be_bound(
    channel: ChannelStandIn, method: type[base.Frame], name: str
) -> None:
    assert channel.refuses(method, queue=name, exchange="amq.direct") == (
        "ACCESS_REFUSED - cannot bind or unbind to a volatile (direct reply-to) queue"
    )


def test_empty_queue_name_is_the_last_declared(channel: ChannelStandIn) -> None:
    channel.declares("q")
    last = channel.vhost.queues["q"]
    last.ready_count = 2
    channel.do(commands.Queue.Bind, exchange="amq.direct")
    channel.do(commands.Queue.Bind, exchange="amq.direct", routing_key="k")
    assert routed(channel.vhost, "amq.direct", "q") == ["q"]
    assert routed(channel.vhost, "amq.direct", "k") == ["q"]
    channel.do(commands.Queue.Bind, queue="q", exchange="amq.direct")
    assert routed(channel.vhost, "amq.direct", "") == ["q"]
    channel.do(commands.Queue.Unbind, exchange="amq.direct")
    assert routed(channel.vhost, "amq.direct", "q") == []
    channel.do(commands.Queue.Purge)
    assert channel.replies[-1] == (queue_purge_ok(7, 2), 0)
    channel.do(commands.Queue.Delete)
    assert last.is_deleted


@pytest.mark.parametrize(
    "method",
    [
        commands.Queue.Bind,
        commands.Queue.Unbind,
        commands.Queue.Purge,
        commands.Queue.Delete,
    ],
)
def test_empty_queue_name_without_a_declaration_is_not_found(
    channel: ChannelStandIn, method: type[base.Frame]
) -> None:
    assert channel.refuses(method) == "NOT_FOUND - no previously declared queue"
    assert channel.refuses(commands.Queue.Declare, queue="nq", passive=True)
    assert channel.refuses(method) == "NOT_FOUND - no previously declared queue"


# queue.declare


def test_queue_is_declared_and_its_counts_told(channel: ChannelStandIn) -> None:
    channel.declares("q\r\n", durable=True)
    assert channel.replies == [(queue_declare_ok(7, "q", 0, 0), channel.journal.lsn)]
    assert channel.last_queue == "q"
    made = channel.vhost.queues["q"]
    made.ready_count, made.consumer_count = 5, 2
    channel.declares("q", durable=True)
    channel.declares("q", passive=True, exclusive=True, auto_delete=True)
    channel.declares("other", nowait=True)
    assert [frame for frame, _ in channel.replies[1:]] == [
        queue_declare_ok(7, "q", 5, 2),
        queue_declare_ok(7, "q", 5, 2),
        b"",
    ]
    assert channel.last_queue == "other"


def test_server_names_a_queue_and_permission_is_asked_for_that_name(
    channel: ChannelStandIn,
) -> None:
    channel.declares("\n", exclusive=True)
    (name,) = channel.vhost.queues
    assert name.startswith("amq.gen-")
    assert channel.user.asked == [f"configure queue {name}"]
    assert channel.last_queue == name
    assert channel.vhost.queues[name].spec.exclusive_owner is channel.owner
    # Its name is reserved for all that: only passive declarations find it again.
    channel.declares(name, passive=True)
    assert "reserved prefix" in channel.refuses(commands.Queue.Declare, queue=name, exclusive=True)


def test_reserved_prefix_then_permission_then_existence(channel: ChannelStandIn) -> None:
    channel.user.refused = {"configure queue amq.q", "configure queue q"}
    queue(channel.vhost, "q")
    assert channel.refuses(commands.Queue.Declare, queue="amq.q") == (
        "ACCESS_REFUSED - queue name 'amq.q' contains reserved prefix 'amq.*'"
    )
    assert channel.refuses(commands.Queue.Declare, queue="q", durable=True) == (
        "ACCESS_REFUSED - configure queue q refused"
    )


def test_creating_with_a_dead_letter_exchange_needs_read_and_write_on_it(
    channel: ChannelStandIn,
) -> None:
    arguments = {"x-dead-letter-exchange": longstr(""), "x-overflow": longstr("z")}
    checks = ["read queue q", "write exchange amq.default"]
    for check in checks:
        channel.user.refused = {check}
        text = channel.refuses(commands.Queue.Declare, arguments, queue="q")
        assert text == f"ACCESS_REFUSED - {check} refused"
    channel.user.refused.clear()
    channel.user.asked.clear()
    assert "invalid_overflow" in channel.refuses(commands.Queue.Declare, arguments, queue="q")
    assert channel.user.asked == ["configure queue q", *checks]


QUORUM = {"x-queue-type": longstr("quorum")}
CLASSIC = {"x-queue-type": longstr("classic")}


def test_the_default_type_is_that_of_a_queue_declared_without_one(channel: ChannelStandIn) -> None:
    """QUORUM-07."""
    channel.vhost.default_queue_type = "quorum"
    channel.declares("q", durable=True)
    assert channel.vhost.queues["q"].spec.arguments == QUORUM
    # It is what is compared, too.
    channel.declares("q", durable=True)
    channel.do(commands.Queue.Declare, QUORUM, queue="q", durable=True)
    text = channel.refuses(commands.Queue.Declare, CLASSIC, queue="q", durable=True)
    assert text.endswith("received 'classic' but current is 'quorum'")
    channel.do(commands.Queue.Declare, CLASSIC, queue="c", durable=True)
    text = channel.refuses(commands.Queue.Declare, queue="c", durable=True)
    assert text.endswith("received 'quorum' but current is 'classic'")
    text = channel.refuses(commands.Queue.Declare, queue="", durable=True)
    assert "server-named queue for type rabbit_quorum_queue" in text


@pytest.mark.parametrize(
    "flags",
    [{}, {"durable": True, "exclusive": True}, {"durable": True, "auto_delete": True}],
)
def test_the_default_type_is_not_that_of_a_queue_which_cannot_be_it(
    channel: ChannelStandIn, flags: dict[str, bool]
) -> None:
    """QUORUM-07."""
    channel.vhost.default_queue_type = "quorum"
    channel.declares("q", **flags)
    assert channel.vhost.queues["q"].spec.arguments == {}
    channel.declares("q", **flags)
    channel.declares("", **flags)


def test_passive_declare_needs_any_permission_then_existence_then_access(
    channel: ChannelStandIn,
) -> None:
    declare = commands.Queue.Declare
    assert channel.refuses(declare, queue="nq", passive=True) == (
        "NOT_FOUND - no queue 'nq' in vhost '/'"
    )
    assert channel.refuses(declare, queue="", passive=True) == (
        "NOT_FOUND - no queue '' in vhost '/'"
    )
    queue(channel.vhost, "q", owner=YOU)
    assert channel.refuses(declare, queue="q", passive=True).startswith(
        "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'."
    )
    channel.user.refused = {"any queue nq"}
    assert channel.refuses(declare, queue="nq", passive=True) == (
        "ACCESS_REFUSED - any queue nq refused"
    )


@pytest.mark.parametrize("passive", [False, True])
def test_reply_names_are_answered_for_without_permission(
    channel: ChannelStandIn, passive: bool
) -> None:
    for name in ("amq.rabbitmq.reply-to", LIVE):
        channel.declares(name, passive=passive)
        assert channel.replies[-1] == (queue_declare_ok(7, name, 0, 1), 0)
        assert channel.last_queue == name
    assert channel.refuses(commands.Queue.Declare, queue=DEAD, passive=passive) == (
        f"NOT_FOUND - no queue '{DEAD}' in vhost '/'"
    )
    assert channel.user.asked == []
    assert not channel.vhost.queues


def test_name_that_only_becomes_a_reply_name_is_reserved(channel: ChannelStandIn) -> None:
    assert channel.refuses(commands.Queue.Declare, queue="amq.rabbitmq.reply\n-to") == (
        "ACCESS_REFUSED - queue name 'amq.rabbitmq.reply-to' contains reserved prefix 'amq.*'"
    )


# purge and delete


def test_purge_tells_the_count(channel: ChannelStandIn) -> None:
    channel.declares("q")
    channel.vhost.queues["q"].ready_count = 4
    channel.do(commands.Queue.Purge, queue="q\n")
    channel.do(commands.Queue.Purge, queue="q", nowait=True)
    assert channel.replies[1:] == [(queue_purge_ok(7, 4), 0), (b"", 0)]
    assert channel.user.asked[-1] == "read queue q"
    assert channel.refuses(commands.Queue.Purge, queue="nq") == (
        "NOT_FOUND - no queue 'nq' in vhost '/'"
    )


@pytest.mark.parametrize(
    ("method", "check"),
    [(commands.Queue.Purge, "read queue nq"), (commands.Queue.Delete, "configure queue nq")],
)
def test_permission_comes_before_existence(
    channel: ChannelStandIn, method: type[base.Frame], check: str
) -> None:
    channel.user.refused = {check}
    assert channel.refuses(method, queue="nq") == f"ACCESS_REFUSED - {check} refused"


@pytest.mark.parametrize("method", [commands.Queue.Purge, commands.Queue.Delete])
def test_queue_of_another_connection_is_locked(
    channel: ChannelStandIn, method: type[base.Frame]
) -> None:
    queue(channel.vhost, "q", owner=YOU)
    assert channel.refuses(method, queue="q").startswith("RESOURCE_LOCKED - ")


def test_delete_answers_before_it_cancels(channel: ChannelStandIn) -> None:
    channel.declares("q", durable=True)
    gone = channel.vhost.queues["q"]
    gone.ready_count = 3
    seen: list[bool] = []
    keep = channel.reply

    def reply(frame: bytes, lsn: int = 0) -> None:
        seen.append(gone.is_deleted)
        keep(frame, lsn)

    channel.reply = reply  # type: ignore[method-assign] # the stand-in is looked into
    channel.do(commands.Queue.Delete, queue="q\n")
    channel.do(commands.Queue.Delete, queue="q", if_unused=True, nowait=True)
    channel.do(commands.Queue.Delete, queue=LIVE)
    assert seen == [False, True, True]
    assert channel.replies[1:] == [
        (queue_delete_ok(7, 3), channel.journal.lsn),
        (b"", channel.journal.lsn),
        (queue_delete_ok(7, 0), channel.journal.lsn),
    ]


def test_delete_conditions_have_their_texts(channel: ChannelStandIn) -> None:
    channel.declares("q")
    kept = channel.vhost.queues["q"]
    kept.ready_count, kept.consumer_count = 1, 1
    assert channel.refuses(commands.Queue.Delete, queue="q", if_unused=True, if_empty=True) == (
        "PRECONDITION_FAILED - queue 'q' in vhost '/' in use"
    )
    assert channel.refuses(commands.Queue.Delete, queue="q", if_empty=True) == (
        "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty"
    )
    assert not kept.is_deleted


def test_a_position_needs_no_permission_and_waits_for_the_disk() -> None:
    """DURABLE-28."""
    channel = ChannelStandIn()
    channel.declares(POSITION_NAME, passive=True)
    lsn = (7 << 32) + 9
    assert channel.replies == [(queue_declare_ok(7, POSITION_NAME, 9, 7), lsn)]
    assert channel.user.asked == []
    seen = {"data-directory": longstr("directory"), "start": longstr("start"), "lsn": integer(5)}
    channel.do(commands.Queue.Declare, dict(seen), queue=POSITION_NAME, passive=True)
    assert len(channel.replies) == 2


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("data-directory", longstr("x"), "this is data directory 'directory', not 'x'"),
        ("start", longstr("x"), "does not know start 'x'"),
        ("lsn", integer(1 << 40), "ended at LSN"),
        ("lsn", longstr("5"), "takes all of data-directory, start, lsn or none"),
        ("other", longstr("5"), "takes all of data-directory, start, lsn or none"),
    ],
)
def test_a_position_that_this_directory_does_not_hold(name: str, value: Field, text: str) -> None:
    seen = {"data-directory": longstr("directory"), "start": longstr("start"), "lsn": integer(5)}
    said = ChannelStandIn().refuses(
        commands.Queue.Declare, {**seen, name: value}, queue=POSITION_NAME, passive=True
    )
    assert said.startswith("PRECONDITION_FAILED - ")
    assert text in said
