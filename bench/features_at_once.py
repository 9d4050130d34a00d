"""A million messages that expire, die or fall due in one moment: does anybody else notice?

    python -m bench.features_at_once --out bench/results/features-at-once.json
    python -m bench.features_at_once expiry --count 100000

A queue is filled, then everything in it is over at once: messages that expire stand behind one
that does not, which is taken away; delayed ones all have the same due time. Until the last of
them has gone another connection asks a question every few milliseconds, and a clock in the loop of
the broker (`loop_clock.py`) writes down each pause. The same is measured while nothing happens,
which is what the machine adds.
"""

from __future__ import annotations

import argparse
import json
import shlex
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import frames, process_tree, servers
from bench.client import Address, Client
from bench.frames import number_entry, properties, text_entry
from bench.run import conditions
from bench.servers import Server

QUEUE, GRAVE, ECHO, EXCHANGE = "bench-0", "bench-1", "bench-echo", "bench-later"
BODY: Final = bytes(100)
COUNT: Final = 1_000_000
CHUNK: Final = 500
WINDOW: Final = 5_000
ACK_SIZE: Final = 21
READ_OCTETS: Final = 1024 * 1024
HOUR_MS: Final = 3_600_000
# Delayed messages are all due so long after the first was sent, for each of them.
DUE_US_EACH: Final = 50
ECHO_S: Final = 0.002
POLL_S: Final = 0.05
CALM_S: Final = 5.0
LIMIT_S: Final = 300.0
LONGEST_MS: Final = 50.0
Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Bench:
    """The server, and where its clock writes."""

    server: Server
    clock: Path

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self.server.address


class Echo:
    """Asks how many messages an empty queue has, again and again; keeps the longest wait."""

    def __init__(self, address: Address) -> None:
        self._client = Client(address)
        self._client.call(frames.queue_declare(ECHO))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.longest_ms = 0.0
        self.count = 0

    def __enter__(self) -> Echo:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.call(frames.queue_delete(ECHO))
        self._client.close()

    def _ask(self) -> None:
        question = frames.queue_declare(ECHO, passive=True)
        while not self._stop.wait(ECHO_S):
            began = time.perf_counter()
            self._client.call(question)
            self.longest_ms = max(self.longest_ms, (time.perf_counter() - began) * 1000)
            self.count += 1


def publish_all(address: Address, chunk_at: Callable[[int], bytes], count: int) -> float:
    """Publish in chunks, the last of them confirmed when it returns; seconds."""
    with Client(address) as client:
        client.call(frames.confirm_select())
        client.socket.settimeout(LIMIT_S)
        began = time.perf_counter()
        sent = confirmed = 0
        rest = b""
        while confirmed < count:
            if sent < count and sent - confirmed < WINDOW:
                client.socket.sendall(chunk_at(sent))
                sent += CHUNK
                continue
            rest += client.socket.recv(READ_OCTETS)
            whole = len(rest) // ACK_SIZE * ACK_SIZE
            if whole:
                kind, _, _, ids, tag = struct.unpack_from(">BHIIQ", rest, whole - ACK_SIZE)
                assert (kind, ids) == (frames.METHOD, 60 << 16 | 80), rest
                confirmed = max(confirmed, tag)
                rest = rest[whole:]
        took = time.perf_counter() - began
        client.close()
    return took


def count_in(client: Client, name: str) -> int:
    """Messages that are ready."""
    return frames.queue_name_and_count(client.call(frames.queue_declare(name, passive=True)))[1]


def watched(bench: Bench, over: Callable[[], bool]) -> Row:
    """Wait until it is over, and tell how long others had to wait meanwhile."""
    cpu_s, began, first_s = bench.server.cpu_s() or 0.0, time.perf_counter(), time.monotonic()
    with Echo(bench.address) as echo:
        deadline = began + LIMIT_S
        while not over():
            assert time.perf_counter() < deadline, "it does not end"
            time.sleep(POLL_S)
        took = time.perf_counter() - began
    lines = [tuple(map(float, line.split())) for line in bench.clock.read_text().splitlines()]
    pauses = [(wall_ms, used_ms) for at_s, wall_ms, used_ms, _ in lines if at_s >= first_s]
    return {
        "took_s": round(took, 2),
        "cpu_s": round((bench.server.cpu_s() or 0.0) - cpu_s, 2),
        "longest_echo_ms": round(echo.longest_ms, 1),
        "echo_count": echo.count,
        "longest_pause_ms": round(max((wall for wall, _ in pauses), default=0.0), 1),
        "longest_pause_cpu_ms": round(max((used for _, used in pauses), default=0.0), 1),
        "pauses_over_20_ms": sum(wall > 20 for wall, _ in pauses),
    }


def calm(bench: Bench) -> Row:
    """Nothing happens."""
    until = time.perf_counter() + CALM_S
    return watched(bench, lambda: time.perf_counter() > until)


def expiry(bench: Bench, count: int, arguments: bytes = b"") -> Row:
    """Messages expire behind one that does not, once that is taken away."""
    head = frames.publish("", QUEUE, BODY, persistent=True, block=properties(expiration="3600000"))
    short = frames.publish("", QUEUE, BODY, persistent=True, block=properties(expiration="1"))
    chunk = short * CHUNK
    with Client(bench.address) as client:
        client.call(frames.queue_declare(GRAVE, durable=True))
        client.call(frames.queue_declare(QUEUE, durable=True, arguments=arguments))
        fill_s = publish_all(
            bench.address, lambda at: chunk if at else head + short * (CHUNK - 1), count
        )
        assert count_in(client, QUEUE) == count
        where, due = (GRAVE, count - 1) if arguments else (QUEUE, 0)
        with Client(bench.address) as taker:
            taker.call(frames.get(QUEUE, no_ack=True))
        row = watched(bench, lambda: count_in(client, where) == due)
        client.call(frames.queue_delete(QUEUE))
        client.call(frames.queue_delete(GRAVE))
        client.close()
    return {"fill_s": round(fill_s, 1), **row}


def dead_letters(bench: Bench, count: int) -> Row:
    """The same, and each goes to another queue as a dead letter."""
    to_grave = text_entry("x-dead-letter-exchange", "")
    return expiry(bench, count, to_grave + text_entry("x-dead-letter-routing-key", GRAVE))


def delays(bench: Bench, count: int) -> Row:
    """Delayed messages are due at the same time."""
    due_s = time.perf_counter() + max(count * DUE_US_EACH / 1e6, 2.0)

    def chunk_at(_: int) -> bytes:
        left_ms = max(1, int((due_s - time.perf_counter()) * 1000))
        block = properties(headers=number_entry("x-delay", left_ms))
        return frames.publish(EXCHANGE, "", BODY, persistent=True, block=block) * CHUNK

    with Client(bench.address) as client:
        client.call(
            frames.exchange_declare(
                EXCHANGE, "x-delayed-message", text_entry("x-delayed-type", "fanout"), durable=True
            )
        )
        client.call(frames.queue_declare(QUEUE, durable=True))
        client.call(frames.queue_bind(QUEUE, EXCHANGE, ""))
        fill_s = publish_all(bench.address, chunk_at, count)
        early = count_in(client, QUEUE)
        while time.perf_counter() < due_s - 0.5:
            time.sleep(POLL_S)
        row = watched(bench, lambda: count_in(client, QUEUE) == count)
        client.call(frames.queue_delete(QUEUE))
        client.call(frames.exchange_delete(EXCHANGE))
        client.close()
    return {"fill_s": round(fill_s, 1), "released_while_filling": early, **row}


CASES: Final[dict[str, Callable[[Bench, int], Row]]] = {
    "expiry": expiry,
    "dead_letters": dead_letters,
    "delays": delays,
}


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all when none is named")
    parser.add_argument("--count", type=int, default=COUNT, help="messages (1,000,000)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results there, as JSON")
    options = parser.parse_args()
    rows: dict[str, Row] = {}
    with tempfile.TemporaryDirectory(prefix="vouchmq-bench-") as directory:
        clock = Path(directory) / "pauses"
        command = (
            f"{shlex.quote(sys.executable)} -m bench.loop_clock {clock} serve --port 0 "
            "--data-dir {data_dir} --log-level warning"
        )
        with servers.vouchmq(command, Path(directory)) as server:
            bench = Bench(server, clock)
            for name in options.cases or CASES:
                before = calm(bench)
                row = CASES[name](bench, options.count - options.count % CHUNK)
                assert server.pid is not None
                row["rss_mib"] = process_tree.memory(server.pid).rss_bytes >> 20
                rows[name] = {**row, "calm": before}
                print(name, json.dumps(rows[name]), flush=True)
        where = conditions(Path(directory))
    if options.out:
        results = {"command": "python -m bench.features_at_once " + " ".join(sys.argv[1:])}
        text = {**results, "count": options.count, "conditions": where, "cases": rows}
        options.out.write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
