"""What the audit is given and refuses before Spark starts, and what its verdict line says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from vouchmq.spark.audit import cli, input, summary_text
from vouchmq.spark.audit.result import INTERNAL, Job, Result
from vouchmq.spark.audit.tables import Scope
from vouchmq.spark.command_line import UsageError
from vouchmq.spark.ledger.facts import Facts
from vouchmq.spark.ledger.seals import Seals

LEDGER = "one-00000001-00000001.jsonl"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with a ledger `l`, lines of a witness `w`, a file, and an empty directory."""
    (tmp_path / "l").mkdir()
    (tmp_path / "l" / LEDGER).touch()
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "client.jsonl").touch()
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    return tmp_path


def told(here: Path, arguments: list[str]) -> list[str]:
    """The arguments with the directory in its place, and an `--out` unless they have one."""
    given = [each.replace("{tmp}", str(here)) for each in arguments]
    return given if "--out" in given else [*given, "--out", f"{here}/out"]


def checked(here: Path, *arguments: str) -> tuple[str, ...]:
    """What would be read, were Spark to start."""
    return input.check(cli.parser().parse_args(told(here, list(arguments))))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to audit: specify a PATH, --data-dir or --witness"),
        (["{tmp}/l", "--since", "2026-02-01", "--until", "2026-01-01"], "--since is not before"),
        (["{tmp}/l", "--since", "2026-02-01", "--until", "2026-02-01"], "--since is not before"),
        ([""], "argument PATH: an empty path"),
        (["{tmp}/l", "--out", ""], "argument --out: an empty path"),
        (["{tmp}/l", "--report", ""], "argument --report: an empty path"),
        (["--data-dir", ""], "argument --data-dir: an empty path"),
        (["--witness", ""], "argument --witness: an empty path"),
        (["{tmp}/l", "--memory", "lots"], "argument --memory: 'lots' is not a size such as 2g"),
        (["{tmp}/l", "--memory", "0g"], "argument --memory: '0g': Spark needs at least 480m"),
        (["{tmp}/l", "--out", "{tmp}/file"], "--out {tmp}/file is not a directory"),
        (
            ["{tmp}/l", "--out", "{tmp}/file/x/y"],
            "--out {tmp}/file/x/y: {tmp}/file is not a directory",
        ),
        (["{tmp}/l", "--out", "{tmp}/l"], "--out {tmp}/l is not empty"),
        (["{tmp}/empty", "--out", "{tmp}/empty"], "--out {tmp}/empty is the ledger itself"),
        (["{tmp}/l", "--report", "{tmp}/empty"], "--report {tmp}/empty is a directory"),
        (["{tmp}/l", "--report", "{tmp}/x/y"], "--report {tmp}/x/y: {tmp}/x is not a directory"),
        (["--witness", "{tmp}/nothing"], "--witness: {tmp}/nothing is not there"),
        (["--witness", "{tmp}/empty"], "--witness: {tmp}/empty holds no lines of witnesses"),
        (["{tmp}/l", "--witness", "{tmp}/w", "--incremental"], "--incremental is for ledgers"),
        (["{tmp}/l", "--shared-log", "--incremental"], "--shared-log is for a full audit"),
        (["--witness", "{tmp}/w", "--shared-log"], "--shared-log is about ledgers"),
        (["--witness", "{tmp}/w", "--report", "{tmp}/r"], "--report is about ledgers"),
        (["--witness", "{tmp}/w", "--since", "2026-01-01"], "--since is about ledgers"),
        (["--witness", "{tmp}/w", "--until", "2026-01-01"], "--until is about ledgers"),
        (["--witness", "{tmp}/w", "--vhost", "/"], "--vhost is about ledgers"),
        (["--witness", "{tmp}/w", "--queue", "a"], "--queue is about ledgers"),
        (["--witness", "{tmp}/w", "--partition-by-queue"], "--partition-by-queue is about ledgers"),
        (["--witness", "{tmp}/w", "--poison-deliveries", "5"], "--poison-deliveries is about"),
        (["--witness", "{tmp}/w", "--fail-on", "order"], "order is not a finding of witnesses"),
        (["{tmp}/l", "--fail-on", "duplicate"], "duplicate is not a finding of ledgers"),
        (["{tmp}/l", "--fail-on", "lost"], "argument --fail-on: 'lost' is not a finding; they are"),
    ],
)
def test_bad_input_is_one_line_before_spark(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    before = sorted(here.rglob("*"))
    try:
        code = cli.main(told(here, arguments))
    except SystemExit as left:
        code = int(left.code or 0)
    error = capsys.readouterr().err
    assert code == 2
    assert error.count("\n") == 1
    assert error.startswith("vouchmq audit: ")
    assert said.replace("{tmp}", str(here)) in error
    assert sorted(here.rglob("*")) == before


def test_good_input_is_let_through_and_the_output_marked(here: Path) -> None:
    assert checked(here, "{tmp}/l", "--report", "{tmp}/out/page.html") == (f"{here}/l",)
    assert (here / "out" / INTERNAL).is_dir()
    assert checked(here, "--witness", "{tmp}/w", "--fail-on", "clock,duplicate") == ()
    assert checked(here, "{tmp}/l", "--witness", "{tmp}/w", "--fail-on", "clock,order")


@pytest.mark.parametrize("name", ["copies", "messages", "witness", "summary.json"])
def test_a_directory_is_an_earlier_audit_by_its_mark_only(here: Path, name: str) -> None:
    out = here / "out"
    out.mkdir()
    if name == "summary.json":
        (out / name).write_text('{"copies": 5}')
    else:
        (out / name).mkdir()
    with pytest.raises(UsageError, match="was not written by vouchmq audit"):
        checked(here, "{tmp}/l")
    (out / "summary.json").write_text(json.dumps({"states": {}, "findings": {}, "copies": 0}))
    assert checked(here, "{tmp}/l")


def test_the_ledger_of_a_broker_is_where_its_inventory_is(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter((f"{here}/l/{LEDGER}\n", "elsewhere/x.jsonl\n", ""))

    def answered(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        answer = next(answers)
        if not answer:
            return subprocess.CompletedProcess(command, 1, "", "vouchmq: it is off\n")
        return subprocess.CompletedProcess(command, 0, answer, "")

    monkeypatch.setattr(subprocess, "run", answered)
    assert checked(here, "--data-dir", "{tmp}/data") == (f"{here}/l",)
    with pytest.raises(UsageError, match="its ledger is in elsewhere, seen from where the broker"):
        checked(here, "--data-dir", "{tmp}/data")
    with pytest.raises(UsageError, match=r"--data-dir .*/data: it is off"):
        checked(here, "--data-dir", "{tmp}/data")


def test_the_broker_is_told_the_result(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    answers = [(0, ""), (2, "vouchmq: no broker uses it\n")]

    def answered(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        code, said = answers.pop(0)
        return subprocess.CompletedProcess(command, code, "", said)

    monkeypatch.setattr(subprocess, "run", answered)
    assert input.record(here / "data", here / "out") == ""
    assert asked[0][3:] == [
        *("ledger", "audited", f"{here}/out/summary.json", "--data-dir", f"{here}/data")
    ]
    assert input.record(here / "data", here / "out") == "no broker uses it"


def test_a_relative_path_of_a_ledger_is_one_of_the_data_directory(here: Path) -> None:
    (here / "ledger").mkdir()
    (here / "ledger" / LEDGER).touch()
    assert input.directory_of(f"data/ledger/{LEDGER}", here) == here / "ledger"


def result(
    states: dict[str, int],
    findings: dict[str, int] | None = None,
    scope: Scope | None = None,
    broken: int = 0,
) -> Result:
    job = Job(("l",), Path("out"), scope or Scope())
    facts = Facts(broken_count=broken)
    return Result(job, facts, Seals(), states, findings or {}, [], [], [], 1.0)


SCOPED = Scope(1_767_225_600_000_000, None, "/", "a.*")


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        (result({"acked": 3}), 0, "every confirmed message is accounted for (exit 0)"),
        (
            result({"acked": 3}, {"confirm_twice": 2}),
            0,
            "every confirmed message is accounted for; 2 publishes were confirmed twice (exit 0)",
        ),
        (result({}), 0, "nothing to judge: the ledger contains no message (exit 0)"),
        (
            result({}, scope=SCOPED),
            0,
            "nothing to judge: no message fits --since 2026-01-01T00:00:00Z --vhost / --queue a.* "
            "(exit 0)",
        ),
        (
            result({"acked": 3, "open": 1200}),
            0,
            "1,200 have no verdict yet (no inventory after them: --data-dir asks a running broker "
            "for one) (exit 0)",
        ),
        (
            result({"acked": 3, "open": 1}, broken=1),
            3,
            "not provable: evidence is missing; nothing worse was found; 1 has no verdict yet "
            "(no inventory after them: --data-dir asks a running broker for one) (exit 3)",
        ),
        (
            result({"acked": 3}, broken=1),
            3,
            "not provable: evidence is missing; nothing worse was found (exit 3)",
        ),
        (
            result({"LOST": 1, "open": 4}, {"LOST": 1}, broken=1),
            1,
            "1 confirmed message is missing (exit 1)",
        ),
        (
            result({"LOST": 63, "acked": 9}, {"LOST": 63, "order": 1, "clock": 2}),
            1,
            "63 confirmed messages are missing; 1 message was delivered out of order; "
            "2 other findings (exit 1)",
        ),
    ],
)
def test_the_verdict_says_no_more_than_was_judged(found: Result, code: int, said: str) -> None:
    assert found.exit_code(cli.FAIL_ON) == code
    assert summary_text.summary(found, cli.FAIL_ON)[0] == f"verdict    {said}"
