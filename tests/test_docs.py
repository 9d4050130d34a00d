"""The pages are tested: every setting and argument is documented, every link leads somewhere."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

from tools.write_configuration import written
from vouchmq.server.edge.settings import environment_name, flag_name, scalar_fields

PROJECT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = PROJECT / "docs"
CONFIGURATION: Final = DOCS / "reference" / "configuration.md"
PAGES: Final = sorted([*DOCS.rglob("*.md"), *PROJECT.glob("*.md")])
ARGUMENT: Final = re.compile(r"x-[a-z][a-z0-9-]*[a-z0-9]")
LINK: Final = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
TARGET: Final = re.compile(r"\bmake ([a-z]+(?:-[a-z]+)*)")


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_the_tables_of_settings_are_those_of_the_code() -> None:
    assert written(text(CONFIGURATION)) == text(CONFIGURATION), "run `make docs`"


def undocumented_settings(page: str) -> list[str]:
    return [field.name for field in scalar_fields() if f"| `{field.name}` |" not in page]


def test_every_setting_is_documented() -> None:
    assert undocumented_settings(text(CONFIGURATION)) == []
    assert undocumented_settings(text(CONFIGURATION).replace("| `port` |", "")) == ["port"]


def known_arguments() -> list[str]:
    """The x-arguments that the broker knows by name."""
    path = PROJECT / "server" / "broker" / "features" / "arguments.py"
    return sorted(
        {
            node.value
            for node in ast.walk(ast.parse(text(path)))
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and ARGUMENT.fullmatch(node.value)
        }
    )


def undocumented_arguments(page: str) -> list[str]:
    return [name for name in known_arguments() if f"`{name}`" not in page]


def test_every_argument_is_documented() -> None:
    page = text(DOCS / "reference" / "arguments.md")
    assert {"x-queue-type", "x-message-ttl"} <= set(known_arguments())
    assert undocumented_arguments(page) == []
    assert undocumented_arguments(page.replace("`x-expires`", "")) == ["x-expires"]


def lost_links(path: Path, page: str) -> list[str]:
    targets = {match[1] for match in LINK.finditer(page)}
    return sorted(
        f"{path.relative_to(PROJECT)}: {target}"
        for target in targets
        if not (path.parent / target).exists()
    )


def test_links_between_pages_lead_somewhere() -> None:
    assert [lost for path in PAGES for lost in lost_links(path, text(path))] == []
    planted = "[a](index.md) [b](nowhere.md#here)"
    assert lost_links(DOCS / "index.md", planted) == ["docs/index.md: nowhere.md"]


def unknown_targets(path: Path, page: str) -> list[str]:
    targets = set(re.findall(r"^([a-z-]+):", text(PROJECT / "Makefile"), re.MULTILINE))
    named = {match[1] for line in page.split("`")[1::2] for match in TARGET.finditer(line)}
    return [f"{path.relative_to(PROJECT)}: {name}" for name in sorted(named - targets)]


def test_targets_of_make_that_pages_name_exist() -> None:
    assert [name for path in PAGES for name in unknown_targets(path, text(path))] == []
    planted = "`make test` and `make coffee`"
    assert unknown_targets(DOCS / "index.md", planted) == ["docs/index.md: coffee"]


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
