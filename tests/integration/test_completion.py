"""Completion in the shells themselves: what they offer after a few letters."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.broker_process import PROJECT, clean_environment
from tests.waiting import LIMIT_S

# Each reads the script that vouchmq prints, and then says what it completes.
BASH = """
source <(vouchmq completion bash)
complete_of() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _vouchmq_completion vouchmq
    printf '%s\\n' "${COMPREPLY[@]}"
}
complete_of "$@"
"""
# zsh completes only in its line editor: what the script gives to that is shown instead.
ZSH = """
compdef() { : }
_describe() { local -a shown; shown=(${(P)3}); print -l -- ${shown%%:*} }
compadd() { local name=$@[-1]; print -l -- ${(P)name} }
compstate=()
source <(vouchmq completion zsh)
words=("$@") CURRENT=$#
_vouchmq_completion
"""
FISH = """
vouchmq completion fish | source
complete --do-complete "$argv"
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A search path with a program `vouchmq`."""
    program = tmp_path / "vouchmq"
    program.write_text(f'#!/bin/sh\ncd {PROJECT} && exec {sys.executable} -m vouchmq "$@"\n')
    program.chmod(0o755)
    return f"{tmp_path}{os.pathsep}{os.environ['PATH']}"


def offered(shell: str, path: str, *words: str) -> set[str]:
    """What a shell offers for the last word."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    command = {
        "bash": ["bash", "--norc", "-c", BASH, "bash", *words],
        "zsh": ["zsh", "-f", "-c", ZSH, "zsh", *words],
        "fish": ["fish", "--no-config", "-c", FISH, " ".join(words)],
    }[shell]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**clean_environment(), "PATH": path},
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    # Behind a tab fish says what a word means.
    return {line.partition("\t")[0].strip() for line in done.stdout.splitlines() if line.strip()}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_words_are_completed(shell: str, path: str) -> None:
    assert offered(shell, path, "vouchmq", "st") == {"status", "store"}
    assert offered(shell, path, "vouchmq", "list", "op") == {"operator-policies"}
    assert offered(shell, path, "vouchmq", "list", "queues", "--js") == {"--json"}
    assert offered(shell, path, "vouchmq", "peek", "q", "--state", "w") == {"waiting"}
