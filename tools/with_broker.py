"""Run a command against a fresh broker: `with_broker.py [--referee] -- COMMAND … {url} …`.

The broker gets a free port and a data directory that is removed afterwards. `{url}` in the
command stands for its amqp:// URL. The exit code is the command's, or 1 when the broker itself
ends badly.
"""

from __future__ import annotations

import argparse
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
REFEREE = PROJECT / "tools" / "referee.py"
READY = re.compile(rb"^VouchMQ ready on \S+:(\d+)\s*$", re.MULTILINE)
START_LIMIT_S = 20.0
STOP_LIMIT_S = 20.0


class BrokerError(Exception):
    """The broker did not start or did not end as it should; the text has its output."""


@contextmanager
def ours(directory: Path) -> Iterator[str]:
    """A VouchMQ; gives its URL."""
    output = directory / "output.log"
    command = [
        *(sys.executable, "-m", "server", "serve", "--port", "0"),
        *("--data-dir", str(directory / "data"), "--log-level", "warning"),
        # A refused login is part of the test, waiting for its delay is not.
        *("--auth-failure-delay-s", "0"),
    ]
    with output.open("wb") as stream:
        process = subprocess.Popen(command, cwd=PROJECT, stdout=stream, stderr=stream)
    try:
        yield f"amqp://guest:guest@127.0.0.1:{_port(process, output)}/"
        if process.poll() is not None:
            raise BrokerError(f"the broker has ended:\n{_tail(output)}")
    finally:
        process.terminate()
        try:
            code = process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
    if code:
        raise BrokerError(f"the broker ended with {code}:\n{_tail(output)}")


def _port(process: subprocess.Popen[bytes], output: Path) -> int:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        found = READY.search(output.read_bytes())
        if found:
            return int(found[1])
        time.sleep(0.02)
    raise BrokerError(f"no ready line:\n{_tail(output)}")


def _tail(output: Path) -> str:
    return "\n".join(output.read_text(errors="replace").splitlines()[-40:])


@contextmanager
def referee(directory: Path) -> Iterator[str]:
    """A private RabbitMQ; gives its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        # The node's distribution port lies 20000 above.
        port = free.getsockname()[1] % 20000 + 20000
    options = ["--port", str(port), "--dir", str(directory)]
    done = subprocess.run(
        [sys.executable, REFEREE, "start", *options], stdout=subprocess.PIPE, text=True, check=False
    )
    try:
        if done.returncode:
            raise BrokerError("the referee did not start")
        yield done.stdout.strip()
    finally:
        subprocess.run([sys.executable, REFEREE, "stop", *options], check=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Start, run, stop; returns the command's exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--referee", action="store_true", help="a RabbitMQ instead of ours")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="vouchmq-"))
    start = referee if options.referee else ours
    try:
        with start(directory) as url:
            command = [part.replace("{url}", url) for part in options.command]
            code = subprocess.run(command, cwd=PROJECT, check=False).returncode
    except BrokerError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
