"""Where the time goes between a publish and its delivery, of messages that come alone.

    python -m bench.micro.timeline [--syncs own|helper|broker] [--out FILE]

`latency_2000` is played against a broker of its own, and the kernel tells for half a second when
each thread enters and leaves a system call, and when it is woken (ftrace: as root, with tracefs at
/sys/kernel/tracing). The medians of the steps are told, in microseconds. That the kernel tells
makes each step a little longer.
"""

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from bench import process_tree
from bench.micro.single import run, shape, started
from bench.run import conditions

TRACING: Final = Path("/sys/kernel/tracing")
EVENTS: Final = ("raw_syscalls/sys_enter", "raw_syscalls/sys_exit", "sched/sched_waking")
LINE: Final = re.compile(r"\s*(\S+)-(\d+)\s+\[\d+\]\s+\S+\s+([\d.]+): (\w+): (.*)")
# Of x86-64: what the broker, its helper and the generator call.
READ, WRITE, PWRITE, SEND, RECEIVE, FDATASYNC, EPOLL_PWAIT = 0, 1, 18, 44, 45, 75, 281
# A message of 1 KiB with its frames; nothing else has such a size.
MESSAGE_BYTES: Final = range(1060, 1120)
MESSAGES: Final = 6000
WARM_S, TRACED_S = 1.0, 0.5
STEPS: Final = (
    ("sent", "woken", "the publish is sent, and the broker wakes up"),
    ("woken", "read", "read"),
    ("read", "writes", "parsed, routed, stored; the block is made"),
    ("writes", "written", "the journal is written"),
    ("written", "delivers", "the delivery is made"),
    ("delivers", "wakes", "the delivery is written to the socket, until the consumer is woken"),
    ("wakes", "received", "the consumer wakes up and receives it"),
    ("sent", "received", "all, from publish to delivery"),
    ("syncs", "synced", "the sync, by whoever makes it"),
)


class Event(NamedTuple):
    """A thread has entered (`value` are its arguments) or left a call, or was woken."""

    thread: int
    at_us: float
    kind: str
    number: int
    value: str


def traced(threads: list[int], duration_s: float) -> list[Event]:
    """What these threads do for so long."""
    was_on = (TRACING / "tracing_on").read_text()
    (TRACING / "tracing_on").write_text("0")
    (TRACING / "trace").write_text("")
    (TRACING / "buffer_size_kb").write_text("16384")
    (TRACING / "set_event_pid").write_text(" ".join(map(str, threads)))
    try:
        for each in EVENTS:
            (TRACING / "events" / each / "enable").write_text("1")
        (TRACING / "tracing_on").write_text("1")
        time.sleep(duration_s)
        (TRACING / "tracing_on").write_text("0")
        return list(parse((TRACING / "trace").read_text()))
    finally:
        for each in EVENTS:
            (TRACING / "events" / each / "enable").write_text("0")
        (TRACING / "set_event_pid").write_text("")
        (TRACING / "tracing_on").write_text(was_on)


def parse(text: str) -> Iterator[Event]:
    """The events of a trace."""
    for line in text.splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        _, thread, at_s, kind, rest = match.groups()
        if kind == "sched_waking":
            woken = int(rest.partition("pid=")[2].split()[0])
            yield Event(woken, float(at_s) * 1e6, kind, -1, "")
        else:
            number, _, value = rest.removeprefix("NR ").partition(" ")
            yield Event(int(thread), float(at_s) * 1e6, kind, int(number), value.strip("= ()"))


def messages(events: list[Event], broker: set[int], clients: set[int]) -> list[dict[str, float]]:
    """When each message was where."""
    found: list[dict[str, float]] = []
    seen: dict[str, float] = {}
    for event in events:
        name = _step(event, seen, broker, clients)
        if name == "sent":
            seen = {"sent": event.at_us}
            found.append(seen)
        elif name and name not in seen and "sent" in seen:
            seen[name] = event.at_us
    return [each for each in found if "received" in each and "synced" in each]


def _step(event: Event, seen: dict[str, float], broker: set[int], clients: set[int]) -> str:
    """What this event is in the course of a message; "" for any other."""
    is_entry = event.kind == "sys_enter"
    if event.kind == "sched_waking":
        return "wakes" if event.thread in clients and "delivers" in seen else ""
    if event.thread in clients:
        if is_entry:
            # The third argument, in hexadecimal digits, is the size.
            is_publish = event.number == SEND and _size(event) in MESSAGE_BYTES
            return "sent" if is_publish else ""
        is_delivery = event.number == RECEIVE and _result(event) in MESSAGE_BYTES
        return "received" if is_delivery and "wakes" in seen else ""
    if event.thread not in broker:
        return ""
    entered = {PWRITE: "writes" if "read" in seen else "", FDATASYNC: "syncs"}
    entered[WRITE] = "delivers" if "written" in seen else ""
    left = {PWRITE: "written" if "writes" in seen else "", EPOLL_PWAIT: "woken"}
    left[READ] = "read" if _result(event) in MESSAGE_BYTES else ""
    left[FDATASYNC] = "synced" if "syncs" in seen else ""
    return (entered if is_entry else left).get(event.number, "")


def _size(event: Event) -> int:
    return int(event.value.split(", ")[2], 16)


def _result(event: Event) -> int:
    return int(event.value) if event.kind == "sys_exit" else -1


def measure(arguments: argparse.Namespace, directory: Path) -> dict[str, object]:
    """Play, and trace meanwhile."""
    with started(arguments, directory) as server:
        if server.pid is None:
            raise RuntimeError("the server's process cannot be seen")
        broker = threads_of(process_tree.members(server.pid))
        before = threads_of(process_tree.members(os.getpid()))
        player = threading.Thread(target=run, args=(server, shape("latency_2000", MESSAGES)))
        player.start()
        time.sleep(WARM_S)
        clients = threads_of(process_tree.members(os.getpid())) - before
        events = traced(sorted(broker | clients), TRACED_S)
        player.join()
    seen = messages(events, broker, clients)
    if not seen:
        raise RuntimeError("no message was seen whole; system calls are known by x86-64's numbers")
    steps = {
        what: round(statistics.median(each[end] - each[begin] for each in seen), 1)
        for begin, end, what in STEPS
    }
    return {"messages": len(seen), "median_us": steps}


def threads_of(pids: list[int]) -> set[int]:
    """The threads of these processes."""
    tasks = [process_tree.PROC / str(pid) / "task" for pid in pids]
    return {int(each.name) for task in tasks if task.exists() for each in task.iterdir()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--syncs", choices=("own", "helper", "broker"), default="broker")
    parser.add_argument("--out", type=Path, help="where the times go as JSON")
    arguments = parser.parse_args()
    arguments.lavinmq = ""
    if not (TRACING / "tracing_on").exists():
        parser.exit(2, f"bench.micro.timeline: no tracefs at {TRACING}, or not for this user\n")
    with tempfile.TemporaryDirectory(prefix="vouchmq-timeline-") as place:
        told = {"conditions": conditions(Path(place)), "syncs": arguments.syncs}
        told |= measure(arguments, Path(place))
    sys.stdout.write(json.dumps(told, indent=1) + "\n")
    if arguments.out:
        arguments.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
