"""What an operator changes while clients are connected; needs the operator's command."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import replace
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.cases.redeliver import put
from vouchmq.conformance.cases.timeout import TIMEOUT_MS
from vouchmq.conformance.client import Channel, Connection
from vouchmq.conformance.expect import Starting, equal, eventually
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain

PASSWORD: Final = "conformance"
# Policies and permissions take effect within a second and five (POLICY-04, AUTH-07).
PATIENCE_S: Final = 15.0


def _policy(stage: Stage, queue: str, **definition: Plain) -> str:
    """A policy for just this queue; its name."""
    name = f"conformance-{secrets.token_hex(4)}"
    _set(stage, name, queue, **definition)
    return name


def _set(stage: Stage, name: str, queue: str, **definition: Plain) -> None:
    table = {key.replace("_", "-"): value for key, value in definition.items()}
    words = ("set_policy", "-p", stage.target.vhost, "--apply-to", "queues", "--priority", "9")
    pattern = f"^{queue.replace('.', chr(92) + '.')}$"
    stage.operate(
        *words,
        name,
        pattern,
        json.dumps(table),
        undo=("clear_policy", "-p", stage.target.vhost, name),
    )


def _limited(stage: Stage, queue: str, most: int) -> None:
    """Fail unless the queue comes to keep that many of six messages, the youngest."""
    channel = stage.channel()

    def kept() -> list[str]:
        put(stage, queue, *(str(number) for number in range(6)))
        channel.connection.listen(0.05)
        return channel.drain(queue)

    eventually(kept, [str(number) for number in range(6 - most, 6)], "messages kept")


@case("POLICY-04", says="created, changed, cleared: it takes effect each time", slow=True)
def lives(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, durable=True)
    name = _policy(stage, queue, max_length=2)
    _limited(stage, queue, 2)
    _set(stage, name, queue, max_length=4)
    _limited(stage, queue, 4)
    stage.operate("clear_policy", "-p", stage.target.vhost, name)
    _limited(stage, queue, 6)


@case("LEN-26", says="a limit that is lowered by policy drops heads at once", slow=True)
def lowered(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, durable=True)
    put(stage, queue, "a", "b", "c", "d")
    _policy(stage, queue, max_length=2)
    channel.holds(queue, 2)
    equal(channel.drain(queue), ["c", "d"], "messages kept")


@case("LEN-26", says="under reject-publish nothing is dropped", slow=True)
def lowered_and_refusing(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel, durable=True, arguments={"x-overflow": "reject-publish"})
    put(stage, queue, "a", "b", "c", "d")
    _policy(stage, queue, max_length=2)
    count = 0

    def is_refused() -> bool:
        nonlocal count
        count += 1
        channel.publish("", queue, "late")
        return channel.confirms(count)[count] == "nack"

    eventually(is_refused, True, "a publish to the full queue is refused")
    equal(channel.drain(queue)[:4], ["a", "b", "c", "d"], "messages kept")


@case(
    "TTL-08",
    says="a message-ttl that is set by policy counts from the time of arrival",
    slow=True,
    referee_reason="C-65: gives no deadline to messages that are there already",
)
def ttl(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, durable=True)
    put(stage, queue, "old", "older")
    channel.connection.listen(1.5)
    began = time.monotonic()
    _policy(stage, queue, message_ttl=1000)
    channel.holds(queue, 0)
    stage.in_time(time.monotonic(), began, PATIENCE_S, "the end of what is old")


@case(
    "POLICY-05",
    says="a consumer timeout set by policy bounds a longer one of the argument",
    mark="≡4",
    slow=True,
)
def consumer_timeout(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, durable=True, arguments={"x-consumer-timeout": 3_600_000})
    _policy(stage, queue, consumer_timeout=TIMEOUT_MS)
    tag = channel.consume(queue)
    channel.publish("", queue, "x")
    channel.deliver()
    event = channel.wait("basic.cancel", timeout_s=PATIENCE_S)
    equal(event.text("consumer_tag"), tag, "the cancelled consumer")


def _other_user(stage: Stage) -> Connection:
    """An open connection of a user of its own, with all permissions."""
    name = f"conformance-{secrets.token_hex(4)}"
    stage.operate("add_user", name, PASSWORD, undo=("delete_user", name))
    stage.operate("set_permissions", "-p", stage.target.vhost, name, ".*", ".*", ".*")
    connection = Connection(replace(stage.target, user=name, password=PASSWORD))
    stage.connections.append(connection)
    return connection.open()


def _refused_at_last(channel: Channel, queue: str) -> None:
    """Publish until it is refused, for as long as a cached check may last."""
    deadline = time.monotonic() + PATIENCE_S
    pause_s = 0.1
    with channel.soft(403, None, "basic.publish"):
        while time.monotonic() < deadline:
            channel.publish("", queue, "x")
            channel.sync()
            # RabbitMQ forgets its checks when a channel has had nothing to do for some seconds.
            channel.connection.listen(pause_s)
            pause_s *= 2


@case("AUTH-07", says="permissions that are taken away fail a running channel", slow=True)
def permissions(stage: Stage) -> None:
    connection = _other_user(stage)
    channel = connection.channel()
    queue = stage.queue(channel)
    channel.publish("", queue, "x")
    channel.holds(queue, 1)
    user = connection.target.user
    stage.operate("set_permissions", "-p", stage.target.vhost, user, ".*", "^$", ".*")
    _refused_at_last(channel, queue)


@case("AUTH-07", says="deleting a user closes its connections", slow=True)
def deleted_user(stage: Stage) -> None:
    connection = _other_user(stage)
    connection.channel()
    user = connection.target.user
    with connection.hard(320, f"CONNECTION_FORCED - user '{user}' is deleted"):
        stage.operate("delete_user", user)


def _other_vhost(stage: Stage) -> Connection:
    """An open connection to a virtual host of its own."""
    name = f"conformance-{secrets.token_hex(4)}"
    stage.operate("add_vhost", name, undo=("delete_vhost", name))
    stage.operate("set_permissions", "-p", name, stage.target.user, ".*", ".*", ".*")
    connection = Connection(replace(stage.target, vhost=name))
    stage.connections.append(connection)
    return connection.open()


@case("VHOST-05", says="deleting a vhost closes its connections; anew it is empty", slow=True)
def deleted_vhost(stage: Stage) -> None:
    connection = _other_vhost(stage)
    vhost = connection.target.vhost
    channel = connection.channel()
    channel.call("queue.declare", queue="kept", durable=True)
    said = f"CONNECTION_FORCED - vhost '{vhost}' is "
    # RabbitMQ ends the vhost beside its connections, which then say "down" as often.
    text = Starting(f"{said}d") if stage.is_referee else f"{said}deleted"
    with connection.hard(320, text):
        stage.operate("delete_vhost", vhost)
    stage.operate("add_vhost", vhost, undo=("delete_vhost", vhost))
    stage.operate("set_permissions", "-p", vhost, stage.target.user, ".*", ".*", ".*")
    again = Connection(connection.target)
    stage.connections.append(again)
    channel = again.open().channel()
    with channel.soft(404, None, "queue.declare"):
        channel.call("queue.declare", queue="kept", passive=True)


@case("CONN-56", says="an operator closes connections with a reason: hard 320", slow=True)
def closed(stage: Stage) -> None:
    connection = _other_vhost(stage)
    connection.channel()
    with connection.hard(320, "CONNECTION_FORCED - high tide"):
        stage.operate("close_all_connections", "--vhost", connection.target.vhost, "high tide")


@case("LIMIT-12", says="after the alarm reading resumes, nothing is lost or reordered", serial=True)
def after_the_alarm(stage: Stage) -> None:
    watcher = stage.channel()
    queue = stage.queue(watcher)
    publisher = stage.connect()
    channel = publisher.channel()
    channel.call("confirm.select")
    channel.publish("", queue, "0")
    channel.confirms(1)
    watermark = "set_vm_memory_high_watermark"
    stage.operate(watermark, "0.0000001", undo=(watermark, "0.4"))
    deadline = time.monotonic() + PATIENCE_S
    number = 0
    while not any(event.name == "connection.blocked" for event in publisher.inbox(0)):
        if time.monotonic() > deadline:
            break
        number += 1
        channel.publish("", queue, str(number))
        publisher.listen(0.1)
    publisher.wait(0, "connection.blocked")
    for late in range(number + 1, number + 20):
        channel.publish("", queue, str(late))
    stage.operate(watermark, "0.4")
    publisher.wait(0, "connection.unblocked", timeout_s=PATIENCE_S)
    channel.confirms(number + 20)
    equal(watcher.drain(queue), [str(one) for one in range(number + 20)], "messages")
