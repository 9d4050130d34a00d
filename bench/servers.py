"""The servers under test: started for the run or found where they listen, and stopped again.

Each is a name, an address and the process that listens there; nothing else is known about
it, so that none can be measured differently from the others.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bench import process_tree
from bench.client import Address, BrokerError, Client
from bench.generator import build

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_VOUCHMQ = (
    f"{shlex.quote(sys.executable)} -m vouchmq serve --port 0 --data-dir {{data_dir}} "
    "--log-level warning"
)
READY = re.compile(r"(?<!TLS )ready on [\w.]+:(\d+)")
START_LIMIT_S = 30.0
STOP_LIMIT_S = 15.0
LAVINMQ_PORTS = ("http-port", "mqtt-port", "metrics-http-port", "clustering-port")
"""The other ports it listens on, each with its option."""
FIRST_CONNECTIONS, IDLE_CONNECTIONS, IDLE_S = 50, 400, 0.5
LOOPBACK = ("127.0.0.1", "localhost")


class ServerError(Exception):
    """A server could not be started or is not where it should be."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: `pid` is the root of its process tree, None if that is hidden from us."""

    name: str
    address: Address
    pid: int | None
    version: str
    idle: process_tree.Memory | None
    log: Path | None = None
    connection_bytes: int | None = None
    """Memory that an idle connection takes, where that was measured."""
    more_pids: tuple[int, ...] = ()
    """Roots of further process trees that are part of it: its other nodes."""

    def require_alive(self) -> None:
        """Raise ServerError, with the end of its output, when the process has gone."""
        if self.pid is not None and not process_tree.is_alive(self.pid):
            raise ServerError(f"{self.name} has ended by itself{_tail(self.log)}")

    def cpu_s(self) -> float | None:
        """CPU time of the whole server so far, in seconds."""
        if self.pid is None:
            return None
        return sum(process_tree.cpu_s(pid) for pid in (self.pid, *self.more_pids))


def with_idle_connections(server: Server) -> Server:
    """Measure on a server that has done nothing yet what a connection with a channel takes.

    The first few are for what a server allocates once.
    """
    if server.pid is None:
        return server
    with ExitStack() as stack:
        for _ in range(FIRST_CONNECTIONS):
            stack.enter_context(Client(server.address))
        before = process_tree.memory(server.pid).rss_bytes
        for _ in range(IDLE_CONNECTIONS):
            stack.enter_context(Client(server.address))
        time.sleep(IDLE_S)
        grown = process_tree.memory(server.pid).rss_bytes - before
    return replace(server, connection_bytes=max(grown, 0) // IDLE_CONNECTIONS)


@contextmanager
def vouchmq(
    target: str, directory: Path, *, start_limit_s: float = START_LIMIT_S
) -> Iterator[Server]:
    """Start VouchMQ by a command line, or use the one at an amqp:// URL.

    Raises:
        ServerError: it did not get ready; its last output is in the text.
    """
    if target.startswith("amqp://"):
        yield found("vouchmq", Address.parse(target))
        return
    data_dir = directory / "vouchmq"
    data_dir.mkdir(parents=True)
    command = shlex.split(target.replace("{data_dir}", shlex.quote(str(data_dir))))
    log = directory / "vouchmq.log"
    with started(command, log) as process:
        yield found("vouchmq", Address("127.0.0.1", ready_port(process, log, start_limit_s)), log)


@contextmanager
def sink(directory: Path) -> Iterator[Server]:
    """Start the sink that shows what the generator itself can do."""
    log = directory / "sink.log"
    with started([str(build("sink"))], log) as process:
        yield found("sink", Address("127.0.0.1", ready_port(process, log)), log)


@contextmanager
def rabbitmq(target: str, directory: Path) -> Iterator[Server]:
    """Start a private RabbitMQ node (`start`), or use the one at an amqp:// URL.

    Raises:
        ServerError: the node did not get ready, with what its starter said.
    """
    if target != "start":
        yield found("rabbitmq", Address.parse(target))
        return
    place, port = directory / "rabbitmq", free_rabbitmq_port()
    referee = [sys.executable, str(ROOT / "tools" / "referee.py")]
    start = [*referee, "start", "--port", str(port), "--dir", str(place)]
    done = subprocess.run(start, capture_output=True, text=True, check=False)
    try:
        if done.returncode:
            raise ServerError(f"RabbitMQ did not start: {done.stderr.strip()}")
        yield found("rabbitmq", Address("127.0.0.1", port))
    finally:
        stop = [*referee, "stop", "--dir", str(place)]
        subprocess.run(stop, capture_output=True, check=False)


@contextmanager
def lavinmq(target: str, directory: Path) -> Iterator[Server]:
    """Start LavinMQ by a command line, or use the one at an amqp:// URL.

    The command gets our options: loopback only, free ports, and `tcp_nodelay`, which is off as
    shipped and on in the other brokers; syncs stay as they are.

    Raises:
        ServerError: it is not there or did not get ready; its last output is in the text.
    """
    if target.startswith("amqp://"):
        yield found("lavinmq", Address.parse(target))
        return
    log, data_dir, config = (directory / f"lavinmq{end}" for end in (".log", "", ".ini"))
    config.write_text("[main]\ntcp_nodelay = true\n")
    port, *others = free_ports(1 + len(LAVINMQ_PORTS))
    options = [f"--config={config}", f"--data-dir={data_dir}", "--bind=127.0.0.1"]
    options += [f"--amqp-port={port}", "--amqps-port=-1", "--https-port=-1", "--mqtts-port=-1"]
    options += [f"--{name}={other}" for name, other in zip(LAVINMQ_PORTS, others, strict=True)]
    control = str(directory / "lavinmq.sock")
    command = [*shlex.split(target), *options]
    with started(command, log, LAVINMQ_CONTROL_UNIX_PATH=control) as process:
        _await_listener(process, port, log)
        yield found("lavinmq", Address("127.0.0.1", port), log)


@contextmanager
def started(command: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in a session of its own, with its output in a file; stopped at the end.

    Raises:
        ServerError: there is no such program.
    """
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            )
        except OSError as error:
            raise ServerError(f"{command[0]} cannot be started: {error.strerror}") from error
    try:
        yield process
    finally:
        _stop(process)


def _await_listener(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        if process_tree.listener(port) is not None:
            return
        time.sleep(0.05)
    raise ServerError(f"nobody listens on port {port} after {process.args!r}{_tail(log)}")


def ready_port(process: subprocess.Popen[bytes], log: Path, limit_s: float = START_LIMIT_S) -> int:
    """Wait for the ready line of VouchMQ or of the sink; give the port it names.

    Raises:
        ServerError: it ended or took too long; its last output is in the text.
    """
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if ready := READY.search(log.read_text(errors="replace")):
            return int(ready[1])
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise ServerError(f"no ready line from {process.args!r}{_tail(log)}")


def _tail(log: Path | None) -> str:
    if log is None:
        return ""
    return f"; its output ends with:\n{log.read_text(errors='replace')[-800:].strip()}"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask, wait, then end what is left of it."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin:
        process.stdin.close()


def found(name: str, address: Address, log: Path | None = None) -> Server:
    """Look at a broker that listens.

    Raises:
        ServerError: it is on another machine, or no broker.
    """
    if address.host not in LOOPBACK:
        raise ServerError(f"{address.host} is another machine: its CPU time cannot be read")
    pid = process_tree.listener(address.port)
    idle = process_tree.memory(pid) if pid is not None else None
    return Server(name, address, pid, _version(address), idle, log)


def _version(address: Address) -> str:
    """Read the product's version out of connection.start: a long string under a known key."""
    try:
        with Client(address) as client:
            client.close()
    except (OSError, BrokerError) as error:
        raise ServerError(f"no broker for us on port {address.port}: {error}") from error
    start = client.start.payload
    told = re.search(rb"\x07versionS\x00\x00\x00(.)", start, re.DOTALL)
    return start[told.end() : told.end() + told[1][0]].decode() if told else "unknown"


def free_ports(count: int) -> list[int]:
    """Find ports that nobody listens on, below those that connections get."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            port = random.randrange(max(1024, first - 3600), first)
            probe = stack.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
    return found


def free_rabbitmq_port() -> int:
    """Find a port for a node that also needs the one 20,000 above it."""
    for port in range(15700, 15800):
        try:
            for needed in (port, port + 20000):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", needed))
        except OSError:
            continue
        return port
    raise ServerError("no free port between 15700 and 15800")
