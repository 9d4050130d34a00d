"""When acks that wait for company are sent."""

from __future__ import annotations

from vouchmq.kit.batching import AckBatch


def test_a_batch_is_due_when_it_is_full() -> None:
    batch = AckBatch(0.3, now_s=10.0)
    for tag in (1, 2):
        batch.add(tag)
        assert not batch.is_due(3, 10.1, timed=True)
    batch.add(3)
    assert batch.is_due(3, 10.1, timed=True)
    assert batch.take(10.1) == 3
    assert len(batch) == 0


def test_a_batch_is_due_some_time_after_the_last_ack() -> None:
    """REDELIVER-32: the time counts from the last ack, not from the first message that waits."""
    batch = AckBatch(0.3, now_s=10.0)
    batch.add(1)
    assert not batch.is_due(65, 10.29, timed=True)
    assert batch.is_due(65, 10.31, timed=True)
    assert batch.take(10.31) == 1
    assert batch.deadline_s == 10.31 + 0.3
    batch.add(2)
    assert batch.is_due(65, 99.0, timed=True)


def test_without_a_timer_only_the_number_counts() -> None:
    """REDELIVER-35."""
    batch = AckBatch(0.3, now_s=0.0)
    batch.add(1)
    assert not batch.is_due(2, 1000.0, timed=False)
    batch.add(2)
    assert batch.is_due(2, 0.0, timed=False)


def test_nothing_is_due_when_nobody_waits() -> None:
    batch = AckBatch(0.3, now_s=0.0)
    assert not batch.is_due(1, 1000.0, timed=True)
    assert batch.take(1000.0) == 0
    assert batch.deadline_s == 0.3
