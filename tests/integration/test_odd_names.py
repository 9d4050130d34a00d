"""One client's bytes blind no operator: names that are no UTF-8, also of an older directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote_from_bytes

import pamqp.commands as amqp
import pytest

from tests.integration.broker_process import run_command
from tests.integration.management import ManagedBroker, managed_broker
from tests.integration.raw_client import HEADER, METHOD, RawClient, frame, method
from tests.odd_names import ODD, declare_all, kept, write_out
from tests.unit.server.in_memory import SETTINGS, World
from vouchmq.management.resources.table import ROUTES
from vouchmq.protocol.fields import encode_shortstr, encode_table, longstr
from vouchmq.protocol.text import encode_text, shown
from vouchmq.server.admin.objects.messages import publish_frame
from vouchmq.server.settings.accounts import UserAccount

GUEST = UserAccount("guest", password="guest", tags=("administrator",))
QUEUE, EXCHANGE = f"q{kept(ODD)}", f"x{kept(ODD)}"
TABLE = {ODD: longstr(ODD)}
# A stream of events has no end; the ledger is off.
READS = [
    route
    for route in ROUTES
    if "GET" in route.methods and not route.path.startswith(("/events", "/ledger"))
]


def part(name: str) -> str:
    """A name in a path, byte for byte."""
    return quote_from_bytes(encode_text(name), safe="")


@pytest.fixture(scope="module")
def managed(module_path: Path) -> Iterator[ManagedBroker]:
    """A broker on what an older version has left, with a client that says odd things."""
    world = World(replace(SETTINGS, users=(GUEST,)))
    declare_all(world, ODD, TABLE)
    write_out(world.disk, module_path / "data")
    with (
        managed_broker(module_path) as broker,
        RawClient(broker.process.url).handshake() as client,
    ):
        client.open_channel()
        client.call(1, amqp.Queue.Declare(queue="live"), amqp.Queue.DeclareOk)
        names = b"\0\0\x04live\x0aamq.fanout\x01k\0"
        client.send(frame(METHOD, 1, b"\0\x32\0\x14" + names + encode_table(TABLE)))
        client.expect(amqp.Queue.BindOk)
        block = b"\x20\x80" + encode_table(TABLE) + encode_shortstr(ODD)
        header = frame(HEADER, 1, b"\0\x3c\0\0" + bytes(8) + block)
        client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        client.send(publish_frame("amq.fanout", ODD) + header)
        client.confirmed_up_to(1)
        client.send(method(1, amqp.Basic.Get(queue="live")))
        assert client.read_frame()[7:11] == b"\0\x3c\0\x47"
        yield broker


def test_every_listing_answers(managed: ManagedBroker) -> None:
    """FRAME-58."""
    where = ("--data-dir", str(managed.process.data_dir))
    for kind in ("queues", "bindings"):
        for form in ((), ("--json",)):
            done = run_command("list", kind, *form, *where)
            assert done.returncode == 0, done.stderr
            if form:
                [json.loads(line) for line in done.stdout.splitlines()]
    done = run_command("list", "queues", "--json", *where)
    names = {json.loads(line)["name"]: json.loads(line) for line in done.stdout.splitlines()}
    assert set(names) == {shown(QUEUE), "live"}
    assert names[shown(QUEUE)]["arguments"] == {shown(ODD): shown(ODD)}
    for command in (("definitions", "export"), ("peek", "live"), ("store", "check")):
        done = run_command(*command, *where)
        assert done.returncode == 0, done.stderr


def test_every_route_answers(managed: ManagedBroker) -> None:
    """FRAME-58: with a name in the path, too."""
    names = {
        "vhost": "%2F",
        "name": "%2F",
        "queue": part(QUEUE),
        "exchange": part(EXCHANGE),
        "destination": part(EXCHANGE),
        "count": "1",
        "unit": "days",
        "port": str(managed.process.port),
        "protocol": "amqp",
        "node": managed.get("/nodes")[0]["name"],
    }
    for route in READS:
        fields = {each.strip("{}") for each in route.parts if each.startswith("{")}
        filled = {each: names.get(each, part(ODD)) for each in fields}
        got = managed.ask("GET", route.path.format(**filled))
        is_known = not (fields - names.keys()) and "parameters/" not in route.path
        known = {200} if is_known else {200, 404}
        assert got.status in known, (route.path, got)
    found = managed.get(f"/queues/%2F/{part(QUEUE)}")
    assert (found["name"], found["arguments"][shown(ODD)]) == (shown(QUEUE), shown(ODD))
    [message] = managed.get("/queues/%2F/live/messages?state=unacknowledged")
    assert message["routing_key"] == shown(ODD)


def test_every_metric_answers(managed: ManagedBroker) -> None:
    """FRAME-58."""
    for path in ("/metrics", "/metrics/per-object", "/metrics/detailed?family=queue_metrics"):
        text = managed.metrics(path)
        assert ("\\\\xff" in text) is (path != "/metrics")


def test_what_has_such_a_name_can_be_deleted(managed: ManagedBroker) -> None:
    """FRAME-58: clients cannot name it any more (FRAME-57), operators can, by its bytes."""
    got = managed.ask("DELETE", f"/exchanges/%2F/{part(EXCHANGE)}")
    assert got.status == 204
    where = ("--data-dir", str(managed.process.data_dir))
    # No argument of a command can have a zero byte.
    assert "\0" in QUEUE
    assert managed.ask("DELETE", f"/queues/%2F/{part(QUEUE)}").status == 204
    done = run_command("delete", "queue", "\udcff", *where)
    assert (done.returncode, done.stdout) == (1, ""), done
    assert "no queue '\\xff'" in done.stderr
    assert shown(QUEUE) not in [row["name"] for row in managed.get("/queues")]
