"""The programs of docs/guides/kit.md do what they say: each prints what its comments promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.broker_process import PROJECT, Broker, clean_environment

PAGE = (PROJECT / "docs" / "guides" / "kit.md").read_text(encoding="utf-8")
ADDRESS = "amqp://guest:guest@127.0.0.1:5672/%2F"
SECTION = re.compile(r"^##? *#? (?P<title>.+?)\n(?P<text>.*?)(?=^##? |^### |\Z)", re.M | re.S)
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```", re.M | re.S)
PROMISE = re.compile(r"print\(.*\)  # (?P<said>.*)$", re.M)
MODES = {"auto", "client", "dups_ok", "individual", "transacted"}


def programs() -> dict[str, str]:
    """The title of each section that has a program, and that one."""
    return {
        section["title"]: block["code"]
        for section in SECTION.finditer(PAGE)
        for block in BLOCK.finditer(section["text"])
    }


@pytest.mark.parametrize(("title", "code"), programs().items(), ids=list(programs()))
def test_example_prints_what_it_promises(
    title: str,
    code: str,
    broker: Broker,
    tmp_path: Path,
) -> None:
    assert ADDRESS in code
    program = tmp_path / "example.py"
    program.write_text(code.replace(ADDRESS, broker.url), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)],
        env=clean_environment({"PYTHONPATH": str(PROJECT)}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [match["said"] for match in PROMISE.finditer(code)]


def test_every_mode_has_its_program() -> None:
    assert set(programs()) >= MODES | {"The client kit", "Redelivery"}


def test_the_kit_brings_nothing_of_the_broker() -> None:
    code = (
        "import sys, vouchmq.kit\n"
        "theirs = ['server', 'protocol', 'store', 'conformance']\n"
        "print([name for name in theirs if f'vouchmq.{name}' in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PROJECT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_without_its_client_the_kit_says_what_it_needs() -> None:
    code = "import sys; sys.modules['aio_pika'] = None; from vouchmq.kit import connect"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PROJECT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == (
        "ImportError: vouchmq.kit needs aio-pika: pip install 'vouchmq[kit]'"
    )
