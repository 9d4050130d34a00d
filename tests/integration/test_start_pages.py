"""The programs of docs/start/ do what they say, and publish what the next page consumes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.integration.broker_process import PROJECT, clean_environment
from tests.integration.snippets import ADDRESS, BLOCK, PROMISE

START: Final = PROJECT / "docs" / "start"
COMMAND: Final = re.compile(r"^(?:\S+=\S+ )*vouchmq (?P<rest>[^#\n]*)", re.MULTILINE)


def programs(name: str) -> dict[str, str]:
    """The program of each section of a page, by the client it is for."""
    sections = (START / f"{name}.md").read_text(encoding="utf-8").split("\n## With ")[1:]
    found = {section.split("\n")[0]: BLOCK.search(section) for section in sections}
    return {client: block["code"] for client, block in found.items() if block}


def printed(code: str, url: str, directory: Path) -> list[str]:
    assert ADDRESS in code
    file = directory / "program.py"
    file.write_text(code.replace(ADDRESS, url), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(file)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("client", ["pika", "aio-pika"])
def test_what_is_published_is_consumed(client: str, url: str, tmp_path: Path) -> None:
    for page in ("publish", "consume"):
        code = programs(page)[client]
        promised = [match["said"] for match in PROMISE.finditer(code)]
        assert len(promised) == 1
        assert printed(code, url, tmp_path) == promised


@pytest.mark.parametrize("page", ["pip", "docker", "rabbitmq"])
def test_commands_have_the_options_that_the_pages_give_them(page: str) -> None:
    text = (START / f"{page}.md").read_text(encoding="utf-8")
    lines = [line for block in BLOCK.finditer(text) for line in block["code"].splitlines()]
    commands = [
        match["rest"].split()
        for match in COMMAND.finditer("\n".join([*lines, *text.split("`")[1::2]]))
    ]
    for how in (" -m vouchmq ", "docker exec vouchmq vouchmq "):
        commands += [line.split(how)[1].split() for line in lines if how in line]
    assert commands
    for words in commands:
        names = [word for word in words if not word.startswith("-") and "/" not in word]
        verbs = names[: 2 if names[0] in ("list", "definitions", "store", "ledger") else 1]
        shown = subprocess.run(
            [sys.executable, "-m", "vouchmq", *verbs, "--help"],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert shown.returncode == 0, (words, shown.stderr)
        assert [word for word in words if word.startswith("--") and word not in shown.stdout] == []
