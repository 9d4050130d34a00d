"""Section PERM: which permissions each operation needs.

The prepared user may configure what has a `c` in the last part of its name, write what has a `w`
and read what has an `r`; of amq.topic it may use the keys that begin with `open.`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.expect import Text, equal
from vouchmq.conformance.preparation import USER, guarded, need_users
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Argument, Plain, Table


class _Things:
    """What the owner has made: a queue and an exchange for each combination of rights."""

    def __init__(self, stage: Stage) -> None:
        need_users(stage)
        self.stage = stage
        self.owner = stage.channel()

    def queue(self, rights: str, **arguments: Plain) -> str:
        """A queue with these rights in its name; `x` stands for none."""
        more = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
        return self.stage.queue(self.owner, label=rights, arguments=more)

    def exchange(self, rights: str, kind: str = "fanout") -> str:
        """An exchange with these rights in its name."""
        name = self.stage.name(rights)
        self.owner.call("exchange.declare", exchange=name, type=kind)
        return name


Attempt = Callable[[_Things], tuple[str, dict[str, Argument]]]


def _new(method: str, rights: str, arguments: Table | None = None) -> Attempt:
    """Declare what does not exist yet."""

    def attempt(things: _Things) -> tuple[str, dict[str, Argument]]:
        name = things.stage.name(rights)
        if method == "queue.declare":
            return method, {"queue": name, "arguments": arguments or {}}
        return method, {"exchange": name, "type": "fanout", "arguments": arguments or {}}

    return attempt


def _with_target(method: str, argument: str, rights: str, target: str) -> Attempt:
    """Declare with an alternate or dead-letter exchange of these rights."""

    def attempt(things: _Things) -> tuple[str, dict[str, Argument]]:
        arguments: Table = {argument: things.exchange(target)}
        return _new(method, rights, arguments)(things)

    return attempt


def _queue(method: str, rights: str, **more: bool) -> Attempt:
    """A method on an existing queue."""
    return lambda things: (method, {"queue": things.queue(rights), **more})


def _exchange(method: str, rights: str, **more: bool) -> Attempt:
    """A method on an existing exchange."""
    return lambda things: (method, {"exchange": things.exchange(rights), **more})


def _bind(method: str, queue: str, exchange: str) -> Attempt:
    return lambda things: (
        method,
        {"queue": things.queue(queue), "exchange": things.exchange(exchange)},
    )


def _chain(method: str, destination: str, source: str) -> Attempt:
    return lambda things: (
        method,
        {"destination": things.exchange(destination), "source": things.exchange(source)},
    )


# Rule, what it is, an attempt that must do, and attempts that must not, by the missing right.
_ROWS: Final[tuple[tuple[str, str, Attempt, dict[str, Attempt]], ...]] = (
    (
        "PERM-03",
        "exchange.declare",
        _new("exchange.declare", "c"),
        {"configure": _new("exchange.declare", "wr")},
    ),
    (
        "PERM-03",
        "exchange.declare with an alternate exchange",
        _with_target("exchange.declare", "alternate-exchange", "cr", "w"),
        {
            "write on the alternate": _with_target(
                "exchange.declare", "alternate-exchange", "cwr", "cr"
            ),
            "read": _with_target("exchange.declare", "alternate-exchange", "cw", "w"),
        },
    ),
    (
        "PERM-03",
        "exchange.delete",
        _exchange("exchange.delete", "c"),
        {"configure": _exchange("exchange.delete", "wr")},
    ),
    (
        "PERM-03",
        "exchange.bind",
        _chain("exchange.bind", "w", "r"),
        {
            "write on the destination": _chain("exchange.bind", "cr", "r"),
            "read on the source": _chain("exchange.bind", "w", "cw"),
        },
    ),
    (
        "PERM-03",
        "exchange.unbind",
        _chain("exchange.unbind", "w", "r"),
        {
            "write on the destination": _chain("exchange.unbind", "cr", "r"),
            "read on the source": _chain("exchange.unbind", "w", "cw"),
        },
    ),
    (
        "PERM-04",
        "queue.declare",
        _new("queue.declare", "c"),
        {"configure": _new("queue.declare", "wr")},
    ),
    (
        "PERM-04",
        "queue.declare with a dead-letter exchange",
        _with_target("queue.declare", "x-dead-letter-exchange", "cr", "w"),
        {
            "write on the target": _with_target(
                "queue.declare", "x-dead-letter-exchange", "cwr", "cr"
            ),
            "read": _with_target("queue.declare", "x-dead-letter-exchange", "cw", "w"),
        },
    ),
    (
        "PERM-04",
        "queue.delete",
        _queue("queue.delete", "c"),
        {"configure": _queue("queue.delete", "wr")},
    ),
    (
        "PERM-04",
        "queue.bind",
        _bind("queue.bind", "w", "r"),
        {
            "write on the queue": _bind("queue.bind", "cr", "r"),
            "read": _bind("queue.bind", "w", "cw"),
        },
    ),
    (
        "PERM-04",
        "queue.unbind",
        _bind("queue.unbind", "w", "r"),
        {
            "write on the queue": _bind("queue.unbind", "cr", "r"),
            "read": _bind("queue.unbind", "w", "cw"),
        },
    ),
    (
        "PERM-04",
        "queue.purge",
        _queue("queue.purge", "r"),
        {"read": _queue("queue.purge", "cw")},
    ),
    (
        "PERM-05",
        "basic.consume",
        _queue("basic.consume", "r"),
        {"read": _queue("basic.consume", "cw")},
    ),
)


def _granted(attempt: Attempt, stage: Stage) -> None:
    method, arguments = attempt(_Things(stage))
    guarded(stage).call(method, **arguments)


def _refused(attempt: Attempt, stage: Stage) -> None:
    method, arguments = attempt(_Things(stage))
    channel = guarded(stage)
    with channel.soft(403, None, method):
        channel.call(method, **arguments)


for _rule, _what, _good, _bad in _ROWS:
    case(_rule, says=f"{_what}: with just the rights it needs")(partial(_granted, _good))
    for _missing, _attempt in _bad.items():
        case(_rule, says=f"{_what}: without {_missing} it is soft 403")(partial(_refused, _attempt))


def _passive(method: str, rights: str, stage: Stage) -> None:
    things = _Things(stage)
    attempt = _queue if method == "queue.declare" else _exchange
    _, arguments = attempt(method, rights, passive=True)(things)
    channel = guarded(stage)
    if rights == "x":
        with channel.soft(403, None, method):
            channel.call(method, **arguments)
    else:
        channel.call(method, **arguments)


for _rule, _method in (("PERM-03", "exchange.declare"), ("PERM-04", "queue.declare")):
    for _rights in ("c", "w", "r"):
        case(_rule, says=f"passive {_method} with the right {_rights} alone")(
            partial(_passive, _method, _rights)
        )
    case(_rule, says=f"passive {_method} without any right is soft 403", mark="≡4")(
        partial(_passive, _method, "x")
    )


def _text(word: str, attempt: Attempt, what: str, stage: Stage) -> None:
    method, arguments = attempt(_Things(stage))
    name = str(arguments[what])
    thing = stage.the_queue(name) if what == "queue" else stage.the_exchange(name)
    text = f"ACCESS_REFUSED - {word} access to {thing} refused for user '{USER}'"
    channel = guarded(stage)
    with channel.soft(403, text, method):
        channel.call(method, **arguments)


for _word, _attempt, _what in (
    ("configure", _new("queue.declare", "wr"), "queue"),
    ("configure", _exchange("exchange.delete", "wr"), "exchange"),
    ("write", _bind("queue.bind", "cr", "r"), "queue"),
    ("read", _queue("queue.purge", "cw"), "queue"),
    ("read", _bind("queue.bind", "w", "cw"), "exchange"),
):
    case("PERM-02", says=f"the text names {_word} and the {_what}", mark="≡4")(
        partial(_text, _word, _attempt, _what)
    )


@case("PERM-01", says="expressions are searched anywhere in the name, case counts")
def searched(stage: Stage) -> None:
    need_users(stage)
    channel = guarded(stage)
    channel.call("queue.declare", queue=stage.name("abcdef"))
    channel.soft_again(403, None, "queue.declare", queue=stage.name("ABCDEF"))
    channel.soft_again(403, None, "queue.declare", queue=stage.name("c-not-last"))


def _no_publish(text: Text, exchange: str, stage: Stage) -> None:
    channel = guarded(stage)
    with channel.soft(403, text, "basic.publish"):
        channel.publish(exchange, "k", "x")


@case("PERM-05", says="basic.publish needs write on the exchange")
def publish(stage: Stage) -> None:
    things = _Things(stage)
    open_one, closed = things.exchange("w"), things.exchange("cr")
    queue = things.queue("x")
    things.owner.call("queue.bind", queue=queue, exchange=open_one)
    guarded(stage).publish(open_one, "", "x")
    things.owner.holds(queue, 1)
    _no_publish(None, closed, stage)


@case("PERM-05", says="basic.publish to the default exchange needs write on amq.default", mark="≡4")
def publish_to_default(stage: Stage) -> None:
    thing = stage.the_exchange("amq.default")
    _no_publish(f"ACCESS_REFUSED - write access to {thing} refused for user '{USER}'", "", stage)


@case("PERM-05", says="basic.publish to the default exchange without that right is soft 403")
def publish_to_default_code(stage: Stage) -> None:
    _no_publish(None, "", stage)


@case("PERM-05", says="basic.get needs read")
def get(stage: Stage) -> None:
    things = _Things(stage)
    readable, closed = things.queue("r"), things.queue("cw")
    things.owner.publish("", readable, "x")
    things.owner.holds(readable, 1)
    channel = guarded(stage)
    equal(channel.get(readable).body, b"x", "message")
    with channel.soft(403, None, "basic.get"):
        channel.get(closed)


@case("PERM-05", says="settling, qos, recover, tx and confirm need none, nor does direct reply-to")
def needs_none(stage: Stage) -> None:
    things = _Things(stage)
    queue = things.queue("r")
    for body in ("a", "b", "c"):
        things.owner.publish("", queue, body)
    things.owner.holds(queue, 3)
    connection = guarded(stage).connection
    channel = connection.channel(2)
    channel.call("tx.select")
    channel.call("basic.qos", prefetch_count=10)
    channel.ack(channel.get(queue, no_ack=False).tag)
    channel.nack(channel.get(queue, no_ack=False).tag)
    channel.call("tx.commit")
    channel.get(queue, no_ack=False)
    channel.call("basic.recover", requeue=True)
    channel.call("tx.rollback")
    other = connection.channel(3)
    other.call("confirm.select")
    other.consume("amq.rabbitmq.reply-to", no_ack=True)
    other.call("queue.declare", queue="amq.rabbitmq.reply-to", passive=True)


@case("PERM-06", says="without the right a missing name is 403, not 404")
def before_existence(stage: Stage) -> None:
    need_users(stage)
    _no_publish(None, stage.name("cr"), stage)
    channel = guarded(stage)
    missing = stage.name("cw")
    channel.soft_again(403, None, "basic.consume", queue=missing)
    channel.soft_again(403, None, "queue.purge", queue=missing)
    channel.soft_again(403, None, "queue.delete", queue=stage.name("wr"))
    channel.soft_again(404, None, "queue.purge", queue=stage.name("r"))


@case("PERM-06", says="bind: write, then the default exchange, then read, then existence")
def order_of_bind(stage: Stage) -> None:
    things = _Things(stage)
    channel = guarded(stage)
    default = "ACCESS_REFUSED - operation not permitted on the default exchange"
    channel.soft_again(403, None, "queue.bind", queue=things.queue("cr"), exchange="")
    channel.soft_again(403, default, "queue.bind", queue=things.queue("w"), exchange="")
    channel.soft_again(
        403, None, "queue.bind", queue=stage.name("w"), exchange=things.exchange("cw")
    )
    channel.soft_again(
        404, None, "queue.bind", queue=stage.name("w"), exchange=things.exchange("r")
    )


@case("PERM-07", says="a server-named queue is checked under its generated name")
def server_named(stage: Stage) -> None:
    need_users(stage)
    channel = guarded(stage)
    name = channel.call("queue.declare", queue="", exclusive=True).text("queue")
    # The prepared user may configure ^amq\.gen, but neither read nor write it.
    channel.soft_again(403, None, "basic.consume", queue=name)
    channel.call("queue.delete", queue=name)


@case("PERM-08", says="dead-lettering, alternate exchanges and bindings are not checked again")
def not_again(stage: Stage) -> None:
    things = _Things(stage)
    hidden = things.exchange("x")
    graveyard = things.queue("x")
    things.owner.call("queue.bind", queue=graveyard, exchange=hidden)
    source = things.queue("r", dead_letter_exchange=hidden)
    things.owner.publish("", source, "dead")
    things.owner.holds(source, 1)
    channel = guarded(stage)
    channel.reject(channel.get(source, no_ack=False).tag, requeue=False)
    things.owner.holds(graveyard, 1)
    entry = stage.name("w")
    things.owner.call(
        "exchange.declare", exchange=entry, type="direct", arguments={"alternate-exchange": hidden}
    )
    channel.publish(entry, "nobody", "spare")
    chained = things.exchange("w")
    things.owner.call("exchange.bind", source=chained, destination=hidden)
    channel.publish(chained, "", "chained")
    things.owner.holds(graveyard, 3)
    equal(sorted(things.owner.drain(graveyard)), ["chained", "dead", "spare"], "messages")


# --- topics -----------------------------------------------------------------------------------

TOPIC: Final = "topic '{}' in exchange 'amq.topic' in vhost '/' refused for user 'conformance'"


@case("PERM-10", says="a topic publish needs write for its key")
def topic_publish(stage: Stage) -> None:
    things = _Things(stage)
    queue = things.queue("w")
    things.owner.call("queue.bind", queue=queue, exchange="amq.topic", routing_key=f"*.{queue}")
    channel = guarded(stage)
    channel.publish("amq.topic", f"open.{queue}", "x")
    things.owner.holds(queue, 1)
    with channel.soft(403, None, "basic.publish"):
        channel.publish("amq.topic", f"closed.{queue}", "y")
    equal(things.owner.drain(queue), ["x"], "messages")


@case("PERM-10", says="a topic binding needs read for its key, to bind and to unbind")
def topic_bind(stage: Stage) -> None:
    things = _Things(stage)
    queue = things.queue("w")
    channel = guarded(stage)
    open_one: dict[str, Argument] = {
        "queue": queue,
        "exchange": "amq.topic",
        "routing_key": "open.#",
    }
    channel.call("queue.bind", **open_one)
    channel.call("queue.unbind", **open_one)
    for method in ("queue.bind", "queue.unbind"):
        channel.soft_again(403, None, method, **{**open_one, "routing_key": "closed.#"})


@case("PERM-10", says="the text names the word, the key and the exchange", mark="≡4")
def topic_text(stage: Stage) -> None:
    channel = guarded(stage)
    text = f"ACCESS_REFUSED - write access to {TOPIC.format('closed')}"
    with channel.soft(403, text, "basic.publish"):
        channel.publish("amq.topic", "closed", "x")


@case("PERM-10", says="an exchange without topic permissions is open for every key")
def topic_elsewhere(stage: Stage) -> None:
    things = _Things(stage)
    exchange = things.exchange("w", "topic")
    queue = things.queue("x")
    things.owner.call("queue.bind", queue=queue, exchange=exchange, routing_key="#")
    guarded(stage).publish(exchange, "closed", "x")
    things.owner.holds(queue, 1)
