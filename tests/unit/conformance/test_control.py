"""The operator's command, played by small shell scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from vouchmq.conformance.case import Case
from vouchmq.conformance.control import operate
from vouchmq.conformance.expect import MismatchError, SkipError
from vouchmq.conformance.runner import Plan, run
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.target import Target

NOBODY = Target("127.0.0.1", 1, "guest", "guest", "/")


@pytest.fixture
def noted(tmp_path: Path) -> tuple[str, Path]:
    """A command that notes its words, one call a line; and where."""
    note = tmp_path / "note"
    script = tmp_path / "ctl"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {note}\n')
    script.chmod(0o755)
    return str(script), note


def test_the_words_follow_the_command(noted: tuple[str, Path]) -> None:
    command, note = noted
    operate(f"{command} -n 'a node'", ("set_policy", "p", "^a$"))
    assert note.read_text() == "-n a node set_policy p ^a$\n"


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(MismatchError, match=r"(?s)add_user ended with \d: .*No such file"):
        operate("ls /nowhere-at-all", ("add_user",))


def test_a_command_that_is_not_there_is_a_mismatch() -> None:
    with pytest.raises(MismatchError, match="the operator's command"):
        operate("/nowhere/rabbitmqctl", ("status",))


def test_a_word_that_the_command_does_not_know_skips_the_case() -> None:
    with pytest.raises(SkipError, match="does not know delete_vhost"):
        operate("sh -c 'exit 64'", ("delete_vhost", "v"))


def test_without_a_command_the_case_is_skipped() -> None:
    with pytest.raises(SkipError, match="--control-command"):
        Stage(NOBODY).operate("add_user", "u", "p")


def test_what_the_operator_did_is_undone_last_first(noted: tuple[str, Path]) -> None:
    command, note = noted
    stage = Stage(NOBODY, control_command=command)
    stage.operate("add_user", "u", undo=("delete_user", "u"))
    stage.operate("add_vhost", "v", undo=("delete_vhost", "v"))
    stage.operate("status")
    stage.clear()
    stage.clear()
    assert note.read_text().split("\n") == [
        "add_user u",
        "add_vhost v",
        "status",
        "delete_vhost v",
        "delete_user u",
        "",
    ]


def test_it_is_undone_after_a_case_that_fails(noted: tuple[str, Path]) -> None:
    command, note = noted

    def fails(stage: Stage) -> None:
        stage.operate("add_user", "u", undo=("delete_user", "u"))
        raise MismatchError("no")

    one = Case("CONF-01", "something", "≡", fails)
    verdicts = run([one], Plan(NOBODY, control_command=command), lambda verdict: None)
    assert verdicts[0].outcome == "failed"
    assert note.read_text() == "add_user u\ndelete_user u\n"


def test_an_undo_that_fails_keeps_no_other_from_it(tmp_path: Path) -> None:
    note = tmp_path / "note"
    script = tmp_path / "ctl"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {note}\ntest "$1" != delete_vhost\n')
    script.chmod(0o755)
    stage = Stage(NOBODY, control_command=str(script))
    stage.operate("add_user", "u", undo=("delete_user", "u"))
    stage.operate("add_vhost", "v", undo=("delete_vhost", "v"))
    stage.clear()
    assert note.read_text().endswith("delete_vhost v\ndelete_user u\n")


def test_tls_nobody_has_named_is_skipped() -> None:
    with pytest.raises(SkipError, match="--tls"):
        Stage(NOBODY).tls()
