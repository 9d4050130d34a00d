"""`python -m tools.compile`: a copy of this checkout in build/compiled, with compiled modules.

The checkout stays as it is, and pure. The copy is a checkout too: `make -C build/compiled unit`
runs its tests. It has no virtual environment of its own, but a link to that of the checkout.
Without a compiler this fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
COPY: Final = ROOT / "build" / "compiled"
# Made here, not written.
LEFT_OUT: Final = {"__pycache__", "build", "dist", "node_modules", "reports", "vouchmq-data"}


def sources() -> dict[Path, Path]:
    """All files and links of the checkout that belong to it, by their relative paths."""
    found: dict[Path, Path] = {}
    for folder, folders, files in os.walk(ROOT):
        here = Path(folder)
        links = [name for name in folders if (here / name).is_symlink()]
        folders[:] = [
            name
            for name in folders
            if name not in LEFT_OUT and name not in links and not name.startswith(".")
        ]
        for name in (*files, *links):
            if not name.startswith(".venv"):
                found[(here / name).relative_to(ROOT)] = here / name
    return found


def differs(copy: Path, source: Path) -> bool:
    """Whether a file must be copied (again)."""
    if source.is_symlink():
        return not copy.is_symlink() or copy.readlink() != source.readlink()
    if not copy.exists():
        return True
    ours, theirs = copy.stat(), source.stat()
    return (ours.st_size, ours.st_mtime_ns) != (theirs.st_size, theirs.st_mtime_ns)


def update() -> None:
    """Bring the copy in line with the checkout."""
    wanted = sources()
    for path, source in wanted.items():
        copy = COPY / path
        if differs(copy, source):
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.unlink(missing_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)
    for folder, folders, files in os.walk(COPY):
        folders[:] = [name for name in folders if name not in LEFT_OUT and name[:1] != "."]
        for file in (Path(folder, name) for name in files):
            is_gone = file.suffix == ".py" and file.relative_to(COPY) not in wanted
            # The build puts those there again that are up to date.
            if is_gone or file.suffix == ".so":
                file.unlink()
    environment = COPY / ".venv"
    if not environment.is_symlink():
        environment.symlink_to(ROOT / ".venv")


def main() -> int:
    """Update the copy, compile what has changed in it, and ask it what it is."""
    update()
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", *sys.argv[1:]]
    environment = {**os.environ, "VOUCHMQ_COMPILE": "1"}
    done = subprocess.run(command, cwd=COPY, env=environment, check=False)
    if done.returncode:
        return done.returncode
    command = [sys.executable, "-m", "vouchmq", "--version"]
    said = subprocess.run(command, cwd=COPY, check=True, stdout=subprocess.PIPE, text=True).stdout
    print(said, end="")
    return 0 if "(compiled)" in said else 1


if __name__ == "__main__":
    sys.exit(main())
