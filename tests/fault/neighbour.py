"""The well-behaved client who must not notice what others do to the broker."""

from __future__ import annotations

import threading
import time
import uuid
from types import TracebackType

import pika

from tests.waiting import LIMIT_S, Lateness, wait_until

LONGEST_WAIT_S = 1.0


class Neighbour(threading.Thread):
    """Publishes with confirms, gets, acks; keeps the record and the longest wait.

    Used with `with`: at the end it checks that its connection lived through, that nothing was
    lost, doubled or reordered, and that no round trip took longer than `longest_wait_s`
    and what the machine added.
    """

    def __init__(self, url: str, *, longest_wait_s: float = LONGEST_WAIT_S) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._limit_s = longest_wait_s
        self._enough = threading.Event()
        self._settled = threading.Event()
        self.queue = f"neighbour.{uuid.uuid4().hex[:8]}"
        self.rounds = 0
        self.longest_s = 0.0
        self.error: BaseException | None = None
        self._lateness = Lateness()

    def __enter__(self) -> Neighbour:
        """Start, and wait until it is at work."""
        self._lateness.__enter__()
        self.start()
        assert self._settled.wait(LIMIT_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop and judge."""
        before = self.rounds
        wait_until(
            lambda: error is not None or self.rounds >= before + 10 or not self.is_alive(),
            "the neighbour is stuck",
        )
        self._enough.set()
        self.join(LIMIT_S)
        self._lateness.__exit__(None, None, None)
        if error is not None:
            return
        assert self.error is None, f"the neighbour was disturbed: {self.error!r}"
        assert not self.is_alive(), "the neighbour is stuck"
        limit_s = self._limit_s + self._lateness.allowance_s
        assert self.longest_s <= limit_s, f"one round took {self.longest_s:.3f} s of {limit_s:.3f}"

    def run(self) -> None:
        """Work until told to stop."""
        try:
            with pika.BlockingConnection(pika.URLParameters(self._url)) as connection:
                self._work(connection)
        except Exception as error:  # noqa: BLE001 - judged by the test's thread
            self.error = error

    def _work(self, connection: pika.BlockingConnection) -> None:
        channel = connection.channel()
        channel.queue_declare(self.queue, durable=True)
        channel.confirm_delivery()
        persistent = pika.BasicProperties(delivery_mode=2)
        while not self._enough.is_set():
            began = time.monotonic()
            body = b"%d" % self.rounds
            channel.basic_publish("", self.queue, body, persistent, mandatory=True)
            method, _, got = channel.basic_get(self.queue)
            assert method is not None, f"{body!r} is lost"
            assert (got, method.redelivered) == (body, False)
            channel.basic_ack(method.delivery_tag)
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.rounds += 1
            self._settled.set()
            time.sleep(0.002)
        assert channel.queue_delete(self.queue).method.message_count == 0
