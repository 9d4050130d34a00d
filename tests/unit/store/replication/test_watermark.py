"""The lower of synced and committed."""

from __future__ import annotations

from vouchmq.store.replication.watermark import Watermark


def test_it_waits_for_the_disk_and_for_the_log() -> None:
    told: list[int] = []
    watermark = Watermark(10, told.append)
    watermark.synced_here(15)
    assert (watermark.lsn, told[-1:]) == (10, [10])
    watermark.committed(12)
    watermark.committed(20)
    watermark.synced_here(18)
    assert told == [10, 12, 15, 18]
    assert watermark.lsn == 18


def test_it_waits_for_a_standby_if_that_is_asked_for() -> None:
    told: list[int] = []
    watermark = Watermark(10, told.append, needs_standby=True)
    # What recovery has found may be on this disk only.
    assert watermark.lsn == 0
    watermark.committed(20)
    watermark.synced_here(30)
    assert told[-1] == 0
    watermark.synced_on_standby(15)
    watermark.synced_on_standby(25)
    assert told[-2:] == [15, 20]
    watermark.committed(40)
    watermark.synced_on_standby(40)
    assert told[-1] == 30


def test_it_never_goes_back() -> None:
    told: list[int] = []
    watermark = Watermark(10, told.append)
    watermark.committed(9)
    watermark.synced_here(9)
    watermark.committed(30)
    assert told == []
    assert watermark.lsn == 10


def test_it_speaks_also_when_nothing_new_is_safe() -> None:
    """Whoever waits for a block without LSNs of its own asks then."""
    told: list[int] = []
    watermark = Watermark(10, told.append)
    watermark.synced_here(10)
    watermark.committed(10)
    assert told == [10, 10]
