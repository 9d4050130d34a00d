"""Everything durable that the broker has, made by a client: one function for each feature.

Each says in `filling.left` which messages must be found, so that a manifest cannot record a loss.
"""

from __future__ import annotations

import struct
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pamqp.commands as amqp
import pika
import pika.exceptions

from tests.compatibility.observe import vhost_url
from tests.integration.raw_client import BODY, HEADER, RawClient, frame, method
from tests.integration.samples import FULL_FRAME, HEADERS, MIB, PROPERTIES, body_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pika.adapters.blocking_connection import BlockingChannel

    from tests.integration.broker_process import BrokerProcess

TEN_YEARS_MS: Final = 315_360_000_000
# Falls due while the broker is down.
SOON_MS: Final = 6_000
BULKY: Final = 4096
TO_DLX: Final = {"x-dead-letter-exchange": "dlx"}
VHOST: Final = "shop"


def policy(name: str, apply_to: str, **definition: object) -> dict[str, object]:
    """A policy for what has its name."""
    words = {key.replace("_", "-"): value for key, value in definition.items()}
    pattern = f"^{name}$".replace(".", "\\.")
    row = {"vhost": "/", "name": name, "pattern": pattern, "apply-to": apply_to, "priority": 1}
    return row | {"definition": words}


DEFINITIONS: Final[dict[str, object]] = {
    "vhosts": [{"name": "/"}, {"name": VHOST}],
    "policies": [
        policy("policy.short", "queues", max_length=3),
        policy("policy.letters", "queues", dead_letter_exchange="dlx", delivery_limit=4),
        policy("policy.alternate", "exchanges", alternate_exchange="routed.fanout"),
        policy("policy.delaying", "exchanges", delayed_message=True),
        policy("policy.stream", "streams", max_age="10Y"),
    ],
    "operator_policies": [
        policy("policy.ceiling", "queues", max_length=2, message_ttl=TEN_YEARS_MS)
    ],
    "exchanges": [{"vhost": VHOST, "name": "orders", "type": "topic"}],
    "queues": [{"vhost": VHOST, "name": "invoices", "arguments": {"x-queue-type": "quorum"}}],
    "bindings": [
        {
            "vhost": VHOST,
            "source": "orders",
            "destination_type": "queue",
            "destination": "invoices",
            "routing_key": "paid.#",
            "arguments": {"n": 1},
        }
    ],
}


class Filling:
    """A broker that is being filled, and what must be found in it afterwards."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.connection = self.connect()
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        # Bodies by virtual host and queue; arguments of consumers by queue.
        self.left: dict[tuple[str, str], list[bytes]] = {}
        self.consume: dict[str, dict[str, object]] = {}
        self.gone: dict[str, list[str]] = {"queues": [], "exchanges": []}
        # What later versions must do with it, see test_data_directories.py.
        self.probes: list[dict[str, Any]] = []
        # What is not settled stays with these until the broker ends.
        self.held: list[pika.BlockingConnection] = []

    def connect(self, vhost: str = "/") -> pika.BlockingConnection:
        """Another connection."""
        return pika.BlockingConnection(pika.URLParameters(vhost_url(self.broker, vhost)))

    def holder(self) -> BlockingChannel:
        """A channel that stays open until the broker ends."""
        self.held.append(self.connect())
        return self.held[-1].channel()

    @contextmanager
    def another(self) -> Iterator[BlockingChannel]:
        """A channel of another connection."""
        connection = self.connect()
        yield connection.channel()
        connection.close()

    def queue(self, name: str, left: list[bytes] | None = None, /, **arguments: object) -> None:
        """A durable queue in which these are left in the end; `x_max_length` is `x-max-length`."""
        named = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.channel.queue_declare(name, durable=True, arguments=named)
        self.left["/", name] = left or []

    def exchange(self, name: str, kind: str, /, **arguments: object) -> None:
        """A durable exchange."""
        named = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.channel.exchange_declare(name, kind, durable=True, arguments=named)

    def publish(self, key: str, *bodies: bytes, exchange: str = "", **properties: Any) -> None:
        """Publish persistent messages, each confirmed."""
        known = pika.BasicProperties(**{"delivery_mode": 2, **properties})
        for body in bodies:
            self.channel.basic_publish(exchange, key, body, known)

    def is_refused(self, key: str, body: bytes) -> bool:
        """Whether a publish is nacked."""
        try:
            self.publish(key, body)
        except pika.exceptions.NackError:
            return True
        return False

    def probe(self, kind: str, **what: Any) -> None:
        """Something that later versions must do."""
        self.probes.append({"kind": kind, **what})


def numbered(name: str, count: int, size: int = 0) -> list[bytes]:
    """Bodies that tell whose they are."""
    return [f"{name} {number}".encode().ljust(size, b".") for number in range(1, count + 1)]


def take(channel: BlockingChannel, queue: str, count: int) -> list[int]:
    """The tags of so many messages, not settled."""
    return [channel.basic_get(queue)[0].delivery_tag for _ in range(count)]


def heard(channel: BlockingChannel, queue: str) -> int:
    """Messages ready, when all that was said on the channel before has been heard."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


# Each field of a table as it stands on the wire: no client library sends them all.
FIELDS: Final[dict[str, bytes]] = {
    "t": b"\1",
    "b": struct.pack(">b", -5),
    "B": struct.pack(">B", 250),
    "s": struct.pack(">h", -300),
    "u": struct.pack(">H", 65_000),
    "I": struct.pack(">i", -70_000),
    "i": struct.pack(">I", 4_000_000_000),
    "l": struct.pack(">q", -(2**40)),
    "f": struct.pack(">f", 1.5),
    "d": struct.pack(">d", 2.1),
    "D": struct.pack(">Bi", 2, 12_345),
    "S": struct.pack(">I", 6) + "grüß".encode(),
    "x": struct.pack(">I", 3) + b"\0\xff\1",
    "A": struct.pack(">I", 7) + b"t\0" + b"I\0\0\0\7",
    "T": struct.pack(">Q", 1_700_000_000),
    "F": struct.pack(">I", 4) + b"\1nb\3",
    "V": b"",
}


def properties(filling: Filling) -> None:
    """Every property, every type of header, bodies of all sizes; what is transient is lost."""
    sizes = (0, 1, FULL_FRAME - 1, FULL_FRAME, FULL_FRAME + 1, 2 * FULL_FRAME + 1, MIB)
    bodies = [b"properties", b"headers", b"typed", *map(body_of, sizes), b"late"]
    filling.queue("messages", bodies)
    every: dict[str, Any] = {**PROPERTIES}
    filling.publish("messages", b"properties", **every)
    filling.publish("messages", b"headers", headers=HEADERS)
    table = b"".join(b"\1" + (2 * name.encode()) + value for name, value in FIELDS.items())
    block = struct.pack(">HI", 0x3000, len(table)) + table + b"\2"
    with RawClient(filling.broker.url).handshake() as client:
        channel = client.open_channel()
        client.call(channel, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        header = struct.pack(">HHQ", 60, 0, len(b"typed")) + block
        client.send(method(channel, amqp.Basic.Publish(routing_key="messages")))
        client.send(frame(HEADER, channel, header) + frame(BODY, channel, b"typed"))
        client.confirmed_up_to(1)
    filling.publish("messages", b"transient", delivery_mode=1)
    for size in sizes:
        filling.publish("messages", body_of(size))
    filling.publish("messages", b"late", expiration=str(TEN_YEARS_MS))


def copies(filling: Filling) -> None:
    """Keys in CC and BCC; one message in many queues, and settled in some of them."""
    for name in ("copy.key", "copy.cc", "copy.bcc"):
        filling.queue(name, [b"copied"])
    filling.publish("copy.key", b"copied", headers={"CC": ["copy.cc"], "BCC": ["copy.bcc"]})
    filling.exchange("shared", "fanout")
    bodies = numbered("shared", 6)
    settled = {"shared.none": 0, "shared.two": 2, "shared.five": 5, "shared.all": 6}
    for name, count in settled.items():
        filling.queue(name, bodies[count:])
        filling.channel.queue_bind(name, "shared")
    filling.publish("", *bodies, exchange="shared")
    for name, count in settled.items():
        for tag in take(filling.channel, name, count):
            filling.channel.basic_ack(tag)


def acks(filling: Filling) -> None:
    """Ranges and single acks, what was returned, and what is unsettled when the broker ends."""
    bodies = numbered("half", 30)
    gone = {1, 2, 3, 4, 5, 7, 9, 11}
    filling.queue("half", [body for at, body in enumerate(bodies, 1) if at not in gone])
    filling.publish("half", *bodies)
    channel = filling.holder()
    tags = take(channel, "half", 20)
    channel.basic_ack(tags[4], multiple=True)
    for at in (7, 9, 11):
        channel.basic_ack(tags[at - 1])
    channel.basic_reject(tags[11], requeue=True)
    heard(channel, "half")


def transactions(filling: Filling) -> None:
    """Publishes and acks that were committed, rolled back, or neither."""
    bodies = numbered("committed", 5)
    filling.queue("transactions", bodies[2:])
    with filling.another() as channel:
        channel.tx_select()
        for body in bodies:
            channel.basic_publish("", "transactions", body, pika.BasicProperties(delivery_mode=2))
        channel.tx_commit()
        for tag in take(channel, "transactions", 2):
            channel.basic_ack(tag)
        channel.basic_publish("", "transactions", b"never")
        channel.tx_rollback()
        for tag in (1, 2):
            channel.basic_ack(tag)
        channel.tx_commit()
    channel = filling.holder()
    channel.tx_select()
    channel.basic_ack(take(channel, "transactions", 1)[0])
    properties = pika.BasicProperties(delivery_mode=2)
    channel.basic_publish("", "transactions", b"never", properties)
    heard(channel, "transactions")


def routing(filling: Filling) -> None:
    """Exchanges of every type, between each other, internal, alternate, predeclared."""
    names = [f"routed.{number}" for number in range(1, 5)]
    bodies: dict[str, list[bytes]] = {name: [] for name in names}
    for name in names:
        filling.queue(name)
        filling.left["/", name] = bodies[name]
    for kind in ("direct", "fanout", "topic", "headers"):
        filling.exchange(f"routed.{kind}", kind)
    filling.exchange("routed.hash", "x-consistent-hash", hash_header="customer")
    filling.exchange("routed.property", "x-consistent-hash", hash_property="message_id")
    filling.channel.exchange_declare("routed.inside", "fanout", durable=True, internal=True)
    filling.exchange("routed.instead", "direct", alternate_exchange="routed.fanout")
    filling.exchange("policy.alternate", "direct")
    bind, into = filling.channel.queue_bind, filling.channel.exchange_bind
    bind(names[0], "routed.direct", "one")
    bind(names[1], "routed.direct", "two")
    bind(names[2], "routed.fanout")
    bind(names[3], "routed.fanout")
    bind(names[0], "routed.topic", "stock.*.up")
    bind(names[1], "routed.topic", "stock.#")
    bind(names[1], "amq.topic", "#.ü", {"note": "kept", "list": [1, None, {"deep": True}]})
    bind(names[2], "routed.headers", "", {"x-match": "any", "a": 1, "b": "two"})
    bind(names[3], "routed.headers", "", {"x-match": "all", "a": 1, "b": "two"})
    bind(names[0], "routed.hash", "1")
    bind(names[1], "routed.hash", "3")
    into("routed.inside", "routed.topic", "inside")
    bind(names[3], "routed.inside")
    into("routed.direct", "amq.fanout")
    ways: list[tuple[str, str, dict[str, object], tuple[int, ...]]] = [
        ("routed.direct", "one", {}, (1,)),
        ("routed.direct", "none", {}, ()),
        ("routed.fanout", "", {}, (3, 4)),
        ("routed.topic", "stock.x.up", {}, (1, 2)),
        ("routed.topic", "stock", {}, (2,)),
        ("routed.topic", "inside", {}, (4,)),
        ("routed.headers", "", {"a": 1}, (3,)),
        ("routed.headers", "", {"a": 1, "b": "two"}, (3, 4)),
        ("routed.instead", "", {}, (3, 4)),
        ("policy.alternate", "", {}, (3, 4)),
        ("amq.topic", "a.ü", {}, (2,)),
        ("amq.fanout", "two", {}, (2,)),
    ]
    for number, (exchange, key, headers, targets) in enumerate(ways):
        body = b"routed %d" % number
        filling.publish(key, body, exchange=exchange, headers=headers)
        wanted = [f"routed.{target}" for target in targets]
        for name in wanted:
            bodies[name].append(body)
        filling.probe("route", exchange=exchange, key=key, headers=headers, to=wanted)
    for customer in ("ada", "bob", "cy", "dee", "eve", "flo"):
        before = heard(filling.channel, names[0])
        body = b"hashed %s" % customer.encode()
        filling.publish("", body, exchange="routed.hash", headers={"customer": customer})
        target = names[int(heard(filling.channel, names[0]) == before)]
        bodies[target].append(body)
        headers = {"customer": customer}
        filling.probe("route", exchange="routed.hash", key="", headers=headers, to=[target])


def declarations(filling: Filling) -> None:
    """Queues that hold nothing: odd names, arguments without effect, what does not last."""
    name = filling.channel.queue_declare("", durable=True).method.queue
    filling.left["/", name] = []
    for odd in ("größe", "n" * 255, "with space / and #"):
        filling.queue(odd)
    filling.channel.queue_declare("auto", durable=True, auto_delete=True)
    filling.left["/", "auto"] = []
    filling.queue("unused", x_expires=TEN_YEARS_MS, x_message_ttl=TEN_YEARS_MS)
    filling.queue("classic", x_queue_type="classic", x_overflow="drop-head")
    filling.queue(
        "accepted",
        **{"x-queue-mode": "lazy", "x-queue-version": 2, "x-queue-master-locator": "random"},
        **{"x-own": {"deep": [1, "two"]}, "x-max-in-memory-length": 5},
        **{"x-consumer-disconnected-timeout": 1000},
    )
    filling.queue(
        "accepted.quorum",
        **{"x-queue-type": "quorum", "x-quorum-initial-group-size": 3},
        **{"x-max-in-memory-bytes": 1000, "x-queue-leader-locator": "balanced"},
        **{"x-initial-cluster-size": 3, "x-member-placement-tag": "a"},
    )
    filling.queue("timeout", [b"1"], x_consumer_timeout=3_600_000, x_single_active_consumer=True)
    filling.publish("timeout", b"1")
    filling.queue("deleted")
    filling.publish("deleted", b"1")
    filling.channel.queue_delete("deleted")
    del filling.left["/", "deleted"]
    filling.queue("purged")
    filling.publish("purged", b"1", b"2")
    filling.channel.queue_purge("purged")
    other = filling.holder()
    other.queue_declare("passing")
    other.queue_declare("exclusive", exclusive=True, durable=True)
    other.exchange_declare("passing", "direct")
    filling.exchange("deleted", "direct")
    filling.channel.exchange_delete("deleted")
    filling.gone["queues"] += ["deleted", "passing", "exclusive"]
    filling.gone["exchanges"] += ["deleted", "passing"]


def limits(filling: Filling) -> None:
    """Each overflow, full."""
    filling.exchange("dlx", "direct")
    for name in ("maxlen", "refused"):
        filling.queue(f"letters.{name}")
        filling.channel.queue_bind(f"letters.{name}", "dlx", name)
    bodies = numbered("limit", 5)
    key = "x-dead-letter-routing-key"
    filling.queue("limit.head", bodies[2:], x_max_length=3, **TO_DLX, **{key: "maxlen"})
    filling.publish("limit.head", *bodies)
    filling.left["/", "letters.maxlen"] = bodies[:2]
    filling.queue("limit.bytes", bodies[:2], x_max_length_bytes=14, x_overflow="reject-publish")
    filling.publish("limit.bytes", *bodies[:2])
    assert filling.is_refused("limit.bytes", bodies[2])
    filling.queue(
        "limit.dlx",
        bodies[:2],
        **{"x-max-length": 2, "x-overflow": "reject-publish-dlx", key: "refused", **TO_DLX},
    )
    filling.publish("limit.dlx", *bodies[:2])
    assert filling.is_refused("limit.dlx", bodies[2])
    filling.left["/", "letters.refused"] = [bodies[2]]
    lowest: dict[str, object] = {"x-max-length": 3, "x-overflow": "drop-lowest"}
    filling.queue("limit.lowest", [b"9", b"7", b"5"], x_max_priority=10, **lowest)
    for level in (5, 1, 9, 0, 7):
        filling.publish("limit.lowest", b"%d" % level, priority=level)
    filling.probe("room", queue="limit.bytes", takes=0)
    filling.probe("room", queue="limit.dlx", takes=0)
    filling.probe("dropping", queue="limit.head", keeps=3)
    filling.queue("policy.short", bodies[2:])
    filling.publish("policy.short", *bodies)
    filling.probe("dropping", queue="policy.short", keeps=3)
    filling.queue("policy.ceiling", bodies[:1], x_overflow="reject-publish", x_max_length=100)
    filling.publish("policy.ceiling", bodies[0])
    filling.probe("room", queue="policy.ceiling", takes=1)


def dead_letters(filling: Filling) -> None:
    """Rejected ones, and those that nobody takes yet."""
    bodies = numbered("dead", 4)
    filling.queue("letters.rejected", bodies[:3])
    filling.channel.queue_bind("letters.rejected", "dlx", "dead.work")
    filling.queue("dead.work", bodies[3:], **TO_DLX)
    headers = {"CC": ["nowhere"], "BCC": ["nowhere"], "n": 1}
    filling.publish("dead.work", bodies[0], expiration="3600000", headers=headers)
    filling.publish("dead.work", *bodies[1:])
    for tag in take(filling.channel, "dead.work", 3):
        filling.channel.basic_reject(tag, requeue=False)
    filling.queue("letters.policy", bodies[:1])
    filling.channel.queue_bind("letters.policy", "dlx", "policy.letters")
    filling.queue("policy.letters")
    filling.publish("policy.letters", bodies[0])
    filling.channel.basic_reject(take(filling.channel, "policy.letters", 1)[0], requeue=False)

    least: dict[str, object] = {"x-dead-letter-strategy": "at-least-once"}
    filling.queue("dead.kept", **least, **{"x-dead-letter-exchange": "dlx.missing"})
    filling.queue("dead.partly", **least, **{"x-dead-letter-exchange": "dlx.two"})
    filling.exchange("dlx.two", "fanout")
    filling.queue("letters.open", bodies[:1])
    filling.queue("letters.full", [b"full"], x_max_length=1, x_overflow="reject-publish")
    filling.publish("letters.full", b"full")
    for name in ("letters.open", "letters.full"):
        filling.channel.queue_bind(name, "dlx.two")
    for queue, count in (("dead.kept", 2), ("dead.partly", 1)):
        filling.publish(queue, *bodies[:count])
        for tag in take(filling.channel, queue, count):
            filling.channel.basic_reject(tag, requeue=False)
    heard(filling.channel, "dead.partly")
    filling.probe("kept letters", exchange="dlx.missing", count=2)
    filling.probe("refused letter", full="letters.full", taken="letters.open")


def returns(filling: Filling) -> None:
    """Delivery limits with counts, one that was reached, and delayed retries far and near."""
    filling.queue("limited", numbered("limited", 3), x_delivery_limit=9)
    filling.queue("limited.quorum", numbered("limited", 3), x_queue_type="quorum")
    for queue in ("limited", "limited.quorum"):
        filling.publish(queue, *numbered("limited", 3))
        with filling.another() as channel:
            for _ in range(2):
                channel.basic_nack(take(channel, queue, 2)[1], multiple=True, requeue=True)
        take(filling.holder(), queue, 1)
    filling.queue("letters.limit", [b"tired"])
    filling.channel.queue_bind("letters.limit", "dlx", "tired")
    filling.queue("tired", x_queue_type="quorum", x_delivery_limit=1, **TO_DLX)
    filling.publish("tired", b"tired")
    for _ in range(2):
        filling.channel.basic_nack(take(filling.channel, "tired", 1)[0], requeue=True)
    far: dict[str, object] = {"x-delayed-retry-type": "all", "x-delayed-retry-min": TEN_YEARS_MS}
    far |= {"x-delayed-retry-backoff": "exponential", "x-delayed-retry-multiplier": 3}
    far |= {"x-delayed-retry-max": TEN_YEARS_MS}
    filling.queue("retry.far", x_max_length=3, x_overflow="reject-publish", **far)
    filling.publish("retry.far", *numbered("retry", 2))
    for tag in take(filling.channel, "retry.far", 2):
        filling.channel.basic_reject(tag, requeue=True)
    filling.probe("room", queue="retry.far", takes=1)


def delays(filling: Filling) -> None:
    """Held for ten years by each kind of delaying exchange."""
    filling.exchange("delay.typed", "x-delayed-message", x_delayed_type="topic")
    filling.exchange("delay.flag", "direct", x_delayed_exchange=True)
    filling.exchange("policy.delaying", "fanout")
    filling.queue("delayed", [b"at once"])
    for exchange in ("delay.typed", "delay.flag", "policy.delaying"):
        filling.channel.queue_bind("delayed", exchange, "k")
        delay = {"x-delay": TEN_YEARS_MS}
        filling.publish("k", *numbered(exchange, 2), exchange=exchange, headers=delay)
        filling.probe("held", exchange=exchange, key="k", count=2)
    filling.publish("k", b"at once", exchange="delay.typed", headers={"x-delay": -1})


def duplicates(filling: Filling) -> None:
    """Keys of queues and exchanges, of every class."""
    header = "x-deduplication-header"
    on: dict[str, object] = {"x-message-deduplication": True}
    filling.queue("dedup.content", [b"b"], **on)
    filling.queue("dedup.window", [b"b"], x_cache_size=100, **on)
    filling.queue("dedup.letters", [b"b"], x_deduplication_dead_letter=True, **on)
    filling.queue("dedup.lasting", [b"b"], x_cache_ttl=TEN_YEARS_MS, **on)
    for queue in ("dedup.content", "dedup.window", "dedup.letters", "dedup.lasting"):
        for key in (b"a", b"b", b"b"):
            filling.publish(queue, key, headers={header: key.decode()})
        filling.channel.basic_ack(take(filling.channel, queue, 1)[0])
        filling.probe("duplicate", exchange="", key=queue, headers={header: "b"})
    for queue in ("dedup.window", "dedup.lasting"):
        filling.probe("duplicate", exchange="", key=queue, headers={header: "a"})
    filling.queue("dedup.routed", [b"key", b"direct", b"int", b"bool"])
    filling.exchange("dedup.fanout", "x-message-deduplication", x_cache_size=100)
    filling.exchange("dedup.direct", "direct", **{"x-deduplication-header": "message-id"}, **on)
    filling.exchange("dedup.memory", "direct", x_cache_persistence="memory", **on)
    for exchange in ("dedup.fanout", "dedup.direct"):
        filling.channel.queue_bind("dedup.routed", exchange, "k")
    filling.publish("k", b"key", exchange="dedup.fanout", headers={header: "key"})
    filling.publish("k", b"direct", exchange="dedup.direct", message_id="id-1")
    filling.publish("k", b"int", exchange="dedup.fanout", headers={header: 7})
    filling.publish("k", b"bool", exchange="dedup.fanout", headers={header: True})
    for known in ("key", 7, True):
        filling.probe("duplicate", exchange="dedup.fanout", key="k", headers={header: known})
    filling.probe("duplicate", exchange="dedup.direct", key="k", headers={}, message_id="id-1")


def order(filling: Filling) -> None:
    """Priorities, and positions in a queue that consumers have asked for."""
    filling.queue("levels", [b"9 1", b"9 2", b"4 3", b"0 0"], x_max_priority=9)
    for number, level in enumerate((0, 9, 200, 4)):
        body = b"%d %d" % (min(level, 9), number)
        filling.publish("levels", body, priority=level)
    filling.queue("levels.quorum", [b"31", b"4", b"0"], x_queue_type="quorum")
    for level in (0, 4, 31):
        filling.publish("levels.quorum", b"%d" % level, priority=level)
    bodies = numbered("sequence", 5)
    filling.queue("sequence", bodies[2:])
    filling.publish("sequence", *bodies)
    filling.consume["sequence"] = {"x-queue-seq": True}
    with filling.another() as channel:
        channel.basic_qos(prefetch_count=3)
        asked = channel.consume("sequence", arguments={"x-queue-seq": True})
        for _ in range(2):
            channel.basic_ack(next(asked)[0].delivery_tag)
        channel.cancel()


def streams(filling: Filling) -> None:
    """Several chunks, retention by each measure, filters; transient ones are kept as well."""
    stream: dict[str, object] = {"x-queue-type": "stream"}
    small: dict[str, object] = {"x-stream-max-segment-size-bytes": 50_000}
    chunks = numbered("chunks", 320, BULKY)
    filling.queue("stream.chunks", chunks, **stream)
    in_transaction(filling, "stream.chunks", chunks[:300])
    # Times count in seconds.
    second = int(time.time()) + 2
    time.sleep(second + 0.1 - time.time())
    in_transaction(filling, "stream.chunks", chunks[300:])
    filling.probe("since", queue="stream.chunks", second=second, at=300)
    filters: dict[str, object] = {"x-stream-filter-size-bytes": 64}
    filling.queue("stream.filtered", numbered("filtered", 6), **stream, **small, **filters)
    for number, body in enumerate(filling.left["/", "stream.filtered"]):
        headers = {"x-stream-filter-value": "even" if number % 2 else "odd"}
        filling.publish("stream.filtered", body, headers=headers, delivery_mode=1)
    retained: dict[str, dict[str, object]] = {
        "stream.count": {"x-max-length": 60, "x-max-age": "10Y", **small},
        "stream.bytes": {"x-max-length-bytes": 100_000, **small},
        "policy.stream": small,
    }
    for name, arguments in retained.items():
        bodies = numbered(name, 150, 1024)
        filling.queue(name, [], **stream, **arguments)
        filling.publish(name, *bodies)
        left = heard(filling.channel, name)
        assert (left < len(bodies)) == (name != "policy.stream"), (name, left)
        filling.left["/", name] = bodies[-left:]
    for name in ("stream.chunks", "stream.filtered", *retained):
        filling.consume[name] = {"x-stream-offset": "first"}
    body = filling.left["/", "stream.chunks"][200]
    filling.probe("offset", queue="stream.chunks", at=200, begins=body[:12].decode())


def in_transaction(filling: Filling, queue: str, bodies: list[bytes]) -> None:
    """Publish persistent messages in one transaction."""
    with filling.another() as channel:
        channel.tx_select()
        for body in bodies:
            channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
        channel.tx_commit()


def backlog(filling: Filling) -> None:
    """Megabytes: segments with summaries, some of which are dead or mostly so."""
    bodies = numbered("backlog", 1000, BULKY)
    filling.queue("backlog", bodies[49::50])
    in_transaction(filling, "backlog", bodies)
    with filling.another() as channel:
        for number, tag in enumerate(take(channel, "backlog", len(bodies)), 1):
            if number % 50:
                channel.basic_ack(tag)
    filling.queue("backlog.dead")
    in_transaction(filling, "backlog.dead", numbered("dead", 600, BULKY))
    filling.channel.queue_purge("backlog.dead")
    filling.queue("backlog.live", numbered("live", 300, BULKY))
    in_transaction(filling, "backlog.live", filling.left["/", "backlog.live"])
    filling.queue("backlog.last")
    in_transaction(filling, "backlog.last", numbered("last", 600, BULKY))


def another_vhost(filling: Filling) -> None:
    """A virtual host with a queue and exchange of the same names as elsewhere."""
    connection = filling.connect(VHOST)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("messages", durable=True)
    channel.exchange_declare("shared", "direct", durable=True)
    filling.left[VHOST, "messages"] = [b"of the shop"]
    filling.left[VHOST, "invoices"] = [b"paid"]
    channel.basic_publish("", "messages", b"of the shop", pika.BasicProperties(delivery_mode=2))
    channel.basic_publish("orders", "paid.now", b"paid")
    connection.close()


def last_moments(filling: Filling) -> None:
    """What falls due while the broker is down: it expires, is released, may be tried again."""
    filling.queue("letters.expired", [b"expired 1", b"expired 2"])
    filling.channel.queue_bind("letters.expired", "dlx", "brief")
    filling.queue("brief", x_message_ttl=SOON_MS, **TO_DLX)
    filling.publish("brief", b"expired 1", b"expired 2")
    filling.queue("letters.own", [b"expired 3"])
    filling.channel.queue_bind("letters.own", "dlx", "own")
    filling.queue("own", **TO_DLX)
    filling.publish("own", b"expired 3", expiration=str(SOON_MS))
    filling.queue("released", [b"released"])
    filling.channel.queue_bind("released", "delay.typed", "soon.#")
    delay = {"x-delay": SOON_MS}
    filling.publish("soon.x", b"released", exchange="delay.typed", headers=delay)
    near: dict[str, object] = {"x-delayed-retry-type": "all", "x-delayed-retry-min": SOON_MS}
    filling.queue("retry.near", [b"again"], **near)
    filling.publish("retry.near", b"again")
    filling.channel.basic_reject(take(filling.channel, "retry.near", 1)[0], requeue=True)
    # Its segments are dead, and still there when the broker is killed.
    filling.channel.queue_purge("backlog.last")
    for queue in ("retry.near", "letters.expired", "letters.own", "released"):
        assert heard(filling.channel, queue) == 0, queue


FEATURES: Final[tuple[Callable[[Filling], None], ...]] = (
    *(backlog, properties, copies, acks, transactions, routing, declarations, limits),
    *(dead_letters, returns, delays, duplicates, order, streams, another_vhost),
)
