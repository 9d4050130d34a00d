"""What a client and an operator see of a broker: definitions, and every message there is.

A `State` is what a manifest holds, too, so that both can be compared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final

import pamqp.commands as amqp
import pamqp.frame
import pamqp.header

from tests.integration.broker_process import BrokerProcess, run_command
from tests.integration.raw_client import RawClient
from tests.waiting import LIMIT_S
from tests.wire import ack

State = dict[str, Any]
Row = dict[str, Any]

PROPERTIES_AT: Final = 19  # behind the head of the frame, class, weight and size of the body


class Declare(amqp.Queue.Declare):
    """With any name; pamqp refuses some that the protocol allows."""

    def validate(self) -> None:
        """Nothing is wrong."""


class Consume(amqp.Basic.Consume):
    """From a queue of any name."""

    def validate(self) -> None:
        """Nothing is wrong."""


def vhost_url(broker: BrokerProcess, vhost: str) -> str:
    """Where a virtual host is reached."""
    return broker.url.replace("%2F", vhost.replace("/", "%2F"))


def definitions(broker: BrokerProcess) -> Any:
    """What `definitions export` says."""
    done = run_command("definitions", "export", "--data-dir", str(broker.data_dir))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def settle(broker: BrokerProcess, counts: dict[tuple[str, str], int]) -> None:
    """Fail unless queues hold so many messages before long: some move when a broker starts."""
    deadline = time.monotonic() + LIMIT_S
    while (found := ready(broker, list(counts))) != counts and time.monotonic() < deadline:
        time.sleep(0.05)
    wrong = {name: found[name] for name in counts if found[name] != counts[name]}
    assert not wrong, wrong


def ready(broker: BrokerProcess, queues: list[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """How many messages wait in each of these queues, named with their virtual hosts."""
    found = {}
    for vhost in sorted({vhost for vhost, _ in queues}):
        with RawClient(vhost_url(broker, vhost)).handshake() as client:
            client.open_channel()
            for name in (name for host, name in queues if host == vhost):
                found[vhost, name] = ready_in(client, name)
    return found


def ready_in(client: RawClient, queue: str) -> int:
    """How many messages wait in a queue of the client's virtual host."""
    asked = Declare(queue=queue, passive=True)
    return client.call(1, asked, amqp.Queue.DeclareOk).message_count or 0


def observe(broker: BrokerProcess, queues: list[Row], *, acking: bool = False) -> State:
    """All there is: every message of these queues (each with `vhost`, `name` and `consume`)."""
    return {
        "definitions": definitions(broker),
        "queues": [
            {
                **{key: queue[key] for key in ("vhost", "name", "consume")},
                "messages": read(broker, queue, acking=acking),
            }
            for queue in queues
        ],
    }


def read(broker: BrokerProcess, queue: Row, *, acking: bool = False) -> list[Row]:
    """Every message of a queue, in order; they go back to it unless they are acked."""
    with RawClient(vhost_url(broker, queue["vhost"])).handshake() as client:
        channel = client.open_channel()
        count = ready_in(client, queue["name"])
        if not count:
            # A consumer that comes and goes would end one that is auto-delete.
            return []
        client.call(channel, amqp.Basic.Qos(prefetch_count=count + 1), amqp.Basic.QosOk)
        consume = Consume(queue=queue["name"], arguments=queue["consume"])
        client.call(channel, consume, amqp.Basic.ConsumeOk)
        rows = [delivery(client) for _ in range(count)]
        # An answer on this channel: there was nothing more to deliver.
        client.send(pamqp.frame.marshal(amqp.Basic.Qos(prefetch_count=1), channel))
        _, answer = client.read()
        assert isinstance(answer, amqp.Basic.QosOk), f"more than {count} in {queue}: {answer}"
        if acking:
            client.send(ack(channel, count, multiple=True))
            # The acks were heard by the answer. A dead letter that takes the room goes back.
            client.send(pamqp.frame.marshal(amqp.Basic.Qos(prefetch_count=1), channel))
            while not isinstance(client.read()[1], amqp.Basic.QosOk):
                pass
    return rows


def delivery(client: RawClient) -> Row:
    """The next delivery, as a row of a manifest."""
    deliver = client.expect(amqp.Basic.Deliver)
    octets = client.read_frame()
    header = pamqp.frame.unmarshal(octets)[2]
    assert isinstance(header, pamqp.header.ContentHeader)
    body = b""
    while len(body) < header.body_size:
        body += client.read()[1].value
    properties = {
        name: plain(value) for name, value in header.properties if value not in (None, "")
    }
    row = {
        "exchange": deliver.exchange,
        "routing_key": deliver.routing_key,
        "redelivered": deliver.redelivered,
        "properties": properties,
        "body": digest(body),
    }
    deaths = properties.get("headers", {}).get("x-death", [])
    for death in deaths:
        # Some die when the directory is opened.
        del death["time"]
    if not deaths:
        row["octets"] = sha256(octets[PROPERTIES_AT:-1]).hexdigest()[:32]
    return row


def digest(body: bytes) -> str:
    """Short bodies can be read."""
    return f"{len(body)} {body[:24].decode('ascii', 'replace')} {sha256(body).hexdigest()[:32]}"


def plain(value: Any) -> Any:
    """A property or header for JSON; what JSON does not have is a text with its type."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, bytes | bytearray):
        return f"bytes {value.hex()}"
    if isinstance(value, datetime | Decimal):
        return f"{type(value).__name__} {value}"
    return value


def differences(wanted: State, seen: State) -> list[str]:
    """What is seen and not wanted, or wanted and not seen; empty when all is there."""
    return [*_of_definitions(wanted, seen), *_of_queues(wanted, seen)]


def _of_definitions(wanted: State, seen: State) -> Iterator[str]:
    for section, rows in wanted["definitions"].items():
        if not isinstance(rows, list):
            continue
        # A later version may say more about each.
        keys = {key for row in rows for key in row}
        also = seen["definitions"].get(section, [])
        lines = [
            {json.dumps({k: row[k] for k in keys & row.keys()}, sort_keys=True) for row in each}
            for each in (rows, also)
        ]
        yield from (f"{section}: missing {line}" for line in sorted(lines[0] - lines[1]))
        yield from (f"{section}: not wanted {line}" for line in sorted(lines[1] - lines[0]))


def _of_queues(wanted: State, seen: State) -> Iterator[str]:
    found = {(queue["vhost"], queue["name"]): queue["messages"] for queue in seen["queues"]}
    for queue in wanted["queues"]:
        messages = found.pop((queue["vhost"], queue["name"]), None)
        if messages is None:
            yield f"no queue {queue['name']}"
            continue
        if len(messages) != len(queue["messages"]):
            yield f"{queue['name']}: {len(messages)} messages, not {len(queue['messages'])}"
        for number, (there, here) in enumerate(zip(queue["messages"], messages, strict=False)):
            if there != here:
                yield f"{queue['name']}[{number}]: {here}, not {there}"
    yield from (f"queue {name} is not wanted" for name in found)
