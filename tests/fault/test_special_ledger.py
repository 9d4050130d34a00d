"""The judges of dead letters, delays, keys and streams accept what may be and nothing else.

Spec: DLX-08, REDELIVER-10, DELAY-12, DELAY-17, DUP-08, DUP-10, STREAM-02, STREAM-03
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.special_ledger import DeadLetters, Delays, Keys, Offsets

NOW = 1000.0


def names(*numbers: int) -> list[bytes]:
    """Messages by their numbers."""
    return [b"p:%d" % number for number in numbers]


@pytest.fixture
def dead_letters(tmp_path: Path) -> Iterator[DeadLetters]:
    """1 acked and 2 rejected for sure, 3 acked and 4 rejected perhaps, 5 held, 6 unconfirmed."""
    record = DeadLetters(tmp_path / "letters.log")
    for name in names(1, 2, 3, 4, 5):
        record.sending(name)
        record.received(name)
    record.confirmed(names(1, 2, 3, 4, 5))
    record.settling(b"p:1", "ack")
    record.settling(b"p:2", "reject")
    record.sending(b"p:7")
    record.confirmed([b"p:7"])
    record.settling(b"p:3", "ack")
    record.settling(b"p:4", "reject")
    record.sending(b"p:6")
    yield record
    record.close()


@pytest.mark.parametrize(
    ("work", "dead"),
    [
        (names(5, 7), names(2, 4)),
        (names(3, 4, 5, 7), names(2)),
        (names(5, 6, 7), names(2, 4)),
        # Out when it ended, for the last time.
        (names(7), names(2, 3, 4, 5)),
    ],
)
def test_dead_letters_that_may_be(
    dead_letters: DeadLetters, work: list[bytes], dead: list[bytes]
) -> None:
    assert dead_letters.judge(work, dead) == []


@pytest.mark.parametrize(
    ("work", "dead", "sign"),
    [
        (names(5, 7), names(2), "in neither queue: p:4"),
        (names(4, 5, 7), names(2, 4), "in both queues: p:4"),
        (names(7), names(2, 4), "in neither queue: p:5"),
        (names(1, 5, 7), names(2, 4), "had gone and are there: p:1"),
        (names(5, 7), names(1, 2, 4), "had gone and are there: p:1"),
        (names(2, 5, 7), names(4), "not dead: p:2"),
        (names(5), names(2, 4, 7), "never delivered: p:7"),
        (names(5, 5, 7), names(2, 4), "there twice"),
        (names(5, 7), names(2, 4, 4), "there twice"),
        (names(5, 7, 9), names(2, 4), "nobody published"),
    ],
)
def test_dead_letters_that_may_not_be(
    dead_letters: DeadLetters, work: list[bytes], dead: list[bytes], sign: str
) -> None:
    assert any(sign in what for what in dead_letters.judge(work, dead))


def test_a_dead_letter_stays_dead(dead_letters: DeadLetters) -> None:
    dead_letters.turn_page(names(5, 7), names(2, 4), drained=False)
    assert dead_letters.died == 2
    assert dead_letters.judge(names(7), names(2, 4, 5)) == []
    assert any("not any more" in what for what in dead_letters.judge(names(4, 5, 7), names(2)))
    assert any("neither" in what for what in dead_letters.judge(names(5, 7), names(2)))
    # 3 and 6 were not there, so they never come back.
    assert any("had gone" in what for what in dead_letters.judge(names(3, 5, 7), names(2, 4)))
    dead_letters.received(b"p:4")
    assert any("was dead" in what for what in dead_letters.judge(names(5, 7), names(2, 4)))
    dead_letters.turn_page(names(5, 7), names(2, 4), drained=True)
    assert dead_letters.judge(names(5, 7), []) == []
    assert any("had gone" in what for what in dead_letters.judge(names(5, 7), names(2)))


def test_reasons_of_death_and_settled_dead_letters(dead_letters: DeadLetters) -> None:
    reasons = {b"p:2": "rejected", b"p:4": "rejected", b"p:5": "rejected"}
    assert any("said to be rejected: p:5" in what for what in dead_letters.judge(names(7), reasons))
    reasons[b"p:5"] = "delivery_limit"
    assert dead_letters.judge(names(7), reasons) == []
    # Who has never been delivered may be old, but cannot have come back.
    assert dead_letters.judge([], {**reasons, b"p:7": "expired"}) == []
    assert any("never" in what for what in dead_letters.judge([], {**reasons, b"p:7": "rejected"}))
    dead_letters.received(b"p:3")
    assert any("after it was settled" in what for what in dead_letters.judge(names(7), reasons))
    dead_letters.refused([b"p:6"])
    assert any("was nacked" in what for what in dead_letters.judge(names(7), reasons))


@pytest.fixture
def delays(tmp_path: Path) -> Iterator[Delays]:
    """1 acked for sure, 2 perhaps, 3 due, 4 to come, 5 due and not confirmed."""
    record = Delays(tmp_path / "delays.log")
    for number, due in ((1, NOW - 9), (2, NOW - 9), (3, NOW - 1), (4, NOW + 9), (5, NOW - 1)):
        record.delaying(b"p:%d" % number, due)
    record.received(b"p:1", NOW - 8, redelivered=False)
    record.acking(b"p:1")
    record.delaying(b"p:6", NOW + 9)
    record.confirmed(names(1, 2, 3, 4, 6))
    record.received(b"p:2", NOW - 8, redelivered=False)
    record.acking(b"p:2")
    yield record
    record.close()


@pytest.mark.parametrize("come", [names(3), names(2, 3), names(3, 5)])
def test_delays_that_may_be(delays: Delays, come: list[bytes]) -> None:
    delays.crashed()
    for name in come:
        delays.received(name, NOW, redelivered=False)
    assert delays.judge(come, NOW) == []
    delays.turn_page(come)
    assert delays.awaited(NOW + 10) == set(names(4, 6))
    delays.crashed()
    delays.received(b"p:4", NOW + 9.1, redelivered=False)
    assert delays.judge(names(4), NOW + 8) == []
    assert any("not arrived: p:6" in what for what in delays.judge(names(4), NOW + 10))


@pytest.mark.parametrize(
    ("come", "sign"),
    [
        ([], "not arrived: p:3"),
        (names(3, 4), "early"),
        (names(3, 3), "twice"),
        (names(1, 3), "again after its ack"),
        (names(3, 9), "never published"),
    ],
)
def test_delays_that_may_not_be(delays: Delays, come: list[bytes], sign: str) -> None:
    delays.crashed()
    for name in come:
        delays.received(name, NOW, redelivered=False)
    assert any(sign in what for what in delays.judge(come, NOW))


def test_keys(tmp_path: Path) -> None:
    record = Keys(tmp_path / "keys.log")
    for name in names(1, 2, 3):
        record.sending(name)
    record.confirmed(names(1, 2))
    assert record.unsettled() == names(3)
    record.sending(b"p:1")
    assert record.repeats == 1
    assert record.judge(names(1, 2)) == record.judge(names(1, 2, 3)) == []
    assert any("gone: p:2" in what for what in record.judge(names(1)))
    assert any("there twice" in what for what in record.judge(names(1, 2, 1)))
    assert any("nobody" in what for what in record.judge(names(1, 2, 9)))
    record.turn_page(names(1, 2), drained=True)
    assert record.judge(names(3)) == record.judge([]) == []
    assert any("a second time: p:1" in what for what in record.judge(names(1)))
    record.close()


def test_offsets(tmp_path: Path) -> None:
    record = Offsets(tmp_path / "offsets.log")
    for name in names(1, 2, 3, 4):
        record.sending(name)
    record.confirmed(names(1, 2))
    for offset, name in enumerate(names(1, 2, 3)):
        record.received(offset, name)
    # The third was delivered, but nobody was told that it would stay.
    assert record.judge(0, list(enumerate(names(1, 2)))) == []
    assert record.judge(0, list(enumerate(names(1, 2, 4)))) == []
    faults = [
        (list(enumerate(names(1))), "gone: p:2"),
        (list(enumerate(names(2, 1))), "order"),
        (list(enumerate(names(2, 1))), "another offset"),
        ([(0, b"p:1"), (2, b"p:2")], "gaps or doubles"),
        (list(enumerate(names(1, 2, 2))), "there twice"),
        (list(enumerate(names(1, 2, 9))), "nobody"),
    ]
    for found, sign in faults:
        assert any(sign in what for what in record.judge(0, found)), sign
    record.turn_page(0, list(enumerate(names(1, 2, 3))))
    assert record.judge(1, [(1, b"p:2"), (2, b"p:3"), (3, b"p:4")]) == []
    assert any("has changed" in what for what in record.judge(1, [(1, b"p:2")]))
    assert any("two offsets" in what for what in record.judge(2, [(2, b"p:3"), (3, b"p:1")]))
    record.received(4, b"p:4")
    record.received(4, b"p:4")
    assert any("4 came after 4" in what for what in record.judge(2, [(2, b"p:3")]))
    record.close()
