"""Definitions and their records: what goes in comes out, and nothing else is read."""

from __future__ import annotations

import json

import pytest

from tests.unit.server.broker.stand_ins import integer
from vouchmq.protocol.fields import Field, Table, longstr
from vouchmq.server.broker import definitions as d
from vouchmq.server.broker.exchanges.bindings import Binding
from vouchmq.server.broker.exchanges.exchange import Exchange
from vouchmq.server.broker.queues.spec import QueueSpec

TABLE: Table = {
    "a": integer(5, "s"),
    "b": integer(5, "l"),
    "bytes": longstr(b"\xff\x00"),
    "nested": Field("F", {"v": Field("V", None), "f": Field("f", 0.5)}),
    "\udcff": Field("A", (Field("t", True),)),
}


@pytest.mark.parametrize(
    "definition",
    [
        d.QueueIdsReserved(7),
        d.VHostSet("/"),
        d.VHostSet("v", "for tests", ["a", "b"], "quorum", True, 1, 2, 0),
        d.VHostDeleted("v"),
        d.AccountsKept(),
        d.UserSet("u", "AAAA", "rabbit_password_hashing_sha256", ["administrator"], 5, 0),
        d.UserDeleted("\udcff"),
        d.PermissionSet("u", "/", "^$", "", ".*"),
        d.PermissionCleared("u", "/"),
        d.TopicPermissionSet("u", "/", "amq.topic", "^a", "^{username}"),
        d.TopicPermissionCleared("u", "/", ""),
        d.ParameterSet("/", "component", "name", {"a": [1, None, {"b": 0.5}]}),
        d.ParameterCleared("/", "component", "name"),
        d.GlobalParameterSet("name", "text"),
        d.GlobalParameterCleared("name"),
        d.ExchangeDeclared("v", "x", "topic", True, False, TABLE),
        d.ExchangeDeleted("v", "x"),
        d.QueueDeclared("v", "caf\u00e9 \udcff\n", 3, False, TABLE),
        d.QueueDeleted("v", "q", 3),
        d.Bound("v", "x", "queue", "q", "a.#", TABLE),
        d.Unbound("v", "x", "exchange", "y", "", {}),
    ],
)
def test_definition_survives_its_record(definition: d.Definition) -> None:
    record = d.encode(definition)
    assert d.decode(record) == definition
    assert d.encode(d.decode(record)) == record


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"{}",
        b'{"v":1}',
        b'{"v":1,"op":"queue"}',
        b'{"v":1,"op":"unheard-of"}',
        b'{"v":1,"op":"vhost","vhost":"/","more":1}',
        b'{"v":1,"op":"bind","vhost":"/","source":"","kind":"queue","destination":"",'
        b'"routing_key":"","arguments":"!"}',
        b'{"v":1,"op":"bind","vhost":"/","source":"","kind":"queue","destination":"",'
        b'"routing_key":"","arguments":"AAAA"}',
        b"\xff",
    ],
)
def test_what_no_broker_wrote_is_refused(record: bytes) -> None:
    with pytest.raises(d.BadDefinition):
        d.decode(record)


def test_a_vhost_of_an_older_record_has_no_settings() -> None:
    assert d.decode(b'{"v":1,"op":"vhost","vhost":"/"}') == d.VHostSet("/")


def test_limits_that_are_not_given_stay() -> None:
    limited = d.VHostSet("/", max_connections=1, max_queues=2, max_exchanges=3)
    assert limited.limited() == limited
    again = limited.limited(max_connections=-9, max_queues=0)
    assert (again.max_connections, again.max_queues, again.max_exchanges) == (-1, 0, 3)


def test_record_of_another_version_is_refused_by_its_number() -> None:
    document = json.loads(d.encode(d.VHostSet("/"))) | {"v": 2}
    with pytest.raises(d.BadDefinition, match="version 2"):
        d.decode(json.dumps(document).encode())


def test_exchange_queue_and_binding_come_back_as_they_were() -> None:
    exchange = Exchange("x", "v", "headers", True, True, True, TABLE)
    again = d.to_exchange(d.of_exchange(exchange))
    again.require_equivalent(exchange)
    assert (again.name, again.vhost, again.arguments) == ("x", "v", TABLE)
    spec = QueueSpec("q", "v", 3, True, None, True, TABLE)
    assert d.to_spec(d.of_queue(spec)) == spec
    binding = Binding("x", "queue", "q", "k", TABLE)
    assert d.to_binding(d.of_binding("v", binding)).identity == binding.identity
    assert d.to_binding(d.of_unbound("v", binding)).identity == binding.identity


def test_exchange_of_unknown_type_is_refused() -> None:
    with pytest.raises(d.BadDefinition, match="x-later"):
        d.to_exchange(d.ExchangeDeclared("v", "x", "x-later", False, False, {}))
