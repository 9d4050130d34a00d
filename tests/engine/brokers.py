"""Two broker processes that share a log on one server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.engine.servers import NatsServer
from tests.integration.broker_process import BrokerProcess, run_command


class Brokers:
    """Two brokers of one log; `leader` and `standby` are those of the start.

    Args:
        directory: for both
        engine: the server of the log
        leader_port: where the leader finds that server, if not at its own
        more: flags of both
    """

    def __init__(
        self,
        directory: Path,
        engine: NatsServer,
        *,
        leader_port: int = 0,
        more: Sequence[str] = (),
    ) -> None:
        self._more = more
        self.log = ("--ha-log", f"nats://127.0.0.1:{engine.ports[0]}", "--ha-stream", "orders")
        made = run_command("ha", "create", "--replicas", "1", *self.log)
        assert made.returncode == 0, made.stderr
        self.leader, self.standby = (
            self._new(directory / name, engine.monitor, port or engine.ports[0])
            for name, port in (("first", leader_port), ("second", 0))
        )

    def _new(self, directory: Path, monitor: str, port: int) -> BrokerProcess:
        directory.mkdir()
        flags = [
            *("--ha-log", f"nats://127.0.0.1:{port}", *self.log[2:], *self._more),
            *("--ha-monitors", monitor, "--ha-unsafe-log", "on", "--ha-takeover-after-s", "2"),
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
