"""A model of what Spark does with a source, and hands for the broker behind it.

`Query` makes the calls that a micro-batch query makes, in its order, with a checkpoint and a sink
that knows batches by their number, as the file sink does. It can be killed between any two calls.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadLimit

from tests.pipeline.asked_twice import AskedTwice
from tests.waiting import LIMIT_S, wait_until
from vouchmq.kit import bulk
from vouchmq.spark.columns import ALL
from vouchmq.spark.options import SourceOptions
from vouchmq.spark.source.queue_mode import QueueReader, stream_reader
from vouchmq.spark.source.spool_mode import SpoolReader

PERSISTENT = {"delivery_mode": 2}
# Most of it depends on no broker's ways; what does is tried with both.
both = pytest.mark.parametrize("broker", ["vouch", "rabbit"], indirect=True)


class Killed(Exception):  # noqa: N818 - what happened
    """The query ended where the test wanted it."""


class Query:
    """A streaming query: `start`, `trigger` as often as wanted, `kill`, `start` again.

    Args:
        options: of the source
        columns: of the rows
        is_sink_idempotent: whether the sink recognises a batch by its number
    """

    def __init__(
        self,
        columns: tuple[str, ...] = ("message_id", "redelivered", "offset"),
        *,
        is_sink_idempotent: bool = True,
        **options: Any,
    ) -> None:
        self.options = {name: str(value) for name, value in options.items()}
        self.columns = columns
        self.is_sink_idempotent = is_sink_idempotent
        self.offsets: list[dict[str, Any]] = []
        self.committed = 0
        self.sink: dict[int, list[dict[str, Any]]] = {}
        self.extra: list[dict[str, Any]] = []
        self._reader: Any = None
        self._is_available_now = False

    def twin(self, **changes: str) -> Query:
        """Another query with the same options, on a checkpoint of its own."""
        other = Query(self.columns)
        other.options = {**self.options, **changes}
        return other

    @property
    def reader(self) -> Any:
        assert self._reader is not None, "the query does not run"
        return self._reader

    @property
    def driver(self) -> Any:
        return self.reader.driver

    def start(self, *, available_now: bool = False) -> None:
        """Begin, with the batch that was under way if there is one."""
        reader = stream_reader(SourceOptions.parse(self.options), self.columns)
        assert isinstance(reader, QueueReader | SpoolReader)
        self._reader = AskedTwice(reader)
        self._is_available_now = available_now
        if available_now:
            self._reader.prepareForTriggerAvailableNow()
        if self.committed < len(self.offsets):
            self._run(len(self.offsets) - 1)

    def trigger(self, until: str = "") -> int:
        """One micro-batch; the rows it had. `until` names the step after which the query dies.

        Steps: offset, logged, planned, sunk.
        """
        start = self._start_of(len(self.offsets))
        end = self._through_json(self.reader.latestOffset(start, self._limit()))
        self._die_after("offset", until)
        if json.dumps(end) == json.dumps(start):
            return 0
        self.offsets.append(end)
        self._die_after("logged", until)
        return self._run(len(self.offsets) - 1, until)

    def first_rows(self) -> int:
        """Trigger until a batch has rows; how many. A busy broker delivers nothing at first."""
        wait_until(lambda: bool(self.ids()), "no message came", between=self.trigger)
        return len(self.ids())

    def wait_for(self, count: int) -> None:
        """Wait until the next batch can have so many messages; after the first rows."""
        wait_until(lambda: self._arrived() >= count, lambda: f"{self._arrived()} of {count} came")

    def drain(self, patience: int = 2) -> int:
        """Trigger until nothing has come so many times, and nothing can; how many rows came.

        A run that takes what is there now ends by itself and may leave something.
        """
        rows = quiet = 0
        while quiet < patience:
            got = self.trigger()
            rows += got
            quiet = 0 if got else quiet + 1
            if not got and not self._is_available_now:
                wait_until(self._has_arrived, "a queue keeps messages from its consumer")
                quiet = 0 if self._arrived() else quiet
        return rows

    def _has_arrived(self) -> bool:
        """Whether the broker has nothing left to deliver, or what it delivered can be taken."""
        consumer = self.driver._consumer
        consumer.check()
        # What was delivered before the second answer has arrived with it.
        is_empty = consumer.is_connected and not consumer.ready_count() + consumer.ready_count()
        return is_empty or self._arrived() > 0

    def _arrived(self) -> int:
        count: int = self.driver._consumer.arrived()[0]
        return count

    def drain_to(self, count: int) -> None:
        """Trigger until the sink has so many different messages, however long they take."""
        wait_until(
            lambda: len(self.ids()) >= count,
            lambda: f"{len(self.ids())} of {count} messages came",
            between=self.trigger,
        )

    def kill(self) -> None:
        """The process is gone, and with it the connection."""
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

    def ids(self) -> Counter[str]:
        """How often each message id is in the sink."""
        rows = [row for batch in self.sink.values() for row in batch] + self.extra
        return Counter(row["message_id"] for row in rows)

    def _start_of(self, batch: int) -> dict[str, Any]:
        if batch:
            return self.offsets[batch - 1]
        return self._through_json(self.reader.initialOffset())

    def _limit(self) -> ReadLimit:
        limit: ReadLimit = self.reader.getDefaultReadLimit()
        return limit

    def _run(self, batch: int, until: str = "") -> int:
        if batch in self.sink and self.is_sink_idempotent:
            # The file sink has it: Spark does not even ask for the tasks.
            self.committed = batch + 1
            return 0
        end = self.offsets[batch]
        tasks = self.reader.partitions(self._start_of(batch), end)
        self._die_after("planned", until)
        rows = [
            row for task in tasks for each in self.reader.read(task) for row in each.to_pylist()
        ]
        if batch in self.sink:
            self.extra += rows
        else:
            self.sink[batch] = rows
        self._die_after("sunk", until)
        self.committed = batch + 1
        return len(rows)

    def _die_after(self, step: str, until: str) -> None:
        if step == until:
            self.kill()
            raise Killed(step)

    @staticmethod
    def _through_json(offset: dict[str, Any]) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(json.dumps(offset))
        return loaded


@contextlib.contextmanager
def channel_to(url: str) -> Iterator[bulk.BulkChannel]:
    """A channel for a moment."""
    with bulk.BulkConnection.open(url) as connection, connection.channel() as channel:
        yield channel


def fill(url: str, queue: str, ids: Iterable[Any], **properties: Any) -> None:
    """Publish a confirmed message for each id."""
    rows = [
        (
            "",
            queue,
            bulk.encode_properties({**PERSISTENT, "message_id": str(each), **properties}),
            str(each).encode(),
        )
        for each in ids
    ]
    with channel_to(url) as channel:
        channel.confirm_select()
        assert channel.publish_many(rows).confirmed == len(rows)


def declare(url: str, queue: str, **arguments: Any) -> None:
    """A durable queue."""
    table = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    with channel_to(url) as channel:
        channel.declare(queue, durable=True, arguments=table)


def ready(url: str, queue: str) -> int:
    """Messages that wait in a queue."""
    with channel_to(url) as channel:
        return channel.declare_passive(queue)[0]


def settles_at(url: str, queue: str, count: int, limit_s: float = LIMIT_S) -> bool:
    """Whether a queue has so many ready messages, now or in a moment."""
    try:
        wait_until(lambda: ready(url, queue) == count, limit_s=limit_s)
    except AssertionError:
        return False
    return True


class Cutter:
    """A proxy whose connections can be cut."""

    def __init__(self, url: str) -> None:
        at = url.rindex("@") + 1
        end = url.index("/", at)
        host, port = url[at:end].split(":")
        self._there = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"{url[:at]}127.0.0.1:{self._listening.getsockname()[1]}{url[end:]}"
        self._sockets: list[socket.socket] = []
        self._run(self._accept)

    def cut(self) -> None:
        """End all connections."""
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self) -> None:
        """And take no more."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listening.accept()
                there = socket.create_connection(self._there)
            except OSError:
                return
            self._sockets += [here, there]
            self._run(self._copy, here, there)
            self._run(self._copy, there, here)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _run(work: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()


__all__ = ["ALL", "Cutter", "Killed", "Query", "channel_to", "declare", "fill", "ready"]


def once(count: int) -> dict[str, int]:
    """The ids of so many messages, each of which came once."""
    return {str(number): 1 for number in range(count)}
