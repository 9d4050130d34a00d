"""The well-behaved client who must not notice what others do to the broker."""

from __future__ import annotations

import threading
import time
import uuid
from types import TracebackType

import pika
import psutil

from tests.integration.broker_process import Broker, BrokerProcess
from tests.waiting import LIMIT_S, wait_until

MOST_WORK_S = 1.0


class Neighbour(threading.Thread):
    """Publishes with confirms, gets, acks; keeps the record and the longest wait.

    Used with `with`: at the end it checks that its connection lived through, that nothing was
    lost, doubled or reordered, and that the broker did nothing for long while it waited. How long
    it waited says little: other programs have the processor, too. So it is counted how much of a
    processor the broker itself used during each round.
    """

    def __init__(self, broker: Broker) -> None:
        super().__init__(daemon=True)
        self._url = broker.url
        self._process = psutil.Process(broker.pid) if isinstance(broker, BrokerProcess) else None
        self._enough = threading.Event()
        self._settled = threading.Event()
        self.queue = f"neighbour.{uuid.uuid4().hex[:8]}"
        self.rounds = 0
        self.most_work_s = 0.0
        self.error: BaseException | None = None

    def __enter__(self) -> Neighbour:
        """Start, and wait until it is at work."""
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
        if error is not None:
            return
        assert self.error is None, f"the neighbour was disturbed: {self.error!r}"
        assert not self.is_alive(), "the neighbour is stuck"
        work_s = self.most_work_s
        assert work_s <= MOST_WORK_S, f"the broker worked {work_s:.3f} s while one round waited"

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
            before_s = self._worked_s()
            body = b"%d" % self.rounds
            channel.basic_publish("", self.queue, body, persistent, mandatory=True)
            method, _, got = channel.basic_get(self.queue)
            assert method is not None, f"{body!r} is lost"
            assert (got, method.redelivered) == (body, False)
            channel.basic_ack(method.delivery_tag)
            self.most_work_s = max(self.most_work_s, self._worked_s() - before_s)
            self.rounds += 1
            self._settled.set()
            time.sleep(0.002)
        assert channel.queue_delete(self.queue).method.message_count == 0

    def _worked_s(self) -> float:
        """How much of a processor a broker of ours has used so far."""
        if self._process is None:
            return 0.0
        used = self._process.cpu_times()
        return used.user + used.system
