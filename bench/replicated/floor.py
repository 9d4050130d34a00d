"""What the servers of the log leave to a broker: appends of a bare client beside quorum queues.

    python -m bench.replicated.floor --rounds 4 --out bench/results/replicated-floor.json

The client appends records of one size, one after another, to the stream's leader. With the size of
a record in a row of `bench.replicated`, no broker that has one record under way can be faster. The
rows of the quorum queues are played in turn with it.

Exit codes: 0 done, 2 a server could not be started, or a round failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.measure import play
from bench.replicated.__main__ import ROWS, shape_for, store
from bench.replicated.nodes import NODES, LogServer, log_servers, rabbitmq_quorum, wait_for
from bench.run import await_quiet, conditions
from bench.servers import ROOT, ServerError

STREAM: Final = "bench"
SUBJECT: Final = f"vq.{STREAM}.epochs"
INFO: Final = f"$JS.API.STREAM.INFO.{STREAM}"
SECONDS: Final = 2.0
LIMIT_S: Final = 10.0
# Rows, and the bytes and messages of a record that has all that its publisher may have under way.
RECORDS: Final = {"confirm_each": (1365, 1), "confirm_window_100": (106_250, 100)}


class Appender:
    """A plain client of one server of the log."""

    def __init__(self, url: str) -> None:
        host, _, port = url.rpartition("/")[2].partition(":")
        self._socket = socket.create_connection((host, int(port)), LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        self._file.readline()
        self._socket.sendall(b'CONNECT {"verbose":false,"headers":true}\r\nSUB answers 1\r\n')

    def close(self) -> None:
        """Leave the server."""
        self._file.close()
        self._socket.close()

    def ask(self, subject: str, body: bytes, headers: bytes = b"") -> dict[str, Any]:
        """Send a message, and wait for the answer."""
        lead = b"NATS/1.0\r\n%b\r\n\r\n" % headers
        sizes = len(lead), len(lead) + len(body)
        line = b"HPUB %b answers %d %d\r\n" % (subject.encode(), *sizes)
        self._socket.sendall(b"".join((line, lead, body, b"\r\n")))
        while not (line := self._file.readline()).startswith(b"MSG "):
            if not line:
                raise ServerError("a server of the log has closed the connection")
            if line.startswith(b"PING"):
                self._socket.sendall(b"PONG\r\n")
        size = int(line.split()[-1])
        answer: dict[str, Any] = json.loads(self._file.read(size + 2))
        if "error" in answer:
            raise ServerError(f"the log answers {answer['error']}")
        return answer


def append(url: str, size: int, seconds: float) -> float:
    """Append for so long, and return the records of a second."""
    body = os.urandom(size)
    with closing(Appender(url)) as client:
        last = client.ask(INFO, b"")["state"]["last_seq"]
        began = time.monotonic()
        count = 0
        while time.monotonic() - began < seconds:
            headers = b"Nats-Expected-Last-Sequence: %d" % last
            last = client.ask(SUBJECT, body, headers)["seq"]
            count += 1
        return count / (time.monotonic() - began)


def stream_on(logs: Sequence[LogServer]) -> str:
    """Make a stream, and return the address of the server that leads it."""
    urls = [each.url for each in logs]
    create = [sys.executable, "-m", "vouchmq", "ha", "create", "--ha-log", ",".join(urls)]
    create += ["--ha-stream", STREAM]
    wait_for(
        lambda: subprocess.run(create, cwd=ROOT, capture_output=True, check=False).returncode == 0,
        "the stream of the log",
    )
    with closing(Appender(urls[0])) as client:
        return urls[NODES.index(client.ask(INFO, b"")["cluster"]["leader"])]


def measured(directory: Path, round_count: int) -> list[dict[str, object]]:
    """Play all rounds, each row on both."""
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or "nats-server"
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in RECORDS}
    with log_servers(program, directory) as logs, rabbitmq_quorum(directory / "quorum") as nodes:
        at_leader = stream_on(logs)
        server = nodes.server()
        for _ in range(round_count):
            for name, (size, _) in RECORDS.items():
                shape = replace(ROWS[name], duration_ms=int(1000 * SECONDS))
                one = play(server, shape_for(server, shape))
                if one.error:
                    raise ServerError(one.error)
                found[name][0].append(one.values["rate_per_s"])
                await_quiet([server])
                found[name][1].append(append(at_leader, size, SECONDS))
                time.sleep(0.2)
    rows: list[dict[str, object]] = []
    for name, (theirs, ours) in found.items():
        size, count = RECORDS[name]
        rates = [each * count for each in ours]
        ratio = statistics.median(rates) / statistics.median(theirs)
        rows.append(
            {
                "name": name,
                "record_bytes": size,
                "messages_of_a_record": count,
                "servers_of_the_log": spread(rates),
                "rabbitmq_quorum": spread(theirs),
                "ratio": round(ratio, 2),
            }
        )
    return rows


def spread(rates: Sequence[float]) -> dict[str, object]:
    """Their median, and all of them."""
    return {
        "median": round(statistics.median(rates), 1),
        "all": [round(each, 1) for each in rates],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m bench.replicated.floor", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results there, as JSON")
    options = parser.parse_args(given)
    directory = Path(tempfile.mkdtemp(prefix="vouchmq-bench-"))
    try:
        rows = measured(directory, options.rounds)
        where = conditions(directory)
    except ServerError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for row in rows:
        print(json.dumps(row))
    if options.out:
        store(options.out, "bench.replicated.floor", given, where, rows=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
