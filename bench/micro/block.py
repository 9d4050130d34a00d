"""What a block of the journal with one record costs, in instructions.

    make compile && cd build/compiled && .venv/bin/python -m bench.micro.block [--out FILE]

A message of 1 KiB, the mark of its delivery and its settlement are three blocks. They are written
to a real directory and counted by callgrind (of valgrind), as the slope between rounds of different
length, so that the start of the interpreter is not in it, nor is the kernel. What the loop around
them costs is: some hundred instructions for each call. It works interpreted as well.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.run import conditions
from vouchmq.protocol.native import IS_NATIVE
from vouchmq.store.disk import FileDisk
from vouchmq.store.recovery.recover import open_journal

KINDS = ("message", "mark", "settlement")
QUEUE_ID = 7
TAIL = b"\x00\x04work"
BODY_OCTETS = 1024
# Messages of the shorter round, and of the longer one.
ROUNDS = (200, 600)
SEGMENT_SIZE_BYTES = 64 * 1024 * 1024


def write_blocks(directory: str, count: int, kinds: int) -> None:
    """Write the blocks of so many messages, of each the first one, two or three."""
    journal, _ = open_journal(
        FileDisk(directory), segment_size_bytes=SEGMENT_SIZE_BYTES, wall_ms=lambda: 1
    )
    raws = [bytes(BODY_OCTETS + 36)]
    for _ in range(count):
        lsn = journal.append_run((QUEUE_ID,), TAIL, raws)
        journal.write()
        if kinds > 1:
            journal.delivered(QUEUE_ID, lsn)
            journal.write()
        if kinds > 2:
            journal.settle(QUEUE_ID, [lsn])
            journal.write()
    journal.close()


def instructions(count: int, kinds: int) -> int:
    """Return what callgrind counts in a process that does that.

    Raises:
        RuntimeError: it has counted nothing
    """
    with tempfile.TemporaryDirectory(prefix="vouchmq-block-") as place:
        work = [sys.executable, "-m", "bench.micro.block", "--write", str(Path(place) / "data")]
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={place}/out", *work]
        command += ["--count", str(count), "--kinds", str(kinds)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    found = re.search(r"Collected : (\d+)", said)
    if found is None:
        raise RuntimeError(said)
    return int(found[1])


def measure() -> dict[str, int]:
    """Return the instructions of a block of each kind."""
    told: dict[str, int] = {}
    before = 0
    for kinds, name in enumerate(KINDS, 1):
        short, long = (instructions(count, kinds) for count in ROUNDS)
        per_message = (long - short) // (ROUNDS[1] - ROUNDS[0])
        told[name], before = per_message - before, per_message
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, help="where the counts go as JSON")
    parser.add_argument("--write", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=ROUNDS[0], help=argparse.SUPPRESS)
    parser.add_argument("--kinds", type=int, default=len(KINDS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write_blocks(arguments.write, arguments.count, arguments.kinds)
        return
    told: dict[str, object] = {
        "conditions": conditions(Path(tempfile.gettempdir())),
        "build": "compiled" if IS_NATIVE else "pure Python",
        "instructions_per_block": measure(),
    }
    sys.stdout.write(json.dumps(told, indent=1) + "\n")
    if arguments.out:
        arguments.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
