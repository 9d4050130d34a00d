"""What compaction costs those who wait for messages, and whether the disk stays within bounds.

    python -m bench.compaction --out bench/results/compaction.json
    python -m bench.compaction pinned --rounds 5 --round-s 20

Each scenario plays 2,000 persistent messages of 1 KiB a second, confirmed and acknowledged, in
rounds by turns: with nothing to compact, and while segments are being emptied. A round of the
second kind counts only if that was so. Beside it the size of the data directory is taken four
times a second and held against the bound: twice what is alive, and three segments.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

from bench import frames
from bench.backlog.broker import Broker, Row, running
from bench.backlog.load import count_in, declare, fill
from bench.client import Client
from bench.measure import Round, play
from bench.scenarios.latency import SCENARIOS as LATENCY
from bench.servers import Server

MIB: Final = 1024 * 1024
BODY: Final = bytes(1024)
SHAPE: Final = next(each.shape for each in LATENCY if each.name == "latency_2000")
SAMPLE_S: Final = 0.25
# Enough segments to be emptied for as long as a round lasts.
BACKLOG_COUNT: Final = 450_000
SETTLE_S: Final = 3.0
CALM_LIMIT_S: Final = 60.0
# A queued copy: header frame and body frame around the body.
COPY_OCTETS: Final = len(BODY) + 45


class Watch:
    """Sizes of the data directory while a block runs, in MiB."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.samples: list[tuple[float, float, int]] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(SAMPLE_S):
            size, count = disk_use(self._directory)
            self.samples.append((round(time.monotonic() - began, 2), round(size, 1), count))

    @property
    def freed(self) -> int:
        """How many segments have gone, at least."""
        counts = [count for _, _, count in self.samples]
        return sum(max(0, before - after) for before, after in pairwise(counts))


def disk_use(directory: Path) -> tuple[float, int]:
    """MiB that all files of the store take, and how many segments there are."""
    size = count = 0
    for path in directory.iterdir():
        try:
            size += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
        count += path.suffix == ".journal"
    return size / MIB, count


@contextmanager
def pinning(broker: Broker, every_s: float) -> Iterator[list[int]]:
    """Publish a message that nobody fetches now and then."""
    stop = threading.Event()
    sent = [0]
    octets = frames.publish("", "pinned", BODY, persistent=True)

    def publish() -> None:
        with Client(broker.address) as client:
            client.call(frames.confirm_select())
            while not stop.wait(every_s):
                client.call(octets)
                sent[0] += 1
            client.close()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()


def pinned(directory: Path, rounds: int, round_s: float, segment_mib: int) -> Row:
    """Old messages that pin every segment: one is published four times in each."""
    segment_s = segment_mib * MIB / (2000 * COPY_OCTETS)
    flags = ("--segment-size-bytes", str(segment_mib * MIB))
    with running(directory / "pinned", *flags) as broker:
        declare(broker.address, ["pinned"])
        row: Row = {"segment_mib": segment_mib}
        plain: list[Round] = []
        during: list[Round] = []
        for _ in range(rounds):
            plain.append(latency(broker, round_s))
            with Watch(broker.data_dir) as watch, pinning(broker, segment_s / 4) as sent:
                during.append(latency(broker, round_s))
            row["freed_segments"] = watch.freed
            row["pins_in_last_round"] = sent[0]
        calm(broker)
        live = count_in(broker.address, ["pinned"])
        row |= verdict(plain, during)
        row |= disk_verdict(watch, live * COPY_OCTETS / MIB, segment_mib)
        size, count = disk_use(broker.data_dir)
        row["at_rest_mib"], row["at_rest_segments"] = round(size, 1), count
        return row


def emptied(directory: Path, rounds: int, round_s: float, segment_mib: int) -> Row:
    """A third of a large backlog is left: everything that lives has to be moved."""
    flags = ("--segment-size-bytes", str(segment_mib * MIB))
    names = ["a", "b", "c"]
    with running(directory / "emptied", *flags) as broker:
        row: Row = {"segment_mib": segment_mib}
        plain: list[Round] = []
        during: list[Round] = []
        for _ in range(rounds):
            declare(broker.address, names)
            fill(broker.address, names, BACKLOG_COUNT)
            time.sleep(SETTLE_S)
            plain.append(latency(broker, round_s))
            with Watch(broker.data_dir) as watch:
                delete(broker, ["b", "c"])
                during.append(latency(broker, round_s))
                calm(broker)
            row["freed_segments"] = watch.freed
            row["moved_mib"] = round(BACKLOG_COUNT // 3 * COPY_OCTETS / MIB)
            row["compaction_s"] = round(rest_s(watch), 1)
            live = count_in(broker.address, ["a"])
            size, _ = disk_use(broker.data_dir)
            bound = 2 * live * COPY_OCTETS / MIB + 3 * segment_mib
            row["at_rest_mib"], row["bound_mib"] = round(size, 1), round(bound, 1)
            row["is_within_bound"] = size <= bound
            row["disk"] = watch.samples[:: max(1, len(watch.samples) // 40)]
            delete(broker, ["a"])
            calm(broker)
        return row | verdict(plain, during)


def rest_s(watch: Watch) -> float:
    """When the last segment went, seconds since the beginning."""
    last = 0.0
    for before, after in pairwise(watch.samples):
        if after[2] < before[2]:
            last = after[0]
    return last


def latency(broker: Broker, round_s: float) -> Round:
    publisher = replace(SHAPE.publishers[0], limit_count=int(2000 * round_s))
    shape = replace(SHAPE, publishers=(publisher,), duration_ms=int(round_s * 1000))
    return play(Server("vouchmq", broker.address, broker.pid, "", None), shape)


def delete(broker: Broker, names: list[str]) -> None:
    with Client(broker.address) as client:
        for name in names:
            client.call(frames.queue_delete(name))
        client.close()


def calm(broker: Broker) -> None:
    """Wait until the data directory has not shrunk for a while."""
    limit = time.monotonic() + CALM_LIMIT_S
    size, since = disk_use(broker.data_dir)[0], time.monotonic()
    while time.monotonic() < limit and time.monotonic() - since < SETTLE_S:
        time.sleep(SAMPLE_S)
        now, _ = disk_use(broker.data_dir)
        if now != size:
            size, since = now, time.monotonic()


def verdict(plain: list[Round], during: list[Round]) -> Row:
    """Percentiles of both kinds of rounds; a round that failed is an error of the bench."""
    failed = [each.error for each in (*plain, *during) if each.error]
    if failed:
        return {"error": failed[0]}
    row: Row = {}
    for name in ("delivery_p50_ms", "delivery_p99_ms", "delivery_max_ms", "confirm_p99_ms"):
        without = [each.values[name] for each in plain]
        within = [each.values[name] for each in during]
        row[name] = {"without": without, "during": within}
        row[f"{name}_ratio"] = round(median(within) / median(without), 2)
    ratio = row["delivery_p99_ms_ratio"]
    row["passes"] = isinstance(ratio, float) and ratio <= 2.0
    row["foreign_cores"] = [each.values["foreign_cores"] for each in (*plain, *during)]
    return row


def disk_verdict(watch: Watch, live_mib: float, segment_mib: int) -> Row:
    bound = 2 * live_mib + 3 * segment_mib
    sizes = sorted(size for _, size, _ in watch.samples)
    within = sum(size <= bound for size in sizes) / max(1, len(sizes))
    return {
        "live_mib": round(live_mib, 2),
        "bound_mib": round(bound, 1),
        "disk_median_mib": sizes[len(sizes) // 2],
        "disk_most_mib": sizes[-1],
        "within_bound_share": round(within, 3),
        "disk": watch.samples[:: max(1, len(watch.samples) // 40)],
    }


SCENARIOS: Final[dict[str, Callable[[Path, int, float, int], Row]]] = {
    "pinned": pinned,
    "emptied": emptied,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compaction", description=__doc__)
    parser.add_argument("scenarios", nargs="*", choices=[*SCENARIOS, []], default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--round-s", type=float, default=20.0, metavar="SECONDS")
    parser.add_argument("--segment-mib", type=int, default=8)
    parser.add_argument("--directory", type=Path, help="where the data directories are made")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: dict[str, Row] = {}
    root = Path(tempfile.mkdtemp(prefix="vouchmq-compaction-", dir=options.directory))
    try:
        for name in options.scenarios or SCENARIOS:
            row = SCENARIOS[name](root, options.rounds, options.round_s, options.segment_mib)
            results[name] = row
            shown = {key: value for key, value in row.items() if key != "disk"}
            print(name, json.dumps(shown, indent=1), flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if options.out:
        document = {"machine": platform.platform(), "scenarios": results}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row.get("passes") for row in results.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
