"""Whatever clients call things, every listing answers, and what it says can be written anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pamqp import commands
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests import wire
from tests.odd_names import ODD, declare_all, kept
from tests.property.field_tables import fields, tables
from tests.unit.server.admin.listings import listed
from tests.unit.server.admin.operating import begun, refused
from tests.unit.server.in_memory import World
from vouchmq.management.metrics.app import _Families
from vouchmq.management.metrics.objects import KINDS as METRICS
from vouchmq.management.metrics.objects import PREFIX, object_families
from vouchmq.protocol.errors import InternalError
from vouchmq.protocol.fields import Field, Table, encode_shortstr, encode_table, longstr
from vouchmq.protocol.properties import with_normalized_headers
from vouchmq.protocol.text import decode_text, shown
from vouchmq.server.admin.details import KINDS as DETAILS
from vouchmq.server.admin.measures import KINDS as MEASURES
from vouchmq.server.admin.objects.messages import publish_frame
from vouchmq.server.admin.views import KINDS
from vouchmq.server.cli.running.listing import cell
from vouchmq.server.definitions.export import exported

EVERY = sorted({*KINDS, *DETAILS, *MEASURES})
OF_QUEUES = ("queues", "queue-details", "queue-sizes")

names = st.binary(max_size=60).map(decode_text)
# Keys of arguments that mean something have a case each elsewhere, as their values are judged.
arguments = st.dictionaries(
    st.binary(max_size=20).map(lambda octets: decode_text(b"~" + octets)), fields, max_size=4
)


def require_writable(value: object) -> None:
    """Fail unless this can be JSON that any reader takes, and a line on any terminal."""
    text = json.dumps(value, ensure_ascii=False)
    text.encode()
    json.loads(text)
    line = cell(value)
    assert line.isprintable()
    line.encode()


@settings(max_examples=25)
@given(names, arguments)
@example(ODD, {ODD: longstr(ODD), "t": Field("F", {ODD: Field("x", b"\xff")})})
def test_every_listing_metric_and_export_can_be_written(name: str, table: Table) -> None:
    """FRAME-58."""
    world = World()
    declare_all(world, name, table)
    found: dict[str, list[dict[str, Any]]] = {}
    for what in EVERY:
        found[what] = rows = listed(world, what)
        for row in rows:
            require_writable(row)
    for what in OF_QUEUES:
        assert [row["name"] for row in found[what]] == [shown(f"q{kept(name)}")], what
    assert [row["tag"] for row in found["consumers"] if name] == [shown(name)] * bool(name)
    for kind in METRICS:
        rows = [{**row, **dict.fromkeys(column_names(kind), 0)} for row in found[kind.listing]]
        families = list(object_families(kind, rows, kind.gauges, PREFIX))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Families(families))
        assert list(text_string_to_metric_families(generate_latest(registry).decode()))
    text, _ = exported(world.broker)
    require_writable(json.loads(text))
    rows = begun(world, "export definitions").lines
    world.sync()
    require_writable(rows)


def column_names(kind: Any) -> list[str]:
    """The numbers that the metrics of a kind need."""
    groups = (*kind.gauges.values(), *kind.counters.values())
    return [family.column for families in groups for family in families]


@settings(max_examples=25)
@given(names, tables, names)
@example(ODD, {ODD: longstr(ODD)}, ODD)
def test_every_message_can_be_looked_at(key: str, headers: Table, message_id: str) -> None:
    """FRAME-58: routing keys, headers and properties, which publishers may still choose."""
    world = World()
    client = world.connect()
    client.open()
    client.declare("q")
    client.send(wire.method(1, commands.Queue.Bind(queue="q", exchange="amq.fanout")))
    block = b"\x20\x80" + encode_table(headers) + encode_shortstr(message_id)
    try:
        with_normalized_headers(block)
    except InternalError:
        # Nobody may publish these (FRAME-59).
        assume(False)
    client.send(
        publish_frame("amq.fanout", key),
        wire.frame(2, 1, b"\0\x3c\0\0" + bytes(8) + block),
    )
    world.sync()
    for command in ("peek", "get"):
        reader = begun(world, command, name="q")
        world.sync()
        [row] = reader.lines
        body = row.pop("body")
        assert body == b""
        require_writable(row)
        assert row["routing_key"] == shown(key)
        assert row["properties"]["message_id"] == shown(message_id)


@pytest.mark.parametrize(
    ("command", "which", "more"),
    [
        ("put queue", "name", {}),
        ("put exchange", "name", {"type": "direct"}),
        (
            "put binding",
            "routing_key",
            {"source": "amq.topic", "destination": "q", "destination_type": "queue"},
        ),
    ],
)
def test_an_operator_makes_no_such_name_either(
    command: str, which: str, more: dict[str, str]
) -> None:
    """FRAME-57."""
    assert refused(World(), command, **{which: "\udcff"}, **more) == (
        400,
        f"{which}: not UTF-8: \udcff",
    )


def test_what_has_such_a_name_can_be_deleted_by_its_bytes() -> None:
    """FRAME-58."""
    world = World()
    declare_all(world, ODD, {})
    reader = begun(world, "delete queue", name=f"q{kept(ODD)}")
    world.sync()
    assert reader.facts is not None
    assert reader.facts["ok"]
    assert listed(world, "queues") == []
