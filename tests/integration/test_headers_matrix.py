"""What any client may write as a header, every client can read (FRAME-59): 9 by 9, and the wire."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pamqp.commands as amqp
import pytest

from tests.integration import header_clients
from tests.integration.broker_process import PROJECT, BrokerProcess
from tests.integration.conftest import INSTALL_LIMIT_S
from tests.integration.header_clients import EXCHANGE, VALUES
from tests.integration.raw_client import BODY, HEADER, RawClient, frame
from tests.waiting import LIMIT_S
from vouchmq.server.admin.objects.messages import publish_frame

SCRIPT = Path(__file__).parent / "amqplib" / "headers.js"
OF_PYTHON = tuple(header_clients.CLIENTS)
OF_NODE = ("amqplib", "rabbitmq-client", "amqp-client")
CLIENTS = (*OF_PYTHON, *OF_NODE)
# Every type on the wire, by name: its octets, and how a client of JSON sees it if all agree.
WIRE: dict[str, tuple[bytes, Any]] = {
    "t 0": (b"t\x00", False),
    "t 1": (b"t\x01", True),
    "t 2": (b"t\x02", True),
    "b": (b"b\x80", ...),
    "B": (b"B\xff", ...),
    "s": (b"s\x80\x00", ...),
    "u": (b"u\xff\xff", ...),
    "I": (b"I\x80\x00\x00\x00", -(2**31)),
    "i": (b"i\xff\xff\xff\xff", ...),
    "l": (b"l" + struct.pack(">q", 2**40), 2**40),
    "L": (b"L" + struct.pack(">q", 2**40), 2**40),
    "L minus": (b"L" + struct.pack(">q", -7), -7),
    "L in an array": (b"A\x00\x00\x00\x09L" + struct.pack(">q", 2**40), [2**40]),
    "L in a table": (b"F\x00\x00\x00\x0b\x01kL" + struct.pack(">q", 2**40), {"k": 2**40}),
    "f": (b"f\x3f\xc0\x00\x00", 1.5),
    "d": (b"d" + struct.pack(">d", 0.1), 0.1),
    "D": (b"D\x02\x00\x00\x30\x39", ...),
    "S": (b"S\x00\x00\x00\x02\xc3\xa9", "é"),
    "S of any octets": (b"S\x00\x00\x00\x02\xff\x00", ...),
    "x": (b"x\x00\x00\x00\x02\xff\x00", ...),
    "A": (b"A\x00\x00\x00\x00", []),
    "F": (b"F\x00\x00\x00\x00", {}),
    "T": (b"T" + struct.pack(">Q", 1_700_000_000), ...),
    "V": (b"V", None),
}


def run(node_path: Path, client: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One process of a client."""
    if client in OF_NODE:
        command = ["node", str(SCRIPT), client, *arguments]
    else:
        command = [sys.executable, "-m", "tests.integration.header_clients", client, *arguments]
    return subprocess.run(
        command,
        cwd=PROJECT,
        env={**os.environ, "NODE_PATH": str(node_path)},
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
        check=False,
    )


def as_read(client: str, value: Any) -> Any:
    """What a client makes of a value: pika cuts the fraction of a float off."""
    return int(value) if client == "pika" and isinstance(value, float) else value


def publish_wire(url: str) -> None:
    """All types, as no client would write them all."""
    with RawClient(url).handshake() as client:
        client.open_channel()
        client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        for name, (octets, _) in WIRE.items():
            table, body = b"\x01v" + octets, f"wire/{name}".encode()
            block = b"\x20\x00" + struct.pack(">I", len(table)) + table
            client.send(publish_frame(EXCHANGE, ""))
            client.send(frame(HEADER, 1, struct.pack(">HHQ", 60, 0, len(body)) + block))
            client.send(frame(BODY, 1, body))
        client.confirmed_up_to(len(WIRE))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("amqp-consume") is None, reason="amqp-tools is not installed")
@pytest.mark.timeout(INSTALL_LIMIT_S + 8 * LIMIT_S)
def test_what_any_client_writes_every_client_reads(node_path: Path, broker: BrokerProcess) -> None:
    """FRAME-59."""
    with RawClient(broker.url).handshake() as client, ThreadPoolExecutor(2) as pool:
        client.open_channel()
        declare = amqp.Exchange.Declare(exchange=EXCHANGE, exchange_type="fanout")
        client.call(1, declare, amqp.Exchange.DeclareOk)
        for name in CLIENTS:
            client.call(1, amqp.Queue.Declare(queue=f"for {name}"), amqp.Queue.DeclareOk)
            bind = amqp.Queue.Bind(queue=f"for {name}", exchange=EXCHANGE, routing_key="")
            client.call(1, bind, amqp.Queue.BindOk)
        publish_wire(broker.url)
        values = json.dumps(VALUES)
        publishers = [
            pool.submit(run, node_path, name, "publish", broker.url, *[values][: name in OF_NODE])
            for name in CLIENTS
        ]
        for each in publishers:
            assert each.result().returncode == 0, each.result().stderr
        count = client.ready_count(f"for {CLIENTS[0]}")
        # The command line of rabbitmq-c writes texts only, and pika no float.
        assert count == len(WIRE) + (len(CLIENTS) - 1) * len(VALUES) + 1
        consumers = {
            name: pool.submit(
                run, node_path, name, "consume", broker.url, f"for {name}", str(count)
            )
            for name in CLIENTS
        }
        expected = {f"wire/{name}": value for name, (_, value) in WIRE.items()}
        expected |= {f"{client}/{name}": VALUES[name] for client in CLIENTS for name in VALUES}
        for reader, running in consumers.items():
            done = running.result()
            assert done.returncode == 0, (reader, done.stderr)
            seen = json.loads(done.stdout)
            assert len(seen) == count, reader
            if reader == "rabbitmq-c":
                continue
            wrong = {
                body: (value, expected[body])
                for body, value in seen.items()
                if expected[body] is not ... and value != as_read(reader, expected[body])
            }
            assert wrong == {}, reader
