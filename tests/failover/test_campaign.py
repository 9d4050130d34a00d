"""Leaders that are lost under load: the short version of `python -m tests.failover.campaign`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.servers import MISSING, program
from tests.failover import ledgers
from tests.failover.campaign import Outcome, audit, failovers, run, ways_of
from tests.pipeline.audit_reference import Reference

pytestmark = [pytest.mark.slow, pytest.mark.skipif(program() is None, reason=MISSING)]


def test_no_leader_that_is_lost_breaks_a_promise(tmp_path: Path) -> None:
    with failovers(tmp_path, seed=1) as (one, roaming, sites):
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
