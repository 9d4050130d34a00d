"""Build the pages of docs/ into a site: `make docs`, then open build/docs/html/index.html.

    docs/*.md ──▶ build/docs/pages/*.md ──▶ zensical ──▶ build/docs/html/*.html

The pages are read in the repository as well, so they link to files beside docs/ (results of the
bench, tests). The site has a copy of each of them under source/, and the links lead there. The
navigation is that of docs/index.md. Zensical fails on a link to a page or a heading that does not
exist; tests/test_docs.py checks all other links and whether each page is in the index.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

PROJECT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = PROJECT / "docs"
BUILD: Final = PROJECT / "build" / "docs"
PAGES: Final = BUILD / "pages"
COPIES: Final = "source"
HEADING: Final = re.compile(r"(##|###) (.+)")
LINK: Final = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)]*)?\))")


def navigation(index: str) -> list[Any]:
    """A section for each heading of the index, in it the pages that are linked there, in order."""
    nav: list[Any] = [{"Home": "index.md"}]
    section: list[Any] = []
    part = nav
    seen: set[str] = set()
    for line in index.splitlines():
        if heading := HEADING.fullmatch(line):
            part = []
            if heading[1] == "##":
                section = part
                nav.append({heading[2]: section})
            else:
                section.append({heading[2]: part})
        for _, target, _ in LINK.findall(line):
            if target.endswith(".md") and target not in seen:
                seen.add(target)
                part.append(target)
    return nav


def place(path: Path) -> str:
    """Where the site has a file of the repository."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    return f"{COPIES}/{path.relative_to(PROJECT).as_posix()}"


def prepared(source: Path, page: str) -> tuple[str, set[Path]]:
    """The page as the site has it, and the files beside docs/ that it links to."""
    outside: set[Path] = set()
    folder = Path(place(source)).parent

    def moved(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / link[2]))
        if not target.is_file():
            return link[0]
        if not target.is_relative_to(DOCS):
            outside.add(target)
        return f"{link[1]}{os.path.relpath(place(target), folder)}{link[3]}"

    return LINK.sub(moved, page), outside


def write_pages() -> None:
    """Fill build/docs/pages with the pages, and with what they link to beside docs/."""
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.copytree(DOCS, PAGES)
    shutil.copy(PROJECT / "tools" / "site.css", PAGES / "site.css")
    waiting = set(DOCS.rglob("*.md"))
    written: set[Path] = set()
    while waiting:
        source = waiting.pop()
        written.add(source)
        copy = PAGES / place(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix != ".md":
            shutil.copy(source, copy)
            continue
        text, outside = prepared(source, source.read_text(encoding="utf-8"))
        copy.write_text(text, encoding="utf-8")
        waiting |= outside - written


def main() -> int:
    """Build the site; the exit code is that of Zensical."""
    write_pages()
    nav = navigation((DOCS / "index.md").read_text(encoding="utf-8"))
    config = BUILD / "mkdocs.yml"
    settings = (PROJECT / "tools" / "site.yml").read_text(encoding="utf-8")
    # What is JSON is YAML.
    config.write_text(f"{settings}\nnav: {json.dumps(nav)}\n", encoding="utf-8")
    zensical = Path(sys.executable).with_name("zensical")
    return subprocess.run([zensical, "build", "--strict", "--clean", "-f", config]).returncode


if __name__ == "__main__":
    sys.exit(main())
