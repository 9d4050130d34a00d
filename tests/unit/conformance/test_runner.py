"""How cases become verdicts, without a broker: the cases here open no connection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from vouchmq.conformance.__main__ import main
from vouchmq.conformance.case import Body, Case, Verdict, all_cases, order
from vouchmq.conformance.expect import LateError, MismatchError, SkipError, Starting, says, within
from vouchmq.conformance.report import summary, write_json, write_junit
from vouchmq.conformance.runner import Plan, run
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.target import Target, parse
from vouchmq.conformance.untestable import UNTESTABLE

NOBODY = Target("127.0.0.1", 1, "guest", "guest", "/")


def kept(stage: Stage) -> None:
    """A rule that holds."""


def broken(stage: Stage) -> None:
    """A rule that does not."""
    raise MismatchError("got 1, wanted 2")


def impossible(stage: Stage) -> None:
    """A rule that cannot be judged."""
    raise SkipError("needs a moon")


def clumsy(stage: Stage) -> None:
    """A case with a bug of its own."""
    raise ZeroDivisionError


def lonely(stage: Stage) -> None:
    """A case that needs a broker."""
    stage.connect()


def judge(
    body: Body,
    plan: Plan | None = None,
    *,
    referee_reason: str = "",
    needs_restart: bool = False,
) -> Verdict:
    """The verdict on one case."""
    one = Case(
        "CONF-01",
        "something",
        "≡",
        body,
        referee_reason=referee_reason,
        needs_restart=needs_restart,
    )
    told: list[Verdict] = []
    verdicts = run([one], plan or Plan(NOBODY), told.append)
    assert told == verdicts
    return verdicts[0]


def test_a_case_that_returns_has_passed() -> None:
    assert judge(kept).outcome == "passed"


def test_a_mismatch_fails_with_its_reason() -> None:
    verdict = judge(broken)
    assert (verdict.outcome, verdict.reason) == ("failed", "got 1, wanted 2")


def test_a_bug_in_a_case_fails_that_case_only() -> None:
    verdict = judge(clumsy)
    assert verdict.outcome == "failed"
    assert "ZeroDivisionError in the case itself" in verdict.reason


def test_a_broker_that_is_not_there_fails_the_case() -> None:
    assert judge(lonely).outcome == "failed"


def test_a_skip_gives_its_reason() -> None:
    verdict = judge(impossible)
    assert (verdict.outcome, verdict.reason) == ("skipped", "needs a moon")


def test_a_known_departure_is_excused_for_the_referee_only() -> None:
    assert judge(broken, referee_reason="C-13").outcome == "failed"
    excused = judge(broken, Plan(NOBODY, is_referee=True), referee_reason="C-13")
    assert (excused.outcome, excused.reason) == ("excused", "C-13 (got 1, wanted 2)")
    assert judge(broken, Plan(NOBODY, is_referee=True)).outcome == "failed"


@pytest.mark.parametrize(
    ("rule", "is_referee", "failures", "outcome", "tries"),
    [
        ("STREAM-23", True, 0, "passed", 0),
        ("STREAM-23", True, 2, "passed", 2),
        ("STREAM-23", True, 3, "failed", 2),
        # Ours has to keep it at once, and so has RabbitMQ what does not race there.
        ("STREAM-23", False, 1, "failed", 0),
        ("CONF-01", True, 1, "failed", 0),
    ],
)
def test_what_races_on_the_referee_is_tried_again(
    rule: str, is_referee: bool, failures: int, outcome: str, tries: int
) -> None:
    left = iter(range(failures))

    def racing(stage: Stage) -> None:
        for number in left:
            raise MismatchError(f"race {number}")

    one = Case(rule, "something", "≡", racing)
    verdict = run([one], Plan(NOBODY, is_referee=is_referee), lambda verdict: None)[0]
    assert (verdict.outcome, len(verdict.tries)) == (outcome, tries)
    assert list(verdict.tries) == [f"race {number}" for number in range(tries)]


@pytest.mark.parametrize(
    ("late", "outcome", "tries"), [(0, "passed", 0), (2, "passed", 2), (3, "failed", 2)]
)
def test_what_is_late_is_tried_again(late: int, outcome: str, tries: int) -> None:
    took = iter([1.7] * late + [1.5] * 3)

    def timed(stage: Stage) -> None:
        within(next(took), 1.5, "the answer")

    verdict = judge(timed)
    assert (verdict.outcome, len(verdict.tries)) == (outcome, tries)
    assert set(verdict.tries) <= {"the answer: after 1.700 s, 1.5 s are allowed"}


def test_what_is_late_and_then_wrong_has_failed() -> None:
    faults = iter([LateError("late"), MismatchError("wrong")])

    def timed(stage: Stage) -> None:
        raise next(faults)

    verdict = judge(timed)
    assert (verdict.outcome, verdict.reason, verdict.tries) == ("failed", "wrong", ("late",))


def test_a_restart_case_is_skipped_without_the_command() -> None:
    verdict = judge(halves, needs_restart=True)
    assert (verdict.outcome, verdict.reason) == ("skipped", "needs --restart-command")


def halves(stage: Stage) -> Iterator[None]:
    """A case around a restart."""
    yield


def test_a_restart_command_that_fails_fails_the_cases_behind_it() -> None:
    verdict = judge(halves, Plan(NOBODY, restart_command="false"), needs_restart=True)
    assert (verdict.outcome, verdict.reason) == ("failed", "the restart command ended with 1")


def test_a_case_that_yields_without_asking_for_a_restart_fails() -> None:
    assert judge(halves).outcome == "failed"


def test_slow_and_serial_cases_keep_their_place_in_the_table() -> None:
    cases = [
        Case("CONF-01", "one", "≡", kept, is_serial=True),
        Case("CONF-02", "two", "≡", kept, is_slow=True),
        Case("CONF-03", "three", "≡", kept),
    ]
    verdicts = run(cases, Plan(NOBODY), lambda verdict: None)
    assert [verdict.case for verdict in verdicts] == cases


def verdicts() -> list[Verdict]:
    """One of each outcome."""
    one = Case("CONF-01", "a [bracket] & an <angle>", "≡", kept)
    return [
        Verdict(one, "passed"),
        Verdict(one, "failed", "no \x00 way", ("  < \x07 1 basic.ack",)),
        Verdict(one, "skipped", "needs a moon"),
        Verdict(one, "excused", "C-13"),
    ]


def test_the_summary_counts() -> None:
    assert summary(verdicts()[:3]) == "1 passed, 1 failed, 1 skipped"
    assert summary(verdicts()) == "1 passed, 1 failed, 1 skipped, 1 excused"


def test_json_and_junit_hold_every_verdict(tmp_path: Path) -> None:
    write_json(tmp_path / "r.json", "amqp://guest@h:1/", verdicts())
    report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert [row["verdict"] for row in report["cases"]] == ["passed", "failed", "skipped", "excused"]
    write_junit(tmp_path / "r.xml", verdicts())
    suite = ElementTree.parse(tmp_path / "r.xml").getroot()  # noqa: S314 - written just above
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "1", "2")


def test_every_case_has_a_rule_and_a_title_of_its_own() -> None:
    cases = all_cases()
    assert len(cases) > 600
    assert len({one.title for one in cases}) == len(cases)
    assert [order(one.rule) for one in cases] == sorted(order(one.rule) for one in cases)


def test_no_rule_is_both_tested_and_untestable() -> None:
    assert not {one.rule for one in all_cases()} & set(UNTESTABLE)


def test_a_text_with_a_free_end_needs_its_beginning_only() -> None:
    says("FRAME_ERROR - type 1", Starting("FRAME_ERROR"), "text")
    with pytest.raises(MismatchError):
        says("FRAME_ERROR - type 1", "FRAME_ERROR", "text")
    with pytest.raises(MismatchError):
        says("SYNTAX_ERROR", Starting("FRAME_ERROR"), "text")


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("amqp://h", Target("h", 5672, "guest", "guest", "/")),
        ("amqp://a:b%20c@h:7/", Target("h", 7, "a", "b c", "/")),
        ("amqp://h/%2Fv", Target("h", 5672, "guest", "guest", "/v")),
    ],
)
def test_a_url_names_the_target(url: str, wanted: Target) -> None:
    assert parse(url) == wanted


@pytest.mark.parametrize("url", ["http://h/", "amqp://", "nonsense", "amqp://h:port/"])
def test_a_bad_url_is_one_line_and_exit_2(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", url]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_no_broker_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "amqp://127.0.0.1:1/"]) == 2
    assert "no broker at 127.0.0.1:1" in capsys.readouterr().err


def test_list_names_the_cases_and_asks_no_broker(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", "TX-14"]) == 0
    assert capsys.readouterr().out.startswith("TX-14")
