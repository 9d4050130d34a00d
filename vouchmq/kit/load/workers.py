"""The processes of a load: each has one connection, and tells what it has counted.

    publisher: ready ─▶ go ─▶ publishes until it is time ─▶ counts
    consumer:  ready ─▶ takes until it is told to stop ─▶ counts

A body begins with the time at which it was due, in nanoseconds of the machine's monotonic clock,
which all processes share. With a rate a message is due when the rate says so, whether or not the
broker was ready for it: a broker that stalls for a second has a second of late messages, and not
one. Only messages that are due after the warm-up count.
"""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vouchmq.kit.bulk import BulkConnection, BulkError, encode_properties
from vouchmq.kit.load.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

    from vouchmq.kit.bulk import BulkChannel, Returned

STAMP_BYTES: Final = 8
# Of a delivery.
TAG: Final = 0
BODY: Final = 5
TICK_S: Final = 0.001
TAKE: Final = 1000
WAIT_S: Final = 0.2
# A consumer ends when it was told to and nothing has come for so long.
QUIET_S: Final = 1.0

Row = tuple[str, str, bytes, bytes]


class Load(NamedTuple):
    """What one load is.

    Args:
        url: of the broker
        queue: is published to, through the default exchange
        publishers: processes
        consumers: processes
        size_bytes: of a body
        rate: messages in a second, of all publishers; 0: as fast as they can
        window: publishes of one publisher that may be unconfirmed; 0: no confirms
        persistent: delivery mode 2
        prefetch: of each consumer; 0: no limit
        auto_ack: consumers do not acknowledge
        warm_up_s: is not measured
        duration_s: is measured
    """

    url: str
    queue: str
    publishers: int = 1
    consumers: int = 1
    size_bytes: int = 256
    rate: float = 0
    window: int = 1000
    persistent: bool = True
    prefetch: int = 500
    auto_ack: bool = False
    warm_up_s: float = 1.0
    duration_s: float = 10.0


class Watch:
    """Counts confirms and how long each took; see `PublishWatch`."""

    def __init__(self, due_ns: Sequence[int], from_ns: int) -> None:
        self.times = Histogram()
        self.confirmed = 0
        self.nacked = 0
        self.first_row = 0
        self._due_ns = due_ns
        self._from_ns = from_ns

    def sending(self, first: int, rows: Sequence[Row]) -> None:
        """See `PublishWatch`."""

    def settled(self, rows: Sequence[int], *, confirmed: bool) -> None:
        """See `PublishWatch`."""
        now = time.monotonic_ns()
        for row in rows:
            due = self._due_ns[self.first_row + row]
            if due < self._from_ns:
                continue
            if confirmed:
                self.confirmed += 1
                self.times.add((now - due) // 1000)
            else:
                self.nacked += 1

    def returned(self, row: int, message: Returned) -> None:
        """See `PublishWatch`."""


def publish(load: Load, pipe: Connection) -> None:
    """Be a publisher."""
    _reported(pipe, lambda: _publish(load, pipe))


def consume(load: Load, pipe: Connection) -> None:
    """Be a consumer."""
    _reported(pipe, lambda: _consume(load, pipe))


def _reported(pipe: Connection, work: Any) -> None:
    try:
        pipe.send(work())
    except (BulkError, OSError, ValueError) as error:
        pipe.send({"error": str(error)})
    except KeyboardInterrupt:
        pass
    finally:
        pipe.close()


def _publish(load: Load, pipe: Connection) -> dict[str, Any]:
    with BulkConnection.open(load.url, name="vouchmq bench publisher") as connection:
        channel = connection.channel()
        if load.window:
            channel.confirm_select()
        pipe.send("ready")
        begin_ns: int = pipe.recv()
        from_ns = begin_ns + int(load.warm_up_s * 1e9)
        end_ns = from_ns + int(load.duration_s * 1e9)
        due_ns = array("q")
        watch = Watch(due_ns, from_ns)
        rows = _rows(load, due_ns)
        if load.rate:
            _paced(load, channel, rows, watch, begin_ns, end_ns)
        else:
            _unpaced(load, channel, rows, watch, begin_ns, end_ns)
        last_ns = time.monotonic_ns()
        published = sum(1 for each in due_ns if each >= from_ns)
    return {
        "published": published,
        "confirmed": watch.confirmed,
        "nacked": watch.nacked,
        # What was due in time may have been sent late.
        "took_s": max(last_ns, end_ns) / 1e9 - from_ns / 1e9,
        "times": dict(watch.times.counts),
        "most_us": watch.times.most_us,
    }


class _rows:  # noqa: N801 - a maker of rows
    """Makes messages that are due at given times."""

    def __init__(self, load: Load, due_ns: array[int]) -> None:
        self._raw = encode_properties({"delivery_mode": 2 if load.persistent else 1})
        self._rest = bytes(max(0, load.size_bytes - STAMP_BYTES))
        self._queue = load.queue
        self._due_ns = due_ns

    def due(self, at_ns: int) -> Row:
        self._due_ns.append(at_ns)
        body = at_ns.to_bytes(STAMP_BYTES, "big") + self._rest
        return "", self._queue, self._raw, body


def _unpaced(
    load: Load, channel: BulkChannel, rows: _rows, watch: Watch, begin_ns: int, end_ns: int
) -> None:
    """As fast as the window allows: each message is due when it is made."""
    time.sleep(max(0.0, (begin_ns - time.monotonic_ns()) / 1e9))

    def made() -> Iterator[Row]:
        while (now := time.monotonic_ns()) < end_ns:
            yield rows.due(now)

    channel.publish_many(made(), window=load.window or TAKE, watch=watch)


def _paced(
    load: Load, channel: BulkChannel, rows: _rows, watch: Watch, begin_ns: int, end_ns: int
) -> None:
    """All that is due by now, again and again; what is due while they wait goes next."""
    step_ns = 1e9 * load.publishers / load.rate
    number = 0
    due_ns = begin_ns
    while due_ns < end_ns:
        now = time.monotonic_ns()
        batch = []
        watch.first_row = number
        while due_ns <= now and due_ns < end_ns:
            batch.append(rows.due(due_ns))
            number += 1
            due_ns = begin_ns + int(number * step_ns)
        if batch:
            channel.publish_many(batch, window=load.window or len(batch), watch=watch)
        else:
            time.sleep(min(TICK_S, (due_ns - now) / 1e9))


def _consume(load: Load, pipe: Connection) -> dict[str, Any]:
    with BulkConnection.open(load.url, name="vouchmq bench consumer") as connection:
        channel = connection.channel()
        channel.qos(load.prefetch)
        channel.consume(load.queue, no_ack=load.auto_ack)
        pipe.send("ready")
        begin_ns: int = pipe.recv()
        from_ns = begin_ns + int(load.warm_up_s * 1e9)
        end_ns = from_ns + int(load.duration_s * 1e9)
        times = Histogram()
        received = in_time = 0
        last_ns = time.monotonic_ns()
        while True:
            found = channel.wait(1, WAIT_S)
            now = time.monotonic_ns()
            if not found:
                if pipe.poll() and now - last_ns > QUIET_S * 1e9:
                    break
                continue
            last_ns = now
            found += channel.take(TAKE)
            for delivery in found:
                due = int.from_bytes(delivery[BODY][:STAMP_BYTES], "big")
                in_time += from_ns <= now < end_ns
                if from_ns <= due < end_ns:
                    received += 1
                    times.add((now - due) // 1000)
            if not load.auto_ack:
                channel.ack(found[-1][TAG], multiple=True)
        if not load.auto_ack:
            channel.fence()
    return {
        "received": received,
        "in_time": in_time,
        "times": dict(times.counts),
        "most_us": times.most_us,
    }
