"""The load generator from this side: compiled when first needed, given a plan, read back.

The inner loops are C (generator.c; the sink it is checked against is sink.c), because the
servers under test take more than a million messages a second and the generator shares
their processors. This module knows plans and results, not scenarios' questions.
"""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TypedDict

from bench import frames
from bench.client import Address, handshake_steps
from bench.shape import DRAIN_MS, Consumer, Mode, Publisher, Shape

HERE = Path(__file__).resolve().parent
STAMP_SIZE = 8


class GeneratorError(Exception):
    """There is no C compiler, or it refused the source."""


class Percentiles(TypedDict):
    """A histogram summed up, microseconds."""

    count: int
    mean_us: float
    p50_us: float
    p99_us: float
    max_us: float


class Published(TypedDict):
    """What one publisher did; seconds since the start."""

    sent: int
    confirmed: int
    first_s: float
    last_s: float


class Received(TypedDict):
    """What one consumer did; seconds since the start."""

    received: int
    acked: int
    body_bytes: int
    first_s: float
    last_s: float


class Result(TypedDict):
    """What the generator prints."""

    error: str
    cycles: int
    churn_s: float
    confirm: Percentiles
    delivery: Percentiles
    publishers: list[Published]
    consumers: list[Received]
    generator_cpu_s: float


@cache
def build(name: str) -> Path:
    """Compile one of the C programs beside this file, once per run of the bench.

    Raises:
        GeneratorError: with the one line the user needs.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise GeneratorError("the load generator needs a C compiler: apt-get install gcc")
    source = HERE / f"{name}.c"
    binary = _build_directory() / name
    command = [compiler, "-O2", "-Wall", "-pthread", "-o", str(binary), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GeneratorError(f"{name}.c does not compile:\n{done.stderr}")
    return binary


@cache
def _build_directory() -> Path:
    """Make a directory of our own, so that nobody else can put a program there."""
    directory = Path(tempfile.mkdtemp(prefix="vouchmq-bench-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def run(plan: str, descriptors: Sequence[int], limit_s: float) -> Result:
    """Run a plan over inherited sockets; `error` in the result says what went wrong, if so.

    Raises:
        RuntimeError: the generator died or refused the plan.
    """
    done = subprocess.run(
        [str(build("generator"))],
        input=plan,
        capture_output=True,
        text=True,
        check=False,
        pass_fds=descriptors,
        timeout=limit_s,
    )
    if not done.stdout:
        raise RuntimeError(f"the generator ended with {done.returncode}: {done.stderr.strip()}")
    result: Result = json.loads(done.stdout)
    return result


def message_cycle(publisher: Publisher) -> list[bytes]:
    """Encode one publish for each message or routing key, with its commit if the mode is tx."""
    after = frames.tx_commit() if publisher.mode is Mode.TX else b""
    if publisher.messages:
        return [_unlike(publisher, index) + after for index in range(len(publisher.messages))]
    body = bytes(32 + index % 95 for index in range(publisher.body_size))
    blocks = publisher.properties or (b"",)
    return [
        frames.publish(publisher.exchange, key, body, persistent=publisher.persistent, block=block)
        + after
        for block in blocks
        for key in publisher.routing_keys
    ]


def _unlike(publisher: Publisher, index: int) -> bytes:
    message = publisher.messages[index]
    body = bytes(32 + (index + place) % 95 for place in range(message.body_size))
    return frames.publish(
        publisher.exchange,
        message.routing_key,
        body,
        persistent=publisher.persistent,
        block=message.block,
    )


def plan_for(
    shape: Shape, address: Address, publishers: Sequence[int], consumers: Sequence[int]
) -> str:
    """Write the plan of a shape for sockets already connected, in the order of the shape."""
    waiting = sum(publisher.limit_count for publisher in shape.fill)
    lines = [f"run {shape.duration_ms} {DRAIN_MS} {waiting}"]
    for descriptor, publisher in zip(publishers, shape.publishers, strict=True):
        lines += _publisher_lines(descriptor, publisher)
    for descriptor, consumer in zip(consumers, shape.consumers, strict=True):
        smallest = consumer.body_size if consumer.smallest_size is None else consumer.smallest_size
        starts = subscriptions(consumer) if shape.fill else []
        lines.append(
            f"consumer {descriptor} {consumer.worker} {consumer.ack_every} "
            f"{smallest} {consumer.body_size} {int(consumer.stamped)} {int(consumer.rejects)} "
            f"{len(starts)} {b''.join(starts).hex()}"
        )
    for worker in range(shape.churn_client_count):
        limit = shape.churn_limit_count // shape.churn_client_count
        steps = [*handshake_steps(address), (1, frames.channel_open())]
        steps += [(1, frames.channel_close()), (1, frames.connection_close())]
        lines.append(f"churn {worker} {address.port} {limit} {len(steps)}")
        lines += [f"step {replies} {octets.hex()}" for replies, octets in steps]
    return "\n".join(lines) + "\n"


def subscriptions(consumer: Consumer) -> list[bytes]:
    """Encode a basic.consume for each tag on each queue of a consumer."""
    return [
        frames.consume(name, f"bench-{index}", no_ack=not consumer.ack_every)
        for index, name in enumerate(consumer.queues * consumer.tag_count)
    ]


def _publisher_lines(descriptor: int, publisher: Publisher) -> Iterator[str]:
    cycle = message_cycle(publisher)
    yield (
        f"publisher {descriptor} {publisher.worker} {publisher.mode.value} {publisher.window} "
        f"{publisher.limit_count} {publisher.rate_per_s} {publisher.backlog_count} "
        f"{publisher.fan_count} {len(cycle)}"
    )
    sizes = [message.body_size for message in publisher.messages]
    for index, message in enumerate(cycle):
        body_size = sizes[index] if sizes else publisher.body_size
        stamp = frames.body_offset(message, body_size) if publisher.stamped else -1
        number = message.index(frames.NUMBER) if publisher.has_numbers else -1
        yield f"message {stamp} {number} {message.hex()}"
