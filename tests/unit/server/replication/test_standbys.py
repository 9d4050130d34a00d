"""The standbys that a leader hears, what they say, and what is said of them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert, json
from structlog.testing import capture_logs

from vouchmq.server.replication.reports import (
    MOST_BYTES,
    Report,
    ReportError,
    Topics,
    encode,
    parse_report,
)
from vouchmq.server.replication.roles import STANDBY_S
from vouchmq.server.replication.standbys import MOST_STANDBYS, Standbys
from vouchmq.store.replication.record import Subjects

LOG = "00112233445566778899aabbccddeeff"
FACTS: dict[str, Any] = {
    "log": LOG,
    "node": "b",
    "address": "b.example:5672",
    "epoch": 1,
    "sequence": 9,
    "generation": 4,
    "offset": 10,
    "synced_sequence": 8,
    "synced_number": 7,
    "synced_checksum": 6,
    "synced_lsn": 5,
    "is_whole": True,
    "can_take_over": True,
    "lag": 1,
    "lag_s": 0.25,
}


def report(**changes: Any) -> Report:
    return convert({**FACTS, **changes}, Report)


def test_a_report_is_read_as_it_was_written() -> None:
    assert parse_report(encode(report()), LOG) == report()


def test_what_a_newer_program_adds_is_passed_over() -> None:
    assert parse_report(json.encode({**FACTS, "mood": "good"}), LOG) == report()


def test_a_standby_of_an_older_program_tells_no_address() -> None:
    facts = {name: value for name, value in FACTS.items() if name != "address"}
    assert parse_report(json.encode(facts), LOG) == report(address="")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b"{" * 5000,
        b" " * (MOST_BYTES + 1),
        json.encode({name: value for name, value in FACTS.items() if name != "epoch"}),
        *(
            json.encode({**FACTS, **wrong})
            for wrong in (
                {"log": "ff" * 16},
                {"node": ""},
                {"node": "b" * 256},
                {"node": "b\n"},
                {"node": 7},
                {"address": "b:5672\n"},
                {"address": "b" * 301},
                {"sequence": -1},
                {"sequence": 1 << 63},
                {"lag_s": -0.5},
                {"synced_number": -2},
                {"can_take_over": 1},
            )
        ),
    ],
)
def test_what_is_no_report_of_this_log_is_counted_and_told_once(payload: bytes) -> None:
    with pytest.raises(ReportError):
        parse_report(payload, LOG)
    standbys = Standbys("leader", LOG, 0.0)
    with capture_logs() as logs:
        assert standbys.parse(payload) is None
        assert standbys.parse(payload) is None
    assert standbys.ignored_count == 2
    assert [each["event"] for each in logs] == ["replication.report_ignored"]


def hear(
    standbys: Standbys, now: float, lag_bytes: int = 0, *, lag: int = 0, **changes: Any
) -> None:
    found = standbys.parse(encode(report(**changes)))
    assert found is not None
    standbys.heard(now, found, lag=lag, lag_bytes=lag_bytes, segment_bytes=1000)


def test_the_newest_report_of_each_node_counts() -> None:
    standbys = Standbys("leader", LOG, 0.0)
    hear(standbys, 1.0, 3, node="c")
    hear(standbys, 1.0, 2, sequence=5)
    # Records are counted by the leader: who reports has not heard of the newest.
    hear(standbys, 2.0, 1, lag=183)
    first, second = standbys.facts(3.5)
    assert first == {
        "node": "b",
        "address": "b.example:5672",
        "epoch": 1,
        "sequence": 9,
        "synced_sequence": 8,
        "synced_lsn": 5,
        "lag": 183,
        "lag_bytes": 1,
        "lag_s": 0.25,
        "can_take_over": True,
        "heard_s": 1.5,
    }
    assert (second["node"], second["lag_bytes"], second["heard_s"]) == ("c", 3, 2.5)


def test_a_leader_is_no_standby_of_its_own() -> None:
    standbys = Standbys("leader", LOG, 0.0)
    with capture_logs() as logs:
        assert standbys.parse(encode(report(node="leader"))) is None
    assert (standbys.ignored_count, logs) == (0, [])


def test_who_is_silent_drops_out() -> None:
    standbys = Standbys("leader", LOG, 0.0)
    hear(standbys, 0.0)
    hear(standbys, 10.0, node="c")
    standbys.look(STANDBY_S + 1)
    assert [each["node"] for each in standbys.facts(STANDBY_S + 1)] == ["c"]


def test_no_more_than_so_many_are_kept() -> None:
    standbys = Standbys("leader", LOG, 0.0)
    for number in range(MOST_STANDBYS):
        hear(standbys, 0.0, node=f"n{number}")
    assert standbys.parse(encode(report(node="one more"))) is None
    hear(standbys, 50.0, node="n3")
    standbys.look(STANDBY_S + 1)
    hear(standbys, STANDBY_S + 1, node="one more")
    assert [each["node"] for each in standbys.facts(100.0)] == ["n3", "one more"]


@pytest.mark.parametrize("heard_before", [False, True])
def test_a_leader_without_standbys_says_so_once(heard_before: bool) -> None:
    standbys = Standbys("leader", LOG, 0.0)
    with capture_logs() as logs:
        if heard_before:
            hear(standbys, 30.0)
            standbys.look(STANDBY_S + 20)
            assert logs == []
        standbys.look(STANDBY_S + 31)
        standbys.look(STANDBY_S + 32)
        assert [each["event"] for each in logs] == ["replication.alone"]
        hear(standbys, 200.0)
        standbys.look(200.0)
        standbys.look(201.0 + STANDBY_S)
    assert [each["event"] for each in logs] == ["replication.alone"] * 2


def test_a_standby_that_is_more_than_a_segment_behind() -> None:
    standbys = Standbys("leader", LOG, 0.0)
    with capture_logs() as logs:
        for lag_bytes in (0, 1000, 1001, 5000, 800, 1200):
            hear(standbys, 1.0, lag_bytes)
        assert [(each["event"], each["node"], each["lag_bytes"]) for each in logs] == [
            ("replication.lagging", "b", 1001)
        ]
        hear(standbys, 2.0, 400)
        hear(standbys, 3.0, 1500)
    assert len(logs) == 2


def test_reports_are_not_in_the_log() -> None:
    """A stream takes in what its pattern matches, whoever sent it."""
    own, log = Topics("orders").reports.split("."), Subjects("orders").lasting.split(".")
    assert own[0] != log[0]
