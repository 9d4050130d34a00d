"""Dead letters of any message: what routes them is what their headers say."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from tests.property.field_tables import tables
from vouchmq.protocol.contents import property_block
from vouchmq.protocol.fields import Field, Table, encode_shortstr, encode_table, longstr
from vouchmq.protocol.properties import Properties, with_headers, without_expiration
from vouchmq.server.broker.dead_letter.headers import Death, dead_letter
from vouchmq.server.broker.queues.settlement import DeadLetterReason

OWN = ("x-death", "x-first-death-queue", "x-last-death-reason", "CC", "BCC", "x-deaths")
DEATH = Death("q", DeadLetterReason.EXPIRED, "dlx", None, 1_700_000_000)

own = st.dictionaries(st.sampled_from(OWN), st.sampled_from([longstr("a"), Field("A", ())]))
headers = st.one_of(st.none(), tables, st.tuples(tables, own).map(lambda two: two[0] | two[1]))
keys = st.sampled_from([None, "", "dead"])
expirations = st.one_of(st.none(), st.integers(0, 10**6).map(str))


def content(table: Table | None, expiration: str | None) -> bytes:
    """A raw content of one octet with these properties, and a delivery mode."""
    encoded = b"" if table is None else encode_table(table)
    expires = b"" if expiration is None else encode_shortstr(expiration)
    flags = 0x1000 | (0 if table is None else 0x2000) | (0 if expiration is None else 0x0100)
    block = struct.pack(">H", flags) + encoded + b"\x02" + expires
    header = struct.pack(">HHQ", 60, 0, 1) + block
    head = struct.pack(">BHI", 2, 1, len(header)) + header + b"\xce"
    return head + struct.pack(">BHI", 3, 1, 1) + b"x\xce"


@given(headers, expirations, keys)
def test_the_headers_that_route_are_those_that_are_sent(
    table: Table | None, expiration: str | None, key: str | None
) -> None:
    raw, tail = content(table, expiration), encode_shortstr("e") + encode_shortstr("k")
    made = dead_letter((raw, tail, 1, 0), DEATH._replace(routing_key=key))
    sent = Properties(property_block(made.raw))
    assert made.headers == sent.headers
    assert sent.headers is not None
    assert list(made.headers or {}) == list(sent.headers)
    assert (sent.expiration, sent.delivery_mode) == (None, 2)


@given(st.one_of(st.none(), tables), expirations)
def test_a_first_death_adds_headers_behind_those_of_the_client(
    table: Table | None, expiration: str | None
) -> None:
    raw, tail = content(table, expiration), encode_shortstr("e") + encode_shortstr("k")
    made = dead_letter((raw, tail, 1, 0), DEATH)
    sent = Properties(property_block(made.raw)).headers or {}
    added = {name: sent[name] for name in sent if name not in (table or {})}
    events = added["x-death"].value
    assert isinstance(events, tuple)
    (event,) = events
    assert isinstance(event, Field)
    assert isinstance(event.value, dict)
    death = {**event.value}
    assert death.pop("original-expiration", None) == (
        None if expiration is None else longstr(expiration)
    )
    assert [*death] == ["count", "reason", "queue", "time", "exchange", "routing-keys"]
    assert [*added] == [
        "x-death",
        *(
            f"x-{when}-death-{name}"
            for when in ("first", "last")
            for name in ("queue", "reason", "exchange")
        ),
    ]
    plain = without_expiration(with_headers(property_block(raw), added, without=frozenset()))
    assert property_block(made.raw) == plain
    assert made.hops == 1
