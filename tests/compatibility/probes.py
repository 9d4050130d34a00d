"""What a broker must do with what it has found: each kind of probe that a manifest may name.

A probe raises AssertionError when the broker does something else.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import pamqp.commands as amqp
import pika
import pika.exceptions

from tests.compatibility.observe import Consume, Row, delivery, ready, settle
from tests.integration.broker_process import BrokerProcess
from tests.integration.moving import blocking
from tests.integration.raw_client import RawClient

# One more than each delaying exchange holds: see `held`.
DELAYED_MAX: Final = 3


class Visit:
    """A client of a broker on a stored directory."""

    def __init__(self, broker: BrokerProcess, channel: Any, queues: list[Row]) -> None:
        """The channel waits for confirms."""
        self.broker = broker
        self.channel = channel
        self._queues = [(queue["vhost"], queue["name"]) for queue in queues]

    def is_taken(self, exchange: str, key: str, **properties: object) -> bool:
        """Publish one message; whether it is acked rather than nacked."""
        known = pika.BasicProperties(**{"delivery_mode": 2, **properties})
        with suppress(pika.exceptions.NackError):
            self.channel.basic_publish(exchange, key, b"probe", known)
            return True
        return False

    def counts(self) -> dict[tuple[str, str], int]:
        """Messages ready, by virtual host and queue."""
        return ready(self.broker, self._queues)

    def count(self, queue: str) -> int:
        """Messages ready in one queue."""
        return ready(self.broker, [("/", queue)])["/", queue]


def route(visit: Visit, exchange: str, key: str, headers: Row, to: list[str]) -> None:
    """A message reaches these queues and no others."""
    before = visit.counts()
    assert visit.is_taken(exchange, key, headers=headers)
    after = visit.counts()
    assert {name: after[name] - before[name] for name in after if after[name] != before[name]} == {
        ("/", name): 1 for name in to
    }, (exchange, key, headers)


def duplicate(visit: Visit, exchange: str, key: str, **properties: object) -> None:
    """A message whose key is known is confirmed, and is in no queue."""
    before = visit.counts()
    assert visit.is_taken(exchange, key, **properties)
    assert visit.counts() == before, (exchange, key, properties)


def room(visit: Visit, queue: str, takes: int) -> None:
    """A queue takes so many messages and refuses another: what waits unseen counts as well."""
    answers = [visit.is_taken("", queue) for _ in range(takes + 1)]
    assert answers == [True] * takes + [False], (queue, answers)


def dropping(visit: Visit, queue: str, keeps: int) -> None:
    """A queue takes everything and keeps so many."""
    assert all(visit.is_taken("", queue) for _ in range(keeps + 2))
    assert visit.count(queue) == keeps, queue


def held(visit: Visit, exchange: str, key: str, count: int) -> None:
    """An exchange holds so many delayed messages: it takes those that are missing to its limit."""
    delay = {"x-delay": 3_600_000}
    answers = [visit.is_taken(exchange, key, headers=delay) for _ in range(DELAYED_MAX - count + 1)]
    assert answers == [True] * (DELAYED_MAX - count) + [False], (exchange, answers)


def kept_dead_letters(visit: Visit, exchange: str, count: int) -> None:
    """Dead letters go on as soon as the exchange that they are for is there."""
    visit.channel.queue_declare("probe.letters")
    visit.channel.exchange_declare(exchange, "fanout")
    visit.channel.queue_bind("probe.letters", exchange)
    settle(visit.broker, {("/", "probe.letters"): count})


def refused_dead_letter(visit: Visit, full: str, taken: str) -> None:
    """A dead letter goes to the target that had no room for it, and not again to the other."""
    before = visit.count(taken)
    visit.channel.queue_purge(full)
    settle(visit.broker, {("/", full): 1})
    assert visit.count(taken) == before


def offset(visit: Visit, queue: str, at: int, begins: str) -> None:
    """A stream is read from an offset in the middle."""
    row = first_from(visit, queue, at)
    assert row["properties"]["headers"]["x-stream-offset"] == at
    assert begins in row["body"], row


def since(visit: Visit, queue: str, second: int, at: int) -> None:
    """A stream is read from a time on: it knows when its messages came."""
    row = first_from(visit, queue, datetime.fromtimestamp(second, UTC))
    assert row["properties"]["headers"]["x-stream-offset"] == at, row


def first_from(visit: Visit, queue: str, start: int | datetime) -> Row:
    """The first message that a consumer gets who starts there."""
    with RawClient(visit.broker.url).handshake() as client:
        channel = client.open_channel()
        client.call(channel, amqp.Basic.Qos(prefetch_count=1), amqp.Basic.QosOk)
        consume = Consume(queue=queue, arguments={"x-stream-offset": start})
        client.call(channel, consume, amqp.Basic.ConsumeOk)
        return delivery(client)


KINDS: Final[dict[str, Callable[..., None]]] = {
    "route": route,
    "duplicate": duplicate,
    "room": room,
    "dropping": dropping,
    "held": held,
    "kept letters": kept_dead_letters,
    "refused letter": refused_dead_letter,
    "offset": offset,
    "since": since,
}


def run(broker: BrokerProcess, queues: list[Row], probes: list[Row]) -> list[str]:
    """Run probes one after the other; tells what went wrong."""
    wrong = []
    with blocking(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        visit = Visit(broker, channel, queues)
        for probe in probes:
            what = {name: value for name, value in probe.items() if name != "kind"}
            try:
                KINDS[probe["kind"]](visit, **what)
            except AssertionError as error:
                wrong.append(f"{probe}: {error}")
    return wrong
