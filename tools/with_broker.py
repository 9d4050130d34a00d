"""Run a command against a fresh broker: `with_broker.py [--referee] -- COMMAND … {url} …`.

The broker gets a free port and a data directory that is removed afterwards. In the command `{url}`
stands for its amqp:// URL, `{restart}` for a command that restarts it and returns when it is
ready again: ours is killed without warning, a RabbitMQ is asked to end. `{control}` stands for what
an operator says, rabbitmqctl or tools/operate.py, `{tls_port}` and `{tls_files}` for where it
speaks TLS and the folder with certificates for it. The exit code is that of the command, or 1 when
the broker itself ends badly.
"""

from __future__ import annotations

import argparse
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

PROJECT = Path(__file__).resolve().parents[1]
REFEREE = PROJECT / "tools" / "referee.py"
OPERATE = PROJECT / "tools" / "operate.py"
CERTIFICATES = PROJECT / "tools" / "certificates.py"
READY = re.compile(rb"^VouchMQ ready on \S+\s*$", re.MULTILINE)
# Users, virtual hosts and policies that some cases need to find.
PREPARED = PROJECT / "conformance" / "prepared"
# One exchange type of the rules and one way to log in are plugins there.
PLUGINS = ("rabbitmq_consistent_hash_exchange", "rabbitmq_auth_mechanism_ssl")
START_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0
RESTART_LIMIT_S = 120.0
POLL_S = 0.02


class BrokerError(Exception):
    """The broker did not start or did not end as it should; the text has its output."""


class Broker(Protocol):
    """A broker of one kind, on one directory and port."""

    words: dict[str, str]

    def start(self) -> str:
        """Start it; returns its URL when it is ready."""

    def stop(self) -> None:
        """End it and see that it ends well."""

    def restart(self) -> None:
        """End it and start it again on the same port and data."""


def free_port() -> int:
    """A port for a broker: the next one, for TLS, and a RabbitMQ's distribution port are free too.

    Below those that the kernel gives to connections, of which one might come in between.

    Raises:
        BrokerError: there is none
    """
    for port in random.sample(range(20000, 32000, 2), 100):
        with ExitStack() as probes, suppress(OSError):
            for each in (port, port + 1, port + 20000):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", each))
            return port
    raise BrokerError("no free port for the broker")


def make_certificates(directory: Path) -> Path:
    """A folder with certificates for trying TLS.

    Raises:
        BrokerError: they could not be made.
    """
    files = directory / "certificates"
    if subprocess.run([sys.executable, str(CERTIFICATES), str(files)], check=False).returncode:
        raise BrokerError("no certificates for the broker")
    return files


class Ours:
    """A VouchMQ with default settings, TLS and the prepared users."""

    def __init__(self, directory: Path) -> None:
        self._output = directory / "output.log"
        self._data_dir = directory / "data"
        self._port = free_port()
        self._pid = directory / "pid"
        self._definitions = directory / "definitions.json"
        shutil.copy(PREPARED / "vouchmq.json", self._definitions)
        files, tls_port = make_certificates(directory), self._port + 1
        self._tls = [
            *("--tls-port", str(tls_port), "--tls-verify", "verify_peer"),
            *("--tls-cert-file", str(files / "server.pem")),
            *("--tls-key-file", str(files / "server.key")),
            *("--tls-ca-file", str(files / "ca.pem")),
        ]
        self.words = {
            "{control}": shlex.join([sys.executable, str(OPERATE), str(directory), "--"]),
            "{tls_port}": str(tls_port),
            "{tls_files}": str(files),
        }
        self._process: subprocess.Popen[bytes]

    def start(self) -> str:
        """See `Broker`."""
        seen = self._output.stat().st_size if self._output.exists() else 0
        command = [
            *(sys.executable, "-m", "vouchmq", "serve", "--port", str(self._port)),
            *("--data-dir", str(self._data_dir), "--log-level", "info"),
            *("--load-definitions", str(self._definitions), *self._tls),
        ]
        with self._output.open("ab") as stream:
            self._process = subprocess.Popen(command, cwd=PROJECT, stdout=stream, stderr=stream)
        self._pid.write_text(str(self._process.pid))
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if READY.search(self._output.read_bytes(), seen):
                return f"amqp://guest:guest@127.0.0.1:{self._port}/"
            time.sleep(POLL_S)
        self._process.kill()
        self._process.wait()
        raise BrokerError(f"no ready line:\n{self._tail()}")

    def stop(self) -> None:
        """See `Broker`."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            code = self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise BrokerError(f"the broker did not end:\n{self._tail()}") from None
        if code:
            raise BrokerError(f"the broker ended with {code}:\n{self._tail()}")

    def restart(self) -> None:
        """See `Broker`."""
        self._process.kill()
        self._process.wait()
        self.start()

    def _tail(self) -> str:
        return "\n".join(self._output.read_text(errors="replace").splitlines()[-40:])


class Referee:
    """A RabbitMQ node of one's own, with plugins and TLS."""

    def __init__(self, directory: Path) -> None:
        port = free_port()
        node = ["--port", str(port), "--dir", str(directory)]
        files = make_certificates(directory)
        plugins = [word for plugin in PLUGINS for word in ("--enable", plugin)]
        self._options = [*node, *plugins, "--tls", str(files)]
        self.words = {
            "{control}": shlex.join([sys.executable, str(REFEREE), "control", *node, "--"]),
            "{tls_port}": str(port + 1),
            "{tls_files}": str(files),
        }

    def start(self) -> str:
        """See `Broker`."""
        done = self._run("start", "--definitions", str(PREPARED / "definitions.json"))
        if done.returncode:
            raise BrokerError("the referee did not start")
        return done.stdout.strip()

    def stop(self) -> None:
        """See `Broker`."""
        self._run("stop")

    def restart(self) -> None:
        """See `Broker`."""
        self.stop()
        self.start()

    def _run(self, verb: str, *more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(REFEREE), verb, *self._options, *more]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)


def ask_for_restart(directory: Path) -> int:
    """What `{restart}` stands for: leave a note for the process that owns the broker, and wait."""
    note = directory / "restart"
    note.touch()
    deadline = time.monotonic() + RESTART_LIMIT_S
    while note.exists():
        if time.monotonic() > deadline:
            print("the broker was not restarted", file=sys.stderr)
            return 1
        time.sleep(POLL_S)
    return 0


def run(broker: Broker, command: Sequence[str], directory: Path) -> int:
    """Run the command and restart the broker when it asks; returns the command's exit code.

    Raises:
        BrokerError: the broker did not start or end as it should.
    """
    url = broker.start()
    restart = shlex.join([sys.executable, str(Path(__file__)), "--restart", str(directory)])
    note = directory / "restart"
    stands = {"{url}": url, "{restart}": restart, **broker.words}
    filled = list(command)
    for word, meaning in stands.items():
        filled = [part.replace(word, meaning) for part in filled]
    process = subprocess.Popen(filled, cwd=PROJECT)
    try:
        while process.poll() is None:
            if note.exists():
                broker.restart()
                note.unlink()
            time.sleep(POLL_S)
    finally:
        # Still there only when a restart failed.
        process.kill()
        broker.stop()
    return process.returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """Start, run, stop; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--referee", action="store_true", help="a RabbitMQ instead of ours")
    parser.add_argument("--restart", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="*")
    options = parser.parse_args(arguments)
    if options.restart:
        return ask_for_restart(options.restart)
    if not options.command:
        parser.error("a command is needed")
    directory = Path(tempfile.mkdtemp(prefix="vouchmq-"))
    try:
        broker: Broker = Referee(directory) if options.referee else Ours(directory)
        return run(broker, options.command, directory)
    except BrokerError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
