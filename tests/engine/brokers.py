"""Two broker processes that share a log, on one server or on three, and a publisher."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from tests.engine.servers import Cluster, NatsServer
from tests.integration.broker_process import BrokerProcess, run_command
from tests.waiting import wait_until

PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Brokers:
    """Two brokers of one log; `leader` and `standby` are those of the start.

    Args:
        directory: for both
        engine: the server of the log, or its three
        leader_port: where the leader finds that server, if not at its own
        more: flags of both
        reach: flags of everything that speaks to the log, such as files of TLS
    """

    def __init__(
        self,
        directory: Path,
        engine: NatsServer | Cluster,
        *,
        leader_port: int = 0,
        more: Sequence[str] = (),
        reach: Sequence[str] = (),
    ) -> None:
        self._more = more
        servers = engine.servers if isinstance(engine, Cluster) else (engine,)
        self._monitors = ",".join(each.monitor for each in servers)
        address = ",".join(f"nats://127.0.0.1:{each.ports[0]}" for each in servers)
        self.log = ("--ha-log", address, "--ha-stream", "orders", *reach)
        self._create(len(servers))
        self.leader, self.standby = (
            self._new(directory / name, f"nats://127.0.0.1:{port}" if port else address)
            for name, port in (("first", leader_port), ("second", 0))
        )

    @property
    def settings(self) -> tuple[str, ...]:
        """Flags that name the log, for commands that look at it as a broker does."""
        return (*self.log, "--ha-monitors", self._monitors)

    def _create(self, replicas: int) -> None:
        """As an operator does, once the servers have found each other."""
        said: list[str] = []

        def is_made() -> bool:
            made = run_command("ha", "create", "--replicas", str(replicas), *self.log)
            said.append(made.stderr)
            return made.returncode == 0

        wait_until(is_made, lambda: said[-1])

    def _new(self, directory: Path, address: str) -> BrokerProcess:
        directory.mkdir()
        flags = [
            *("--ha-log", address, *self.log[2:], *self._more),
            *(
                "--ha-monitors",
                self._monitors,
                "--ha-unsafe-log",
                "on",
                "--ha-takeover-after-s",
                "2",
            ),
            *("--node", directory.name, "--log-level", "info"),
        ]
        return BrokerProcess(directory, flags=flags)

    def start(self) -> None:
        """Have the first lead and the second follow it."""
        self.leader.start()
        self.standby.begin()
        self.standby.wait_until(lambda: status(self.standby).get("leader") == "first")

    def kill(self) -> None:
        """End both, also one that is paused."""
        for each in (self.leader, self.standby):
            each.kill9()


def status(broker: BrokerProcess) -> dict[str, object]:
    """What `vouchmq ha status` says; nothing while the broker starts."""
    done = run_command("ha", "status", "--json", "--data-dir", str(broker.data_dir))
    found: dict[str, object] = json.loads(done.stdout) if done.stdout else {}
    return found


class Publisher:
    """A thread that publishes one message after the other, each of them confirmed, until it fails.

    Args:
        broker: where to
        heard: told of each connection.blocked and connection.unblocked
    """

    def __init__(self, broker: BrokerProcess, heard: Callable[[str], object]) -> None:
        self.published: list[bytes] = []
        self.confirmed: list[bytes] = []
        self.failure: Exception | None = None
        self.is_to_end = False
        self._heard = heard
        self._url = broker.url
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with pika.BlockingConnection(pika.URLParameters(self._url)) as connection:
                connection.add_on_connection_blocked_callback(lambda *_: self._heard("blocked"))
                connection.add_on_connection_unblocked_callback(lambda *_: self._heard("unblocked"))
                channel = connection.channel()
                channel.confirm_delivery()
                while not self.is_to_end:
                    body = b"%d" % len(self.published)
                    self.published.append(body)
                    channel.basic_publish("", "q", body, PERSISTENT)
                    self.confirmed.append(body)
        except AMQPError as error:
            self.failure = error

    def wait(self, count: int) -> None:
        """Wait until so many more are confirmed."""
        goal = len(self.confirmed) + count
        wait_until(lambda: self.failure is not None or len(self.confirmed) >= goal, "confirms")
        assert self.failure is None

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()


def declare(broker: BrokerProcess) -> None:
    """A durable queue `q`."""
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        connection.channel().queue_declare("q", durable=True)


def drained(channel: BlockingChannel) -> list[tuple[bytes, bool]]:
    """All messages of the queue, and which of them are said to be redelivered."""
    found: list[tuple[bytes, bool]] = []
    while True:
        method, _, body = channel.basic_get("q", auto_ack=True)
        if method is None:
            return found
        found.append((body, method.redelivered))


def left_on(broker: BrokerProcess) -> list[tuple[bytes, bool]]:
    """The same of a broker."""
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        return drained(connection.channel())
