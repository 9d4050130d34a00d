"""One round: one scenario against one server, set up, driven, checked and cleared away.

A round counts only if every message is accounted for: what was sent is confirmed, what was
due has arrived, in order and once, what was consumed was acknowledged, and what nobody
consumed lies in its queue.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from bench import frames, generator, process_tree
from bench.client import Address, BrokerError, Client
from bench.generator import Result
from bench.servers import Server
from bench.shape import DRAIN_MS, Consumer, Mode, Publisher, Shape

FILL_MS = 180_000
"""It is not measured: a slow broker only has to get there."""
REST_S = 0.5
"""After queues were filled, before the clocks start."""
QUIET_FOREIGN_CORES = 0.3
"""Processors that others may keep busy in a round that counts as quiet."""
SETTLE_S = 0.1
"""After the last message the server may still write down what it was told."""


@dataclass(slots=True)
class Round:
    """What one round showed: values by name, or why it does not count."""

    server: str
    values: dict[str, float] = field(default_factory=dict)
    error: str = ""

    @property
    def is_quiet(self) -> bool:
        """True when next to nothing else ran: only then the absolute figures mean much."""
        return not self.error and self.values["foreign_cores"] <= QUIET_FOREIGN_CORES


class CountError(Exception):
    """A message is missing, doubled or left over."""


def play(server: Server, shape: Shape) -> Round:
    """Play one round; whatever goes wrong in it is its `error`."""
    try:
        _clear(server.address, shape)
        values = _play(server, shape)
    except (BrokerError, CountError, OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        with suppress(BrokerError, OSError):
            _clear(server.address, shape)
        return Round(server.name, error=f"{error}")
    return Round(server.name, values)


def _play(server: Server, shape: Shape) -> dict[str, float]:
    _declare(server.address, shape)
    _fill(server.address, shape)
    clients: list[Client] = []
    try:
        publishers = [_publisher(server.address, entry, clients) for entry in shape.publishers]
        consumers = [
            _consumer(server.address, entry, clients, is_subscribed=not shape.fill)
            for entry in shape.consumers
        ]
        plan = generator.plan_for(shape, server.address, publishers, consumers)
        before, busy_before, started = (
            server.cpu_s(),
            process_tree.machine_busy_s(),
            time.monotonic(),
        )
        limit_s = (shape.duration_ms + DRAIN_MS) / 1000 + 30
        result = generator.run(plan, publishers + consumers, limit_s)
        time.sleep(SETTLE_S)
        after, elapsed_s = server.cpu_s(), time.monotonic() - started
        busy_s = process_tree.machine_busy_s() - busy_before
        if result["error"]:
            raise CountError(result["error"])
        uncounted = sum(client.close() for client in reversed(clients))
    finally:
        for client in clients:
            client.drop()
    check(shape, result, uncounted)
    _check_queues(server.address, shape, result)
    _clear(server.address, shape)
    cpu_s = after - before if after is not None and before is not None else None
    values = values_of(shape, result, cpu_s)
    spent_s = (cpu_s or 0.0) + result["generator_cpu_s"]
    values["foreign_cores"] = round(max(busy_s - spent_s, 0.0) / elapsed_s, 3)
    # With what the kernel does for a server in threads of its own, such as writing to the disk.
    rest_s = max(busy_s - result["generator_cpu_s"], 0.0)
    values["machine_cpu_us"] = round(rest_s * 1e6 / values["message_count"], 4)
    return values


def _declare(address: Address, shape: Shape) -> None:
    with Client(address) as control:
        if shape.fanout_exchange:
            control.call(
                frames.exchange_declare(
                    shape.fanout_exchange, shape.exchange_kind, shape.exchange_arguments
                )
            )
        for queue in shape.queues:
            control.call(
                frames.queue_declare(
                    queue.name,
                    durable=queue.durable,
                    is_stream=queue.is_stream,
                    arguments=queue.arguments,
                )
            )
            if shape.fanout_exchange:
                control.call(
                    frames.queue_bind(queue.name, shape.fanout_exchange, queue.binding_key)
                )
        if shape.more_methods:
            control.call(shape.more_methods + frames.qos(0))
        control.close()


def _fill(address: Address, shape: Shape) -> None:
    """Have the queues hold what the round begins with, all of it confirmed."""
    if not shape.fill:
        return
    filling = Shape(publishers=shape.fill, duration_ms=FILL_MS)
    clients: list[Client] = []
    try:
        publishers = [_publisher(address, entry, clients) for entry in shape.fill]
        plan = generator.plan_for(filling, address, publishers, [])
        result = generator.run(plan, publishers, (FILL_MS + DRAIN_MS) / 1000 + 30)
        if result["error"]:
            raise CountError(f"while the queues were filled: {result['error']}")
        for client in reversed(clients):
            client.close()
    finally:
        for client in clients:
            client.drop()
    for publisher, told in zip(shape.fill, result["publishers"], strict=True):
        if told["confirmed"] != publisher.limit_count:
            raise CountError(f"{told['confirmed']} of {publisher.limit_count} were stored")
    time.sleep(REST_S)


def _clear(address: Address, shape: Shape) -> None:
    with Client(address) as control:
        for queue in shape.queues:
            control.call(frames.queue_delete(queue.name))
        if shape.fanout_exchange:
            control.call(frames.exchange_delete(shape.fanout_exchange))
        control.close()


def _publisher(address: Address, publisher: Publisher, clients: list[Client]) -> int:
    client = Client(address)
    clients.append(client)
    if publisher.mode is Mode.TX:
        client.call(frames.tx_select())
    elif publisher.mode is not Mode.NONE:
        client.call(frames.confirm_select())
    return client.socket.fileno()


def _consumer(
    address: Address, consumer: Consumer, clients: list[Client], *, is_subscribed: bool
) -> int:
    client = Client(address)
    clients.append(client)
    if consumer.prefetch_count:
        client.call(frames.qos(consumer.prefetch_count))
    for method in generator.subscriptions(consumer) if is_subscribed else ():
        client.call(method)
    return client.socket.fileno()


def check(shape: Shape, result: Result, uncounted: int) -> None:
    """Hold what was sent against what was confirmed, delivered and acknowledged."""
    if uncounted:
        raise CountError(f"{uncounted} deliveries more than were due")
    if shape.churn_client_count and not result["cycles"]:
        raise CountError("no connection came about")
    for publisher, told in zip(shape.publishers, result["publishers"], strict=True):
        if not told["sent"]:
            raise CountError("nothing was sent")
        if shape.is_counted and told["sent"] != publisher.limit_count:
            raise CountError(f"the time sufficed for {told['sent']} of {publisher.limit_count}")
        if publisher.mode is not Mode.NONE and told["confirmed"] != told["sent"]:
            raise CountError(f"{told['confirmed']} confirmed of {told['sent']}")
    due, received = due_of(shape, result), Counter[tuple[str, ...]]()
    for consumer, got in zip(shape.consumers, result["consumers"], strict=True):
        received[consumer.queues] += got["received"]
        if consumer.ack_every and got["acked"] != got["received"]:
            raise CountError(f"{consumer.queue}: acknowledged up to {got['acked']} only")
    # Consumers that share queues are counted together: which of them got more is no matter.
    for queues, count in received.items():
        expected = sum(due[name] for name in queues)
        if count != expected:
            raise CountError(f"{', '.join(queues)}: {count} of {expected} arrived")
    _check_bytes(shape, result)


def _check_bytes(shape: Shape, result: Result) -> None:
    """Where bodies differ in size, their sum shows that each came whole."""
    if not any(publisher.messages for publisher in shape.publishers):
        return
    told = zip(shape.publishers, result["publishers"], strict=True)
    due = sum(
        publisher.body_bytes(done["sent"]) * (len(shape.queues) if publisher.exchange else 1)
        for publisher, done in told
    )
    arrived = sum(got["body_bytes"] for got in result["consumers"])
    if arrived != due:
        raise CountError(f"bodies of {arrived} bytes arrived instead of {due}")


def due_of(shape: Shape, result: Result) -> dict[str, int]:
    """Count what each queue must have got."""
    due = dict.fromkeys((queue.name for queue in shape.queues), 0)
    filled = [(publisher, publisher.limit_count) for publisher in shape.fill]
    told = zip(shape.publishers, result["publishers"], strict=True)
    for publisher, count in filled + [(publisher, done["sent"]) for publisher, done in told]:
        if publisher.exchange:
            for name in due:
                due[name] += count
            continue
        each, more = divmod(count, len(publisher.routing_keys))
        for index, name in enumerate(publisher.routing_keys):
            due[name] += each + (index < more)
    for queue in shape.queues:
        if queue.dead_from:
            due[queue.name] += due[queue.dead_from]
    return due


def _check_queues(address: Address, shape: Shape, result: Result) -> None:
    """After all have left, a consumed queue is empty and the others hold everything.

    Of a stream RabbitMQ's count lags behind.
    """
    due = due_of(shape, result)
    consumed = {name for consumer in shape.consumers for name in consumer.queues}
    with Client(address) as control:
        for queue in shape.queues:
            answer = control.call(frames.queue_declare(queue.name, passive=True))
            _, count = frames.queue_name_and_count(answer)
            expected = 0 if queue.name in consumed else due[queue.name]
            if count != expected and not queue.is_stream:
                raise CountError(f"{queue.name} holds {count} messages instead of {expected}")
        control.close()


def values_of(shape: Shape, result: Result, cpu_s: float | None) -> dict[str, float]:
    """Work out rates, latencies and CPU time per message."""
    delivered = sum(got["received"] for got in result["consumers"])
    confirmed = sum(told["confirmed"] for told in result["publishers"])
    values: dict[str, float] = {}
    first_s = min((told["first_s"] for told in result["publishers"]), default=0.0)
    if delivered:
        last_s = max(got["last_s"] for got in result["consumers"])
        values["delivered_per_s"] = delivered / (last_s - first_s)
    if confirmed:
        values["confirmed_per_s"] = confirmed / _confirming_s(result)
        values["ms_per_50k"] = 50_000 * 1000 / values["confirmed_per_s"]
        values["total_ms"] = _confirming_s(result) * 1000
    if result["cycles"]:
        values["cycles_per_s"] = result["cycles"] / result["churn_s"]
    for name in ("delivered_per_s", "confirmed_per_s", "cycles_per_s"):
        if name in values:
            values["rate_per_s"] = values[name]
            break
    _add_latency(values, result)
    undelivered = sum(
        told["sent"]
        for publisher, told in zip(shape.publishers, result["publishers"], strict=True)
        if not publisher.fan_count
    )
    count = delivered + undelivered + result["cycles"]
    values["message_count"] = count
    values["generator_cpu_us"] = result["generator_cpu_s"] * 1e6 / count
    if cpu_s is not None:
        values["cpu_us"] = cpu_s * 1e6 / count
    return {name: round(value, 4) for name, value in values.items()}


def _confirming_s(result: Result) -> float:
    """From the first publish that is to be confirmed to the last confirm."""
    asked = [told for told in result["publishers"] if told["confirmed"]]
    return max(told["last_s"] for told in asked) - min(told["first_s"] for told in asked)


def _add_latency(values: dict[str, float], result: Result) -> None:
    named = (("confirm", result["confirm"]), ("delivery", result["delivery"]))
    for name, histogram in named:
        if histogram["count"]:
            label = "cycle" if result["cycles"] else name
            values[f"{label}_p50_ms"] = histogram["p50_us"] / 1000
            values[f"{label}_p99_ms"] = histogram["p99_us"] / 1000
            values[f"{label}_max_ms"] = histogram["max_us"] / 1000
