"""Curves of messages that pass through: CPU time per message while something else grows.

A fixed number of messages is published, delivered and counted by the generator
(`bench/measure.py`); the stalls include those of the declarations before and the deletions after.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bench import frames
from bench.backlog.load import drain, fill
from bench.client import Client
from bench.curves.curve import Curve
from bench.curves.stage import Stage
from bench.measure import play
from bench.shape import Consumer, Message, Mode, Publisher, Queue, Shape

COUNT: Final = 200_000
QUICK_COUNT: Final = 20_000
GUARD_MS: Final = 300_000
"""A counted round ends when all messages have arrived; this is only its guard."""
BODY_SIZE: Final = 128
BACKLOG_COUNT: Final = 25_000
CONNECTION_COUNT: Final = 10
"""Of consumers, where there are many of them or of their queues."""
KEY_COUNT: Final = 1_000
"""Routing keys in use, if there are so many bindings."""
EXCHANGE: Final = "bench-curve"
QUEUE: Final = "bench-0"
MIB: Final = 1024 * 1024
VOLUME_BYTES: Final = 512 * MIB
"""What a point of the curve over sizes publishes at most."""

DECADES: Final = (1, 10, 100, 1_000, 10_000)
FEW_DECADES: Final = (1, 100, 1_000)
BACKLOGS: Final = (1_000, 10_000, 100_000, 1_000_000)


def _count(*, quick: bool) -> int:
    return QUICK_COUNT if quick else COUNT


def _publisher(keys: tuple[str, ...], count: int) -> Publisher:
    return Publisher(keys, BODY_SIZE, count, backlog_count=BACKLOG_COUNT)


def _kept(keys: tuple[str, ...], count: int) -> Publisher:
    return Publisher(
        keys, BODY_SIZE, count, persistent=True, mode=Mode.WINDOW, window=500, backlog_count=1_000
    )


def _measure(stage: Stage, series: str, shape: Shape) -> None:
    """Play one round and note what a message costs in it."""
    with stage.watched(series):
        played = play(stage.server, replace(shape, duration_ms=GUARD_MS, is_counted=True))
    if played.error:
        raise RuntimeError(played.error)
    stage.series[series] = played.values["cpu_us"]


def _spread(names: tuple[str, ...], *, ack_every: int, prefetch: int) -> tuple[Consumer, ...]:
    """Ten connections with a consumer on each of their share of the queues."""
    shares = [names[first::CONNECTION_COUNT] for first in range(CONNECTION_COUNT)]
    return tuple(
        Consumer(share[0], BODY_SIZE, ack_every, prefetch, more_queues=share[1:])
        for share in shares
        if share
    )


def queues(stage: Stage, size: int, quick: bool) -> None:
    """One publisher to so many queues in turn; ten connections consume all of them."""
    names = tuple(f"bench-{index}" for index in range(size))
    transient = Shape(
        tuple(map(Queue, names)),
        (_publisher(names, _count(quick=quick)),),
        _spread(names, ack_every=0, prefetch=0),
    )
    _measure(stage, "transient, no acks", transient)
    durable = Shape(
        tuple(Queue(name, durable=True) for name in names),
        (_kept(names, _count(quick=quick)),),
        _spread(names, ack_every=1, prefetch=200),
    )
    _measure(stage, "persistent, confirmed, acked", durable)


def copies(stage: Stage, size: int, quick: bool) -> None:
    """One publisher to a fanout exchange with so many queues; counted are the copies."""
    names = tuple(f"bench-{index}" for index in range(size))
    count = max(_count(quick=quick) * 2 // size, 10)
    publisher = replace(_publisher((EXCHANGE,), count), exchange=EXCHANGE, fan_count=size)
    _measure(
        stage,
        "a copy",
        Shape(
            tuple(map(Queue, names)),
            (publisher,),
            _spread(names, ack_every=0, prefetch=0),
            fanout_exchange=EXCHANGE,
        ),
    )


def _bind(key: str, table: bytes = b"") -> bytes:
    names = frames.shortstr(QUEUE) + frames.shortstr(EXCHANGE) + frames.shortstr(key)
    return frames.method(1, (50, 20), b"\0\0" + names + b"\1" + frames.longstr(table))


def _bound(
    kind: str, bindings: list[bytes], publisher: Publisher, *, binding_key: str = ""
) -> Shape:
    return Shape(
        (Queue(QUEUE, binding_key=binding_key),),
        (replace(publisher, exchange=EXCHANGE),),
        (Consumer(QUEUE, BODY_SIZE),),
        fanout_exchange=EXCHANGE,
        exchange_kind=kind,
        more_methods=b"".join(bindings),
    )


def bindings(stage: Stage, size: int, quick: bool) -> None:
    """So many bindings of one exchange, of which each message matches one or two."""
    count = _count(quick=quick)
    keys = tuple(f"order.{index}.new" for index in range(min(size, KEY_COUNT)))
    direct = [_bind(f"order.{index}.new") for index in range(size)]
    patterns = [_bind(f"order.{index}.*") for index in range(size)]
    _measure(stage, "direct", _bound("direct", direct, _publisher(keys, count)))
    _measure(stage, "topic", _bound("topic", patterns, _publisher(keys, count)))
    new_keys = replace(
        _publisher((f"order.{frames.NUMBER.decode()}.new",), count), has_numbers=True
    )
    shape = _bound("topic", patterns, new_keys, binding_key="order.#")
    _measure(stage, "topic, no two keys alike", shape)
    tables = [
        _bind("", frames.text_entry("x-match", "all") + frames.number_entry("order", index))
        for index in range(size)
    ]
    messages = tuple(
        Message(
            "",
            frames.properties(headers=frames.number_entry("order", index), persistent=False),
            128,
        )
        for index in range(min(size, KEY_COUNT))
    )
    by_header = replace(_publisher(("",), count), messages=messages)
    _measure(stage, "headers", _bound("headers", tables, by_header))


def consumers(stage: Stage, size: int, quick: bool) -> None:
    """One queue with so many consumers, on at most fifty connections."""
    connection_count = min(size, 50)
    for series, ack_every, prefetch in (("no acks", 0, 0), ("prefetch 10, acked", 1, 10)):
        one = Consumer(QUEUE, BODY_SIZE, ack_every, prefetch, tag_count=size // connection_count)
        publisher = _publisher((QUEUE,), _count(quick=quick))
        _measure(stage, series, Shape((Queue(QUEUE),), (publisher,), (one,) * connection_count))


def connections(stage: Stage, size: int, quick: bool) -> None:
    """So many connections that publish with ten unconfirmed at most; one consumer."""
    each = max(_count(quick=quick) // size, 20)
    one = Publisher((QUEUE,), BODY_SIZE, each, mode=Mode.WINDOW, window=10)
    _measure(
        stage,
        "transient, window 10",
        Shape((Queue(QUEUE),), (one,) * size, (Consumer(QUEUE, BODY_SIZE),)),
    )


def idle_connections(stage: Stage, size: int, quick: bool) -> None:
    """So many connections that do nothing, beside one publisher and one consumer."""
    idle = [Client(stage.address) for _ in range(size)]
    shape = Shape(
        (Queue(QUEUE),), (_publisher((QUEUE,), _count(quick=quick)),), (Consumer(QUEUE, BODY_SIZE),)
    )
    _measure(stage, "beside them", shape)
    with stage.watched("they all end"):
        for client in idle:
            client.drop()


def sizes(stage: Stage, size: int, quick: bool) -> None:
    """Messages of so many bytes through one queue."""
    volume = VOLUME_BYTES // 8 if quick else VOLUME_BYTES
    count = max(min(volume // size, _count(quick=quick)), 4)
    backlog = max(min(BACKLOG_COUNT, 32 * MIB // size), 2)
    transient = Publisher((QUEUE,), size, count, backlog_count=backlog)
    _measure(
        stage, "transient, no acks", Shape((Queue(QUEUE),), (transient,), (Consumer(QUEUE, size),))
    )
    window = max(min(500, 8 * MIB // size), 1)
    kept = Publisher(
        (QUEUE,),
        size,
        count,
        persistent=True,
        mode=Mode.WINDOW,
        window=window,
        backlog_count=backlog,
    )
    _measure(
        stage,
        "persistent, confirmed, acked",
        Shape((Queue(QUEUE, durable=True),), (kept,), (Consumer(QUEUE, size, 1, window),)),
    )


def backlog(stage: Stage, size: int, quick: bool) -> None:
    """So many messages of 1 KiB wait in one queue: what it costs to store and to drain one."""
    del quick
    for kind, persistent in (("persistent", True), ("transient", False)):
        name = f"bench-{kind}"
        with stage.client() as client:
            client.call(frames.queue_declare(name, durable=True))
        with stage.measured(f"{kind}, stored", size):
            fill(stage.address, [name], size, persistent=persistent)
        with stage.measured(f"{kind}, drained", size):
            drain(stage.address, [name], size)
        with stage.client() as client:
            client.call(frames.queue_delete(name))


FLOWS: Final = (
    Curve(
        "queues", "Queues that one publisher uses in turn", "message", DECADES, FEW_DECADES, queues
    ),
    Curve("copies", "Queues that each message is copied to", "copy", DECADES, FEW_DECADES, copies),
    Curve("bindings", "Bindings of an exchange", "message", DECADES, FEW_DECADES, bindings),
    Curve("consumers", "Consumers of one queue", "message", DECADES, FEW_DECADES, consumers),
    Curve("connections", "Connections that publish", "message", DECADES[:4], (1, 100), connections),
    Curve(
        "idle_connections",
        "Connections that are idle",
        "message",
        DECADES,
        (1, 100),
        idle_connections,
    ),
    Curve(
        "sizes",
        "Bytes of a message",
        "message",
        (16, 256, 4_096, 65_536, MIB, 16 * MIB),
        (16, 4_096, MIB),
        sizes,
    ),
    Curve(
        "backlog",
        "Messages of 1 KiB that wait in a queue",
        "message",
        BACKLOGS,
        (1_000, 10_000),
        backlog,
    ),
)
