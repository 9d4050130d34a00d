"""The snippets of docs/guides/clients.md do what they say: each prints what its comments say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.integration.broker_process import PROJECT, clean_environment
from tests.integration.snippets import ADDRESS, BLOCK, PROMISE

PAGE = (PROJECT / "docs" / "guides" / "clients.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^##+ (?P<title>.+?)\n(?P<text>.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
SNIPPETS = [
    (section["title"], block["language"], block["code"])
    for section in SECTION.finditer(PAGE)
    for block in BLOCK.finditer(section["text"])
]


def command_for(language: str, code: str, directory: Path) -> list[str]:
    """How a reader would run it."""
    if language == "python":
        file = directory / "snippet.py"
        file.write_text(code, encoding="utf-8")
        return [sys.executable, str(file)]
    if language == "javascript":
        file = directory / "snippet.js"
        file.write_text(code, encoding="utf-8")
        return ["node", str(file)]
    return ["sh", "-e", "-c", code]


@pytest.mark.parametrize(
    ("title", "language", "code"), SNIPPETS, ids=[title for title, _, _ in SNIPPETS]
)
def test_snippet_prints_what_it_promises(
    title: str,
    language: str,
    code: str,
    url: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    extra: Mapping[str, str] = {}
    if language == "javascript":
        extra = {"NODE_PATH": str(request.getfixturevalue("node_path"))}
    if language == "shell" and shutil.which("amqp-publish") is None:
        pytest.skip("Debian's amqp-tools is not installed")
    assert ADDRESS in code
    done = subprocess.run(
        command_for(language, code.replace(ADDRESS, url), tmp_path),
        env=clean_environment(extra),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    promised = [match["said"] for match in PROMISE.finditer(code)]
    assert done.stdout.split("\n")[:-1] == promised


def test_the_page_has_its_snippets() -> None:
    assert [language for _, language, _ in SNIPPETS] == [
        *("python", "python", "python"),
        *("python", "python", "python", "python"),
        *("javascript", "shell"),
    ]
