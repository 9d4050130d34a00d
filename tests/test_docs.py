"""The pages are tested: every setting and argument is documented, every link leads somewhere."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from server.settings import environment_name, flag_name, scalar_fields
from tools.write_configuration import written

PROJECT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = PROJECT / "docs"
CONFIGURATION: Final = DOCS / "configuration.md"
PAGES: Final = sorted([*DOCS.rglob("*.md"), *PROJECT.glob("*.md")])
ARGUMENT: Final = re.compile(r"x-[a-z][a-z0-9-]*[a-z0-9]")
LINK: Final = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
TARGET: Final = re.compile(r"\bmake ([a-z]+)\b")


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_the_tables_of_settings_are_those_of_the_code() -> None:
    assert written(text(CONFIGURATION)) == text(CONFIGURATION), "run `make docs`"


@pytest.mark.parametrize("name", [field.name for field in scalar_fields()])
def test_every_setting_is_documented(name: str) -> None:
    assert f"| `{name}` |" in text(CONFIGURATION)


def known_arguments() -> list[str]:
    """The x-arguments that the broker knows by name."""
    path = PROJECT / "server" / "broker" / "arguments.py"
    return sorted(
        {
            node.value
            for node in ast.walk(ast.parse(text(path)))
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and ARGUMENT.fullmatch(node.value)
        }
    )


@pytest.mark.parametrize("name", known_arguments())
def test_every_argument_is_documented(name: str) -> None:
    assert f"`{name}`" in text(DOCS / "arguments.md")


def test_arguments_are_found() -> None:
    assert {"x-queue-type", "x-message-ttl"} <= set(known_arguments())


@pytest.mark.parametrize("path", PAGES, ids=[str(page.relative_to(PROJECT)) for page in PAGES])
def test_links_between_pages_lead_somewhere(path: Path) -> None:
    targets = {match[1] for match in LINK.finditer(text(path))}
    missing = {target for target in targets if not (path.parent / target).exists()}
    assert not missing


@pytest.mark.parametrize("path", PAGES, ids=[str(page.relative_to(PROJECT)) for page in PAGES])
def test_targets_of_make_that_pages_name_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", text(PROJECT / "Makefile"), re.MULTILINE))
    named = {match[1] for line in text(path).split("`")[1::2] for match in TARGET.finditer(line)}
    assert not named - targets


def test_every_page_can_be_found_from_the_index() -> None:
    linked = {match[1] for match in LINK.finditer(text(DOCS / "index.md"))}
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"index.md"}
    assert not pages - linked


def test_names_in_the_image_and_the_readme_are_settings() -> None:
    known = {environment_name(field.name) for field in scalar_fields()} | {"VOUCHMQ_CONFIG"}
    for path in (PROJECT / "Dockerfile", PROJECT / "README.md", CONFIGURATION):
        assert set(re.findall(r"\bVOUCHMQ_[A-Z_]+[A-Z]\b", text(path))) <= known
    flags = {flag_name(field.name) for field in scalar_fields()} | {"--config"}
    serve = re.findall(r"vouchmq serve([^`\n]*)", text(PROJECT / "README.md"))
    assert {word for line in serve for word in re.findall(r"--[a-z-]+", line)} <= flags
