"""Thousands of clients that come back at once, as after a restart or a broken network.

    python -m bench.abuse storm storm_tls storm_together storm_tls_together

The clients are one process (`python -m bench.abuse.storm`), which connects all of them without
waiting for any, and opens each connection as fast as it is answered. Besides the client that asks
every ten milliseconds, another one holds a connection with heartbeats of one second: what counts
for it is the longest time in which it heard nothing. Of the storm itself the row tells how long
the clients waited for open-ok, and how many at most were served before one that had come earlier.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import resource
import select
import socket
import ssl
import subprocess
import sys
import time
from typing import Final

from bench import frames
from bench.abuse.bystander import holder
from bench.abuse.cases import Case, Stage
from bench.client import Address, BrokerError, handshake_steps
from bench.servers import ROOT

CLIENT_COUNT: Final = 10_000
# Of those that do not speak at first: the broker waits five seconds for the first word of TLS.
SILENT_TLS_COUNT: Final = 2_000
RESERVED_DESCRIPTORS: Final = 64
PATIENCE_S: Final = 240.0
# Where all are there before any of them speaks, so many are connected at a time: fewer than the
# broker's backlog holds, and slowly enough for it to accept them.
BATCH_COUNT: Final = 200
BATCH_S: Final = 0.05
READ_BYTES: Final = 65536
TLS_READY: Final = re.compile(r"TLS ready on [\w.]+:(\d+)")


class Caller:
    """One client of the storm; `opened_s` is when it was told open-ok, 0.0 before."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None) -> None:
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.came_s = time.monotonic()
        self.opened_s = 0.0
        self._unsaid = [octets for _, octets in handshake_steps(address)]
        self._heard = b""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.wrap_bio(self._incoming, self._outgoing) if tls is not None else None
        self._shakes_hands = tls is not None
        result = self.socket.connect_ex((address.host, address.port))
        if result not in {0, errno.EINPROGRESS}:
            raise OSError(result, os.strerror(result))

    def begin(self) -> None:
        """Say the first word."""
        if self._shakes_hands:
            self._shake_hands()
        else:
            self._say_next()

    def hear(self) -> None:
        """Read what has come, and answer.

        Raises:
            BrokerError: the broker has ended the connection
        """
        octets = self.socket.recv(READ_BYTES)
        if not octets:
            raise BrokerError("the broker ended the connection")
        if self._tls is not None:
            self._incoming.write(octets)
            if self._shakes_hands:
                self._shake_hands()
                return
            octets = self._tls.read(READ_BYTES)
        found, self._heard = frames.split(self._heard + octets)
        for frame in found:
            if frame.ids == frames.CONNECTION_CLOSE:
                raise BrokerError(frames.reply_text(frame))
            self._say_next()

    def _shake_hands(self) -> None:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self.socket.send(self._outgoing.read())
        else:
            self._shakes_hands = False
            self._say_next()

    def _say_next(self) -> None:
        if not self._unsaid:
            self.opened_s = time.monotonic()
            return
        octets = self._unsaid.pop(0)
        if self._tls is not None:
            self._tls.write(octets)
            octets = self._outgoing.read()
        self.socket.send(octets)


class Crowd:
    """All clients of the storm."""

    def __init__(self) -> None:
        self.callers: list[Caller] = []
        self.served: list[Caller] = []  # in that order
        self.failures: dict[str, int] = {}
        self.left = 0
        self._by_descriptor: dict[int, Caller] = {}
        self._poll = select.epoll()

    def close(self) -> None:
        """Drop all connections."""
        for caller in self.callers:
            caller.socket.close()
        self._poll.close()

    def add(self, caller: Caller) -> None:
        """One more, which is being connected."""
        self.callers.append(caller)
        self.left += 1
        self._by_descriptor[caller.socket.fileno()] = caller
        self._poll.register(caller.socket, select.EPOLLOUT)

    def go_on(self, timeout_s: float) -> None:
        """Let those speak and hear that can."""
        for descriptor, events in self._poll.poll(timeout_s):
            caller = self._by_descriptor[descriptor]
            try:
                if events & select.EPOLLOUT:
                    self._poll.modify(descriptor, select.EPOLLIN)
                    caller.begin()
                else:
                    caller.hear()
            except (BrokerError, OSError) as error:
                self.failures[str(error)] = self.failures.get(str(error), 0) + 1
            else:
                if not caller.opened_s:
                    continue
                self.served.append(caller)
            self._poll.unregister(descriptor)
            self.left -= 1


def play(
    crowd: Crowd, address: Address, count: int, *, is_tls: bool = False, together: bool = False
) -> dict[str, object]:
    """Be that many clients until each is served or refused; returns what the row tells of them."""
    tls = None
    if is_tls:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    for number in range(count):
        crowd.add(Caller(address, tls))
        if number % BATCH_COUNT == BATCH_COUNT - 1:
            if together:
                time.sleep(BATCH_S)
            else:
                crowd.go_on(0.0)
    began_s = time.monotonic()
    if together:
        for caller in crowd.callers:
            caller.came_s = began_s
    while crowd.left and time.monotonic() - began_s < PATIENCE_S:
        crowd.go_on(1.0)
    found = told(crowd.callers, crowd.served)
    return {**found, "storm_unserved": crowd.left, "storm_failures": crowd.failures}


def told(callers: list[Caller], order: list[Caller]) -> dict[str, object]:
    """How many were served, how long they waited, and how many overtook one of them at most."""
    waits_ms = sorted((caller.opened_s - caller.came_s) * 1000 for caller in order)
    places = {caller: place for place, caller in enumerate(callers)}
    row: dict[str, object] = {"storm_served": len(order), "storm_overtaken": 0}
    if not waits_ms:
        return row
    # How far behind its turn anybody was served: those that came later and were served before.
    row["storm_overtaken"] = max(at - places[caller] for at, caller in enumerate(order))
    row["storm_p50_ms"] = round(waits_ms[len(waits_ms) // 2])
    row["storm_worst_ms"] = round(waits_ms[-1])
    return row


# The cases.


def gather(stage: Stage, *options: str, count: int = CLIENT_COUNT) -> None:
    """Start the clients' process; they wait for a word."""
    port = stage.address.port
    if "--tls" in options:
        found = TLS_READY.search((stage.directory / "vouchmq.log").read_text())
        assert found is not None, "the broker has no TLS port"
        port = int(found[1])
    url = f"amqp://guest:guest@{stage.address.host}:{port}/%2F"
    command = [sys.executable, "-m", "bench.abuse.storm", url, str(stage.sized(count))]
    process = subprocess.Popen(
        [*command, *options], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    stage.stack.callback(process.wait)
    stage.stack.callback(process.kill)
    stage.processes.append(process)


def storm(stage: Stage) -> None:
    """Let the clients loose beside one with heartbeats; over when all have been served."""
    process = stage.processes[0]
    assert process.stdin is not None
    assert process.stdout is not None
    with holder(stage.address) as held:
        process.stdin.write("go\n")
        process.stdin.flush()
        stage.found.update(json.loads(process.stdout.readline()))
    stage.found["heartbeat_gap_ms"] = round(held.worst_ms)
    if held.error:
        stage.found["error"] = f"the client with heartbeats: {held.error}"
    elif stage.found["storm_unserved"] or stage.found["storm_failures"]:
        stage.found["error"] = "not all were served"


TLS_FLAGS: Final = (
    *("--tls-port", "{tls_port}", "--tls-cert-file", "{certificates}/server.pem"),
    *("--tls-key-file", "{certificates}/server.key"),
)
STORMS: Final = (
    Case("storm", "10,000 clients connect at once", gather, storm),
    Case(
        "storm_tls",
        "10,000 clients connect at once with TLS",
        lambda stage: gather(stage, "--tls"),
        storm,
        TLS_FLAGS,
    ),
    Case(
        "storm_together",
        "10,000 clients that are connected say their first word at once",
        lambda stage: gather(stage, "--together"),
        storm,
    ),
    Case(
        "storm_tls_together",
        "2,000 of them with TLS",
        lambda stage: gather(stage, "--tls", "--together", count=SILENT_TLS_COUNT),
        storm,
        TLS_FLAGS,
    ),
)


def main() -> None:
    """Be the clients, as soon as a line comes in; hold their connections until the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("count", type=int)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--together", action="store_true")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and options.count > hard - RESERVED_DESCRIPTORS:
        parser.error(f"this process may have {hard} descriptors only")
    sys.stdin.readline()
    crowd = Crowd()
    found = play(
        *(crowd, Address.parse(options.url), options.count),
        is_tls=options.tls,
        together=options.together,
    )
    print(json.dumps(found), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
