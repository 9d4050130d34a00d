"""Bytes of NATS to events, and commands to bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vouchmq.server.replication import nats_protocol as nats
from vouchmq.server.replication.nats_protocol import (
    Info,
    Message,
    NatsProtocolError,
    Parser,
    Ping,
    Pong,
    ServerError,
)

HEADER = b"NATS/1.0\r\nNats-Sequence: 7\r\nEmpty:\r\n\r\n"
STREAM = b"".join(
    [
        b'INFO {"version":"2.15.1","headers":true} \r\n',
        b"PING\r\n+OK\r\npong\r\n",
        b"MSG in.1 1 5\r\nab\r\nc\r\n",
        b"MSG in.2 1 back.1 0\r\n\r\n",
        b"HMSG in.3 1 %d %d\r\n%bbody\r\n" % (len(HEADER), len(HEADER) + 4, HEADER),
        b"HMSG in.4 1 back.2 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
        b"-ERR 'Authorization Violation'\r\n",
    ]
)
EVENTS = [
    Info({"version": "2.15.1", "headers": True}),
    Ping(),
    Pong(),
    Message("in.1", "", b"", b"ab\r\nc"),
    Message("in.2", "back.1", b"", b""),
    Message("in.3", "", HEADER, b"body"),
    Message("in.4", "back.2", b"NATS/1.0 503\r\n\r\n", b""),
    ServerError("Authorization Violation"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_do_not_depend_on_how_bytes_come(cuts: list[int]) -> None:
    parser = Parser()
    edges = [0, *sorted(cuts), len(STREAM)]
    events = [
        event
        for begin, end in itertools.pairwise(edges)
        for event in parser.receive(STREAM[begin:end])
    ]
    assert events == EVENTS


def test_bytes_come_one_by_one() -> None:
    parser = Parser()
    assert [event for byte in STREAM for event in parser.receive(bytes([byte]))] == EVENTS


def test_headers_and_status() -> None:
    message = Message("a", "", HEADER, b"")
    assert message.headers() == {"Nats-Sequence": "7", "Empty": ""}
    assert message.status == 0
    end = Message("a", "", b"NATS/1.0 204 EOB now\r\nNats-Num-Pending: 0\r\n\r\n", b"")
    assert (end.status, end.description) == (204, "EOB now")
    assert (Message("a", "", b"", b"").status, Message("a", "", b"", b"").description) == (0, "")


@pytest.mark.parametrize(
    "wrong",
    [
        b"HELO\r\n",
        b"MSG in.1 1\r\n",
        b"MSG in.1 1 x\r\n",
        b"MSG in.1 1 a b 5\r\n",
        b"MSG in.1 1 2\r\nabcd\r\n",
        b"HMSG in.1 1 9 5\r\n",
        b"MSG in.1 1 99999999999\r\n",
        b"INFO {\r\n",
        b"INFO []\r\n",
        b"x" * (nats.MAX_LINE_BYTES + 1),
    ],
)
def test_what_is_not_nats_is_refused(wrong: bytes) -> None:
    with pytest.raises(NatsProtocolError):
        Parser().receive(wrong)


def test_a_message_without_headers() -> None:
    assert b"".join(nats.publish("a.b", "in.1", b"", [b"xy", b"z"])) == b"PUB a.b in.1 3\r\nxyz\r\n"
    assert b"".join(nats.publish("a.b", "", b"", [b"xyz"])) == b"PUB a.b 3\r\nxyz\r\n"


def test_a_message_with_headers() -> None:
    sent = b"".join(nats.publish("a", "in.1", b"Name: 1\r\n", [b"xyz"]))
    assert sent == b"HPUB a in.1 21 24\r\nNATS/1.0\r\nName: 1\r\n\r\nxyz\r\n"


def test_other_commands() -> None:
    assert nats.connect({"verbose": False}) == b'CONNECT {"verbose":false}\r\n'
    assert nats.subscribe("in.*", 1) == b"SUB in.* 1\r\n"
