"""The stream of the log as operators make it and change its size."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.servers import MISSING, NatsServer, program, running_server
from tests.integration.broker_process import run_command
from vouchmq.server.edge.replicated.engine import Engine, ask, create_stream
from vouchmq.server.replication.connection import Options
from vouchmq.server.replication.jetstream import API

pytestmark = pytest.mark.skipif(program() is None, reason=MISSING)

MIB = 1 << 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with running_server(tmp_path) as made:
        yield made


def ha(server: NatsServer, *words: str) -> subprocess.CompletedProcess[str]:
    address = f"nats://127.0.0.1:{server.ports[0]}"
    flags = ("--segment-size-bytes", str(MIB), "--ha-log", address, "--ha-stream", "orders")
    return run_command("ha", *words, *flags)


def engine_of(server: NatsServer) -> Engine:
    return Engine((server.server,), Options(), "orders", ())


def stream(server: NatsServer) -> dict[str, Any]:
    """What the server says of it."""
    answer = asyncio.run(ask(engine_of(server), f"{API}STREAM.INFO.orders", b""))
    found: dict[str, Any] = json.loads(answer.payload)
    return found


def test_a_log_is_made_larger_and_smaller_and_stays_what_it_is(server: NatsServer) -> None:
    made = ha(server, "create", "--replicas", "1", "--max-bytes", "8MiB")
    assert made.returncode == 0, made.stderr
    before = stream(server)
    done = ha(server, "resize", "--max-bytes", "40MiB")
    assert (done.returncode, done.stdout) == (0, "stream orders: 194 B of at most 40.0 MiB\n")
    after = stream(server)
    assert after["config"]["max_bytes"] == 40 * MIB
    assert after["config"] == {**before["config"], "max_bytes": 40 * MIB}
    assert after["state"]["messages"] == 1
    done = ha(server, "resize", "--max-bytes", "4MiB", "--json")
    facts = {"stream": "orders", "bytes": after["state"]["bytes"], "max_bytes": 4 * MIB}
    assert json.loads(done.stdout) == facts


def test_a_log_is_not_made_smaller_than_what_it_has(server: NatsServer) -> None:
    assert ha(server, "create", "--replicas", "1").returncode == 0
    for _ in range(5):
        asyncio.run(ask(engine_of(server), "vq.orders.1", bytes(MIB)))
    done = ha(server, "resize", "--max-bytes", "4MiB")
    assert done.returncode == 1
    assert "the stream orders cannot be resized: it has 52" in done.stderr
    assert stream(server)["config"]["max_bytes"] == -1


@pytest.mark.parametrize("command", ["create", "resize", "rescue"])
def test_a_log_of_few_segments_is_refused_before_anything_is_made(
    server: NatsServer, command: str
) -> None:
    done = ha(server, command, "--max-bytes", "3MiB")
    assert done.returncode == 2
    assert "--max-bytes: expected at least 4194304, 4 segments of the journal" in done.stderr
    assert done.stderr.count("\n") == 1
    assert stream(server)["error"]["err_code"] == 10059


def test_a_stream_that_was_left_without_a_record_gets_the_settings(server: NatsServer) -> None:
    asyncio.run(create_stream(engine_of(server), replicas=1, max_bytes=10))
    made = ha(server, "create", "--replicas", "1", "--max-bytes", "8MiB")
    assert made.returncode == 0, made.stderr
    found = stream(server)
    assert (found["config"]["max_bytes"], found["state"]["messages"]) == (8 * MIB, 1)
    again = ha(server, "create", "--replicas", "1", "--max-bytes", "9MiB")
    assert again.returncode == 1
    assert again.stderr == "vouchmq: the stream orders exists and has records\n"
    assert stream(server)["config"]["max_bytes"] == 8 * MIB


def test_a_stream_of_something_else_is_left_alone(server: NatsServer) -> None:
    request = json.dumps({"name": "orders", "subjects": ["shop.>"], "num_replicas": 1}).encode()
    asyncio.run(ask(engine_of(server), f"{API}STREAM.CREATE.orders", request))
    before = stream(server)["config"]
    for words in (("create", "--replicas", "1"), ("resize", "--max-bytes", "8MiB")):
        done = ha(server, *words)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
    assert stream(server)["config"] == before


def change(server: NatsServer, **changes: object) -> None:
    """Another one than vouchmq gives the stream these settings."""
    settings = {**stream(server)["config"], **changes}
    request = json.dumps(settings).encode()
    answer = asyncio.run(ask(engine_of(server), f"{API}STREAM.UPDATE.orders", request))
    assert "error" not in json.loads(answer.payload), answer.payload


def test_a_log_that_has_no_room_for_another_reason_is_no_success(server: NatsServer) -> None:
    assert ha(server, "create", "--replicas", "1", "--max-bytes", "8MiB").returncode == 0
    change(server, max_msgs=10)
    done = ha(server, "resize", "--max-bytes", "40MiB")
    assert done.returncode == 1
    assert done.stderr == (
        "vouchmq: the stream orders cannot be resized: its max_bytes is 41943040 now, and it takes"
        " no more than 10 records: its max_msgs must be -1\n"
    )
    # Nothing else of the stream was changed.
    assert stream(server)["config"]["max_msgs"] == 10


def test_an_empty_stream_of_an_operator_becomes_a_log(server: NatsServer) -> None:
    """What does harm is taken back, what does none stays."""
    asyncio.run(create_stream(engine_of(server), replicas=1, max_bytes=10))
    change(server, max_msgs=10, description="of the shop", compression="s2", allow_atomic=True)
    made = ha(server, "create", "--replicas", "1", "--max-bytes", "8MiB")
    assert made.returncode == 0, made.stderr
    found = stream(server)["config"]
    assert (found["max_msgs"], found["max_bytes"]) == (-1, 8 * MIB)
    assert "allow_atomic" not in found
    assert (found["description"], found["compression"]) == ("of the shop", "s2")


def test_an_empty_stream_that_cannot_become_a_log(server: NatsServer) -> None:
    asyncio.run(create_stream(engine_of(server), replicas=1, max_bytes=10))
    change(server, allow_msg_ttl=True)
    made = ha(server, "create", "--replicas", "1")
    assert made.returncode == 1
    assert made.stderr.startswith("vouchmq: the stream orders cannot be made: message TTL status")
    assert stream(server)["state"]["messages"] == 0
