"""Writes a data directory with every feature, and a manifest of what must be found in it.

    python -m tests.compatibility.write tests/compatibility/data

Two variants: `clean` was stopped in good order, `crash` was killed with messages unsettled.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.compatibility.archive import SUFFIX, broker_on, layout, manifest_path, pack, unpack
from tests.compatibility.features import DEFINITIONS, FEATURES, SOON_MS, Filling, last_moments
from tests.compatibility.observe import digest, observe, settle
from tests.integration.broker_process import PROJECT, run_command

VARIANTS: Final = ("clean", "crash")
COMPACTION_LIMIT_S: Final = 20.0
GONE_SEGMENTS: Final = 4


def fill(directory: Path, variant: str) -> Filling:
    """Make everything and end the broker."""
    file = directory / "definitions.json"
    file.write_text(json.dumps(DEFINITIONS), encoding="utf-8")
    broker = broker_on(directory, "--load-definitions", str(file))
    broker.start()
    try:
        filling = Filling(broker)
        for feature in FEATURES:
            feature(filling)
        wait_for_compaction(filling.broker.data_dir)
        began = time.monotonic()
        last_moments(filling)
        if variant == "clean":
            for connection in (*filling.held, filling.connection):
                connection.close()
            assert broker.stop() == 0
        else:
            broker.kill9()
        assert time.monotonic() - began < SOON_MS / 1000, "too slow: some is due already"
        assert broker.complaints() == []
    finally:
        broker.kill9()
    return filling


def wait_for_compaction(data_dir: Path) -> None:
    """Until the files that are dead or mostly so have gone, and there are others behind them."""
    deadline = time.monotonic() + COMPACTION_LIMIT_S
    while True:
        generations = sorted(int(path.name.split(".")[0]) for path in data_dir.glob("*.journal"))
        is_done = len(generations) + GONE_SEGMENTS <= generations[-1]
        if is_done or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert is_done, generations
    assert list(data_dir.glob("*.journal.summary"))


def manifest(filling: Filling, archive: Path, directory: Path) -> dict[str, object]:
    """What this version finds in the archive, which must be what was put there."""
    broker = broker_on(directory)
    unpack(archive, broker.data_dir)
    queues = [
        {"vhost": vhost, "name": name, "consume": filling.consume.get(name, {})}
        for vhost, name in sorted(filling.left)
    ]
    broker.start()
    try:
        settle(broker, {name: len(bodies) for name, bodies in filling.left.items()})
        state = observe(broker, queues)
        assert broker.complaints() == []
    finally:
        broker.kill9()
    for queue in state["queues"]:
        bodies = filling.left[queue["vhost"], queue["name"]]
        found = [row["body"] for row in queue["messages"]]
        assert found == [digest(body) for body in bodies], (queue["name"], found)
    listed = {(row["vhost"], row["name"]) for row in state["definitions"]["queues"]}
    assert listed <= set(filling.left), listed - set(filling.left)
    return {**state, "gone": filling.gone, "probes": filling.probes}


def main() -> int:
    """Write both variants."""
    parser = argparse.ArgumentParser(description="Write data directories with every feature.")
    parser.add_argument("out", type=Path, help="directory for archives and manifests")
    parser.add_argument("--variant", choices=VARIANTS, action="append", help="only this one")
    options = parser.parse_args()
    version = run_command("--version").stdout.split()[1]
    asked = ["git", "rev-parse", "--short=7", "HEAD"]
    commit = subprocess.run(asked, cwd=PROJECT, capture_output=True, text=True, check=True)
    day = datetime.now(UTC).date().isoformat()
    options.out.mkdir(parents=True, exist_ok=True)
    for variant in options.variant or VARIANTS:
        stem = f"{version}-{day}-{commit.stdout.strip()}-{variant}"
        archive = options.out / f"{stem}{SUFFIX}"
        with tempfile.TemporaryDirectory() as temporary:
            filling = fill(Path(temporary), variant)
            pack(filling.broker.data_dir, archive)
            time.sleep(SOON_MS / 1000)
            wanted = manifest(filling, archive, Path(temporary) / "opened")
        made = {"version": version, "commit": commit.stdout.strip(), "variant": variant}
        path = manifest_path(archive)
        path.write_text(layout({**made, **wanted}) + "\n", encoding="utf-8")
        sys.stdout.write(f"{archive}: {archive.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
