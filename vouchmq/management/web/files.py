"""The files of the page: read once, and named by what is in them, so that browsers may keep them.

    page/js/main.js ─▶ static/<hash of all files>/js/main.js, to be kept for a year
    page/index.html ─▶ /, to be asked for each time: it names the hash

A changed file changes the hash, and with it every address.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[1] / "page"
INDEX: Final = "index.html"
KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HASH_DIGITS: Final = 16
# Read by `index.html`.
PLACE: Final = "{{static}}"
END_OF_HEAD: Final = "</head>"


@dataclass(frozen=True)
class StaticFile:
    """One file, as it goes over the wire.

    Args:
        kind: its media type
        content: as it is
        packed: the same with gzip
        tag: its entity tag
    """

    kind: str
    content: bytes
    packed: bytes
    tag: str


class StaticFiles:
    """All files of the page.

    Args:
        folder: where they are
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        found = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.suffix in KINDS
        }
        whole = hashlib.sha256()
        for name, content in found.items():
            whole.update(f"{name} {len(content)} ".encode() + content)
        self.version = whole.hexdigest()[:HASH_DIGITS]
        index = _index(found.pop(INDEX).decode(), self.version, list(found))
        self.index = _file(INDEX, index.encode())
        self._files = {name: _file(name, content) for name, content in found.items()}

    def find(self, path: str) -> StaticFile | None:
        """The file of a path below `static/`; None when this version has none."""
        version, _, name = path.partition("/")
        return self._files.get(name) if version == self.version else None

    @property
    def names(self) -> list[str]:
        """The paths of all files but the index, without their version."""
        return list(self._files)


def _index(text: str, version: str, names: list[str]) -> str:
    """The index with addresses of this version, and a word to load all modules at once."""
    static = f"static/{version}/"
    modules = [name for name in names if name.startswith("js/") and name != "js/theme.js"]
    links = "".join(f'  <link rel="modulepreload" href="{static}{name}">\n' for name in modules)
    return text.replace(PLACE, static).replace(END_OF_HEAD, links + END_OF_HEAD)


def _file(name: str, content: bytes) -> StaticFile:
    tag = hashlib.sha256(content).hexdigest()[:HASH_DIGITS]
    packed = gzip.compress(content, mtime=0)
    return StaticFile(KINDS[Path(name).suffix], content, packed, f'"{tag}"')
