"""Processes that are lost under load: short versions of `tests.failover.campaign` and `.pairs`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.servers import MISSING, program
from tests.failover import ledgers
from tests.failover.campaign import Outcome, audit, failovers, run, ways_of
from tests.failover.pairs import BROKERS, SERVERS, Pairs, all_ways
from tests.pipeline.audit_reference import Reference

HOWS = ("kill", "pause")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(program() is None, reason=MISSING)]


@pytest.mark.parametrize("confirm", ["log", "log+standby"])
def test_no_leader_that_is_lost_breaks_a_promise(tmp_path: Path, confirm: str) -> None:
    with failovers(tmp_path, seed=1, confirm=confirm) as (one, roaming, sites):
        assert run(one, roaming, ["pause", "kill", "stop"], print) == []
        assert audit(sites, tmp_path, one.seen, runs_spark=False) == []
    assert one.outcome.confirmed > 200, "too little load"
    assert one.outcome.transactions > 3
    assert one.seen.roaming_confirmed > 100
    assert one.seen.epochs_audited == 4
    assert one.seen.copies_audited > 500
    # Each ledger by itself knows of times in which others led, and blames nobody for them.
    for each in sites.brokers:
        epochs = ledgers.read_all([each.data_dir / "ledger"])
        reference = Reference(line for lines in epochs for line in lines)
        assert not reference.findings


def test_no_process_that_is_lost_alone_or_with_another_one_breaks_a_promise(tmp_path: Path) -> None:
    """Two brokers, a broker and a server, two servers, a standby; each signal for each kind."""
    ways = [
        "kill leader and pause standby",
        "pause leader and kill stream leader",
        "kill standby and pause follower",
        "pause stream leader and kill follower",
        "pause standby",
    ]
    assert set(ways) <= set(all_ways())
    with failovers(tmp_path, seed=2) as (one, roaming, sites):
        assert run(one, roaming, ways, print, Pairs(one, roaming, sites).lose) == []
        assert audit(sites, tmp_path, one.seen, runs_spark=False) == []
    assert one.outcome.confirmed > 200, "too little load"
    assert one.outcome.transactions > 3
    # The leader is lost in each round, by that or at its end.
    assert sum(one.seen.leaders.values()) == len(ways)
    assert one.seen.epochs_audited > len(ways)
    assert one.seen.copies_audited > 500


def test_every_pair_is_lost_with_each_signal() -> None:
    ways = all_ways()
    assert len(set(ways)) == len(ways) == 12 + 15 * 4
    for first in (*BROKERS, *SERVERS):
        for second in {*BROKERS, *SERVERS} - {first}:
            names = {f"{one} {first} and {two} {second}" for one in HOWS for two in HOWS}
            other = {f"{two} {second} and {one} {first}" for one in HOWS for two in HOWS}
            assert len((names | other) & set(ways)) == 4
        assert {f"{how} {first}" for how in HOWS} <= set(ways)


def test_ways_are_drawn_by_their_weights() -> None:
    drawn = ways_of(22, 5)
    assert {way: drawn.count(way) for way in drawn} == {
        "kill": 10,
        "pause": 5,
        "handover": 3,
        "stop": 3,
        "machine": 1,
    }
    assert ways_of(22, 5) == drawn
    assert len(set(ways_of(10, 1))) > 1
    assert Outcome().as_json()["violations"] == []
