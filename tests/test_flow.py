"""The pages that tell the way of a message name functions and files: all of them must exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

from tools.draw_flow import PICTURE, ROWS, drawn

PROJECT: Final = Path(__file__).resolve().parents[1]
INTERNALS: Final = PROJECT / "docs" / "internals"
PAGES: Final = (
    PROJECT / "CONTRIBUTING.md",
    INTERNALS / "architecture.md",
    INTERNALS / "glossary.md",
)
# Folders of the project that `vouchmq.` is left out in front of.
PARTS: Final = ("protocol", "server", "store")
QUOTED: Final = re.compile(r"`([^`\n]+)`")
DOTTED: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
PLACE: Final = re.compile(r"[\w./-]+(?:/|\.(?:py|md|svg|toml))")


@cache
def functions() -> frozenset[str]:
    """`Class.method` for all methods of the product."""
    found: set[str] = set()
    for part in PARTS:
        for path in (PROJECT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found |= {
                        f"{node.name}.{each.name}"
                        for each in node.body
                        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                    }
    return frozenset(found)


def exists(name: str) -> bool:
    """Whether a dotted name, as the pages write it, is one of the code's."""
    first, *_ = words = name.split(".")
    if first in PARTS:
        return is_importable(["vouchmq", *words])
    return name in functions() if first[0].isupper() else True


def is_importable(words: list[str]) -> bool:
    for at in range(len(words), 1, -1):
        try:
            found: object = import_module(".".join(words[:at]))
        except ModuleNotFoundError:
            continue
        for word in words[at:]:
            if not hasattr(found, word):
                return False
            found = getattr(found, word)
        return True
    return False


def is_there(place: str, page: Path) -> bool:
    """A path from the project's folder; in a table about one folder, from there."""
    around = (PROJECT, page.parent, PROJECT / "server" / "broker", PROJECT / "server" / "ledger")
    return any((folder / place).exists() for folder in around)


def lost(page: Path, text: str) -> list[str]:
    """What the text of a page names and nobody has."""
    found: list[str] = []
    for quoted in QUOTED.findall(text):
        if PLACE.fullmatch(quoted):
            found += [] if is_there(quoted, page) else [quoted]
        elif DOTTED.fullmatch(quoted) and not exists(quoted):
            found.append(quoted)
    return found


def test_functions_and_files_that_the_pages_name_exist() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert lost(page, text) == [], page
    architecture = (INTERNALS / "architecture.md").read_text(encoding="utf-8")
    named = {each for each in QUOTED.findall(architecture) if each.startswith(PARTS)}
    assert len(named) > 60


def test_a_name_that_nobody_has_is_found() -> None:
    wrong = [
        "server.channel.publish.Publisher.publicize",
        "server.channel.publicity.Publisher",
        "store.journal",
        "Queue.bury",
        "server/broker/care.py",
        "docs/nowhere/",
    ]
    right = [
        "server.channel.publish.Publisher._resolve",
        "Queue.drop",
        "server/edge/",
        "amq.direct",
    ]
    text = " ".join(f"`{each}`" for each in (*wrong, *right))
    assert lost(PAGES[0], text) == [each for each in wrong if each != "store.journal"]


def test_the_drawing_is_made_of_functions_and_is_up_to_date() -> None:
    named = {name for row in ROWS for names in row.boxes.values() for name in names}
    assert named - functions() == set()
    assert PICTURE.read_text(encoding="utf-8") == drawn(), "run `make docs`"
    assert "prefers-color-scheme: dark" in drawn()
