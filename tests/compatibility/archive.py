"""Data directories as files of this project: names, packing, and the broker that opens them."""

from __future__ import annotations

import json
import lzma
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from tests.integration.broker_process import BrokerProcess

DATA: Final = Path(__file__).parent / "data"
SUFFIX: Final = ".tar.xz"
# Users are not in a data directory: this one may use the second virtual host as well, which has to
# be named for that.
SETTINGS: Final = """\
[[vhosts]]
name = "shop"

[[users]]
name = "guest"
password = "guest"
vhosts = ["/", "shop"]
"""
# The smallest segments there are, and a ledger of which nothing is removed, however old.
FLAGS: Final = (
    *("--segment-size-bytes", str(1 << 20), "--dlx-retry-interval-ms", "500"),
    *("--ledger-enabled", "on", "--ledger-keep-hours", "0"),
)


def broker_on(directory: Path, *flags: str) -> BrokerProcess:
    """A broker, not started, whose data directory is `directory/data`."""
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "settings.toml"
    config.write_text(SETTINGS, encoding="utf-8")
    return BrokerProcess(directory, flags=("--config", str(config), *FLAGS, *flags))


def pack(data_dir: Path, archive: Path) -> None:
    """Pack the files below a directory, so that the same files give the same archive."""
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(data_dir.rglob("*")):
            if path.is_dir() or path.is_file():
                entry = tar.gettarinfo(path, str(path.relative_to(data_dir)))
                entry.mtime = entry.uid = entry.gid = 0
                entry.uname = entry.gname = ""
                with path.open("rb") if path.is_file() else BytesIO() as content:
                    tar.addfile(entry, content)
    archive.write_bytes(lzma.compress(packed.getvalue(), preset=9))


def unpack(archive: Path, data_dir: Path) -> None:
    """The directory as it was packed."""
    data_dir.mkdir(mode=0o700, parents=True)
    with tarfile.open(archive, mode="r:xz") as tar:
        tar.extractall(data_dir, filter="data")


def manifest_of(archive: Path) -> Any:
    """What must be found in an archive."""
    return json.loads(manifest_path(archive).read_text(encoding="utf-8"))


def manifest_path(archive: Path) -> Path:
    """The file beside an archive that says what must be found in it."""
    return archive.with_name(archive.name.removesuffix(SUFFIX) + ".json")


def layout(value: Any, depth: int = 4) -> str:
    """JSON with a line for each message."""
    if depth and isinstance(value, dict) and value:
        entries = (f"{json.dumps(k)}: {layout(v, depth - 1)}" for k, v in sorted(value.items()))
        return "{\n" + ",\n".join(entries) + "\n}"
    if depth and isinstance(value, list) and value:
        return "[\n" + ",\n".join(layout(each, depth - 1) for each in value) + "\n]"
    return json.dumps(value, sort_keys=True)
