"""One load from start to end: a queue, the processes, their counts together.

    queue ─▶ consumers, publishers ─▶ all ready ─▶ go ─▶ publishers end ─▶ consumers have the rest

A process for each connection: in one they would wait for each other. Must not know how results are
asked for.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from typing import TYPE_CHECKING, Any, Final, TextIO

from vouchmq.kit.bulk import BulkConnection, BulkError
from vouchmq.kit.load.histogram import Histogram
from vouchmq.kit.load.workers import STAMP_BYTES, Load, consume, publish

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

START_LIMIT_S: Final = 60.0
# From the last process that is ready to the first message.
HEAD_START_S: Final = 0.2
# Publishers that a broker blocks, and consumers that have a backlog, may take their time.
END_LIMIT_S: Final = 120.0
# A rate is too high for a broker, or for the machine, when it takes so much longer.
LATE: Final = 1.1
PERCENTS: Final = (50.0, 95.0, 99.0, 99.9)

Result = dict[str, Any]


class LoadFailed(Exception):  # noqa: N818 - the load is what has failed
    """A load that could not be measured."""


def measure(load: Load, arguments: dict[str, object]) -> Result:
    """Declare a queue, run a load on it, and delete it again.

    Raises:
        LoadFailed: the broker is not there, refuses, or ends meanwhile
    """
    if load.size_bytes < STAMP_BYTES:
        raise LoadFailed(f"a body has {STAMP_BYTES} bytes at least, which are its time")
    try:
        with BulkConnection.open(load.url, name="vouchmq bench") as connection:
            channel = connection.channel()
            is_stream = arguments.get("x-queue-type") == "stream"
            channel.declare(load.queue, durable=load.persistent or is_stream, arguments=arguments)
            try:
                return _run(load)
            finally:
                connection.channel().delete(load.queue)
    except (BulkError, OSError, ValueError) as error:
        raise LoadFailed(str(error)) from None


def _run(load: Load) -> Result:
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []
    groups: list[list[Connection]] = []
    try:
        for work, count in ((consume, load.consumers), (publish, load.publishers)):
            pipes = []
            for _ in range(count):
                here, there = context.Pipe()
                process: BaseProcess = context.Process(target=work, args=(load, there), daemon=True)
                process.start()
                there.close()
                processes.append(process)
                pipes.append(here)
            groups.append(pipes)
            for pipe in pipes:
                _heard(pipe, START_LIMIT_S)
        consumers, publishers = groups
        begin_ns = time.monotonic_ns() + int(HEAD_START_S * 1e9)
        for pipe in (*consumers, *publishers):
            pipe.send(begin_ns)
        limit_s = HEAD_START_S + load.warm_up_s + load.duration_s + END_LIMIT_S
        sent = [_heard(pipe, limit_s) for pipe in publishers]
        for pipe in consumers:
            pipe.send("stop")
        taken = [_heard(pipe, END_LIMIT_S) for pipe in consumers]
        return _together(load, sent, taken)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _heard(pipe: Connection, limit_s: float) -> Any:
    """What a process tells next.

    Raises:
        LoadFailed: nothing, or that it has failed
    """
    try:
        if not pipe.poll(limit_s):
            raise LoadFailed(f"a process of the load did not answer in {limit_s:g} s")
        told = pipe.recv()
    except EOFError:
        raise LoadFailed("a process of the load has ended") from None
    if isinstance(told, dict) and "error" in told:
        raise LoadFailed(str(told["error"]))
    return told


def _together(load: Load, sent: list[Result], taken: list[Result]) -> Result:
    """The counts of all processes as one result."""
    # Publishers that had to wait sent for longer than they were meant to.
    took_s = max(each["took_s"] for each in sent)
    published = sum(each["published"] for each in sent)
    confirmed = sum(each["confirmed"] for each in sent)
    received = sum(each["received"] for each in taken)
    result: Result = {
        "load": {**load._asdict(), "url": _without_password(load.url)},
        "published": published,
        "published_per_s": published / took_s,
        "took_s": took_s,
    }
    if load.window:
        result |= {
            "confirmed": confirmed,
            "confirmed_per_s": confirmed / took_s,
            "nacked": sum(each["nacked"] for each in sent),
            "confirm_ms": _times(sent),
        }
    if load.consumers:
        in_time = sum(each["in_time"] for each in taken)
        result |= {
            "received": received,
            "received_per_s": in_time / load.duration_s,
            "delivery_ms": _times(taken),
        }
    return result


def _times(found: Iterable[Result]) -> Result:
    """Percentiles of the times of several processes, in milliseconds."""
    whole = Histogram()
    for each in found:
        whole.merge(Histogram(each["times"], each["most_us"]))
    times = {f"p{percent:g}": _ms(whole.percentile_us(percent)) for percent in PERCENTS}
    return {"count": whole.total, **times, "max": _ms(whole.most_us if whole.total else None)}


def _ms(time_us: int | None) -> float | None:
    return None if time_us is None else time_us / 1000


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def queue_name() -> str:
    """A queue that no other load uses."""
    return f"vouchmq.bench.{os.getpid()}.{time.time_ns()}"


def show(result: Result, out: TextIO, *, as_json: bool) -> None:
    """Print a result."""
    out.write(
        json.dumps(result, indent=2) + "\n" if as_json else "".join(f"{x}\n" for x in lines(result))
    )


def lines(result: Result) -> Iterator[str]:
    """A result for people."""
    load = result["load"]
    pace = f"{load['rate']:,g}/s" if load["rate"] else "as fast as possible"
    kind = "persistent" if load["persistent"] else "transient"
    window = f"at most {load['window']} unconfirmed each" if load["window"] else "no confirms"
    yield f"{load['url']}, {load['duration_s']:g} s after {load['warm_up_s']:g} s of warm-up"
    yield (
        f"publishers {load['publishers']}, consumers {load['consumers']}, "
        f"{load['size_bytes']} bytes, {kind}, {pace}, {window}"
    )
    rates = [("published", "published_per_s"), ("confirmed", "confirmed_per_s")]
    for name, rate in (*rates, ("received", "received_per_s")):
        if name in result:
            yield f"{name:<12}{result[name]:>14,}  {result[rate]:>12,.0f}/s"
    if result.get("nacked"):
        yield f"{'nacked':<12}{result['nacked']:>14,}"
    if load["rate"] and result["took_s"] > load["duration_s"] * LATE:
        yield f"the rate was too high: it took {result['took_s']:.1f} s"
    heads = [name for name in ("confirm_ms", "delivery_ms") if name in result]
    if heads:
        columns = list(result[heads[0]])
        yield f"{'':<12}" + "".join(f"{name:>10}" for name in columns)
        for head in heads:
            cells = (_cell(result[head][name]) for name in columns)
            yield f"{head.replace('_', ', '):<12}" + "".join(f"{each:>10}" for each in cells)
    since = "was due by the rate" if load["rate"] else "was made; the window decides most of it"
    yield f"times are since a message {since}; - where too few were counted"


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
