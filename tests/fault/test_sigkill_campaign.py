"""SIGKILL at random moments under the load of many clients, whose own record is the judge.

A few rounds here, a hundred by `make fault`. Spec: DURABLE-16
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fault.campaign import hunt, kill_campaign, run_rounds
from tests.fault.ledger import Ledger
from tests.fault.planted import VARIABLE

pytestmark = pytest.mark.slow

ROUNDS = 7
PLANTED_ROUNDS = 8


@pytest.fixture(autouse=True)
def _ours(referee_url: str | None) -> None:
    if referee_url is not None:
        pytest.skip("kills VouchMQ's own process")


def test_no_kill_breaks_a_promise(tmp_path: Path) -> None:
    with kill_campaign(tmp_path, seed=8) as (one, strike):
        for violations in run_rounds(one, strike, ROUNDS):
            assert violations == []
        assert one.audit() == []
    assert one.outcome.audited > 1000
    assert one.outcome.rounds == ROUNDS
    assert one.outcome.confirmed > 1000, "too little load"
    assert one.outcome.judged > 500
    assert one.outcome.transactions > 20
    assert one.outcome.definitions > 20
    assert one.outcome.dead_letters > 5
    assert one.outcome.delayed > 50
    assert one.outcome.repeats > 20
    assert one.outcome.stream_offsets > 50


@pytest.mark.parametrize(
    ("bug", "sign"),
    [
        ("confirm-before-write", "promised messages are gone"),
        ("forget-deliveries", "delivered before and not told"),
        ("forget-acks", "that had gone or never were to last"),
        ("forget-keys", "keys: "),
        ("forget-delayed", "have not arrived"),
        ("lose-letters", "are in neither queue"),
    ],
)
def test_a_planted_bug_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str, sign: str
) -> None:
    monkeypatch.setenv(VARIABLE, bug)
    with kill_campaign(tmp_path, seed=8, program="tests.fault.planted") as (one, strike):
        caught = hunt(one, strike, PLANTED_ROUNDS, sign)
    assert any(sign in what for what in caught), caught


@pytest.fixture
def honest(tmp_path: Path) -> Iterator[Ledger]:
    """1 was acked for sure, 2 perhaps, 3 was delivered, 4 is only confirmed, 5 not even that."""
    with Ledger(tmp_path / "ledger.log") as ledger:
        for number in range(1, 6):
            ledger.sending(b"p:%d" % number, ("q",), "p")
        ledger.confirmed([b"p:%d" % number for number in range(1, 5)])
        for number in range(1, 4):
            ledger.receiving("q", b"p:%d" % number, redelivered=False)
        ledger.acking("q", [b"p:1"], "p")
        ledger.sending(b"m:1", ("other",), "p")
        ledger.confirmed([b"m:1"])
        ledger.acking("q", [b"p:2"], "p")
        ledger.sending(b"t:1", ("q",), "p", persistent=False)
        group = ledger.begin()
        group.publishes += [("one", b"x:1"), ("two", b"x:1")]
        ledger.sending(b"x:1", ("one", "two"), "p")
        ledger.ending(group, commit=True)
        yield ledger


def found(*numbers: int, told: int = 3) -> list[tuple[bytes, bool]]:
    """A queue with these messages, those up to `told` as redelivered."""
    return [(b"p:%d" % number, number <= told) for number in numbers]


def test_ledger_accepts_what_may_be(honest: Ledger) -> None:
    for numbers in ((3, 4), (2, 3, 4), (3, 4, 5), (2, 3, 4, 5)):
        assert honest.judge({"q": found(*numbers)}, end="kill") == []
    assert honest.judge({"one": [], "two": []}, end="kill") == []
    both = [(b"x:1", False)]
    assert honest.judge({"one": both, "two": both}, end="kill") == []
    # A power cut may take back that 2 and 3 were delivered: nothing was confirmed since.
    honest.received[("q", b"p:3")] = 1_000_000
    assert honest.judge({"q": found(3, 4, told=0)}, end="power") == []


@pytest.mark.parametrize(
    ("messages", "sign"),
    [
        (found(3), "promised messages are gone"),
        (found(3, 3, 4), "there twice"),
        (found(3, 5, 4), "order"),
        (found(3, 4, 9), "nobody published"),
        (found(1, 3, 4), "had gone"),
        ([*found(3, 4), (b"t:1", False)], "never were to last"),
        (found(3, 4, told=0), "not told"),
        (found(3, 4, told=4), "told as redelivered"),
    ],
)
def test_ledger_finds_what_may_not_be(
    honest: Ledger, messages: list[tuple[bytes, bool]], sign: str
) -> None:
    assert any(sign in what for what in honest.judge({"q": messages}, end="kill"))


def test_ledger_finds_half_a_transaction(honest: Ledger) -> None:
    half = {"one": [(b"x:1", False)], "two": []}
    assert any("in part" in what for what in honest.judge(half, end="kill"))
    honest.groups[0].acks.append(("q", b"p:4"))
    whole = [(b"x:1", False)]
    both = {"one": whole, "two": whole}
    assert honest.judge({**both, "q": found(3)}, end="kill") == []
    assert any("in part" in what for what in honest.judge({**both, "q": found(3, 4)}, end="kill"))
    honest.committed(honest.groups[0])
    assert any("are gone" in what for what in honest.judge({"one": [], "two": []}, end="kill"))


@pytest.mark.parametrize(
    ("numbers", "sign"),
    [((3,), "are gone"), ((4, 3), "changed its order"), ((3, 4, 5), "that had gone")],
)
def test_what_a_judgement_found_is_a_promise(
    honest: Ledger, numbers: tuple[int, ...], sign: str
) -> None:
    honest.turn_page({"q": found(3, 4)})
    assert honest.judge({"q": found(3, 4, told=4)}, end="kill") == []
    assert any(sign in what for what in honest.judge({"q": found(*numbers)}, end="kill"))


def test_deliveries_are_judged_as_they_come(tmp_path: Path) -> None:
    faults: list[tuple[Callable[[Ledger], None], str]] = [
        (lambda one: one.receiving("q", b"p:1", redelivered=False), "without redelivered"),
        (lambda one: one.receiving("q", b"p:9", redelivered=False), "nobody published"),
        (lambda one: one.confirmed([b"p:1"]), "settled twice"),
        (lambda one: one.nacked([b"p:1"]), "then nacked"),
    ]
    for number, (fault, sign) in enumerate(faults):
        with Ledger(tmp_path / f"{number}.log") as ledger:
            ledger.sending(b"p:1", ("q",), "p")
            ledger.confirmed([b"p:1"])
            ledger.receiving("q", b"p:1", redelivered=False)
            assert ledger.judge({"q": found(1, told=1)}, end="kill") == []
            fault(ledger)
            assert any(sign in what for what in ledger.judge({}, end="kill"))
