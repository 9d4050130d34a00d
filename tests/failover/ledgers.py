"""The ledgers of all brokers of one log, as the ledger of one broker.

Each broker keeps a ledger of the times in which it led, and what one leader confirmed another one
delivers. The epochs of all of them, put in the order of their claims, tell of every copy from its
publish to its end: numbers of queues and LSNs are those of the log. Only what an epoch says of the
one before it has to be said anew, as that was another broker's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.ledger_reader import lines_in

Line = dict[str, Any]
SEALS = ("seal", "prev_seal")


def read_all(directories: Iterable[Path]) -> list[list[Line]]:
    """The epochs of all brokers, in the order of their claims; all seals must fit."""
    epochs: dict[tuple[str, int], list[Line]] = defaultdict(list)
    for directory in directories:
        if not directory.exists():
            continue
        for line in lines_in(directory, with_open=True):
            epochs[line["b"], line["o"]].append(line)
    # A leader leaves out 2^32 LSNs, so the later of two claims has recovered more.
    return sorted(epochs.values(), key=lambda lines: int(lines[0]["wm"]))


def merged(epochs: Sequence[Sequence[Line]], broker: str = "log") -> list[Line]:
    """One ledger of them."""
    found: list[Line] = []
    before: Line | None = None
    highest = 0
    for number, lines in enumerate(epochs, 1):
        for line in lines:
            one = {key: value for key, value in line.items() if key not in SEALS}
            one |= {"b": broker, "o": number}
            if one["e"] == "boot":
                one |= _boot(before, highest)
            found.append(one)
            if one["e"] in ("pub", "mov") and one["lsn"] is not None:
                highest = max(highest, one["lsn"][1])
        before = found[-1]
    return found


def _boot(before: Line | None, highest: int) -> Line:
    """What a boot says of the epoch before."""
    if before is None:
        return {"prev_o": None, "prev_n": None, "prev_lsn": None, "dark": 0}
    how = "clean" if before["e"] == "end" else "crash"
    place = {"prev_o": before["o"], "prev_n": before["n"], "prev_lsn": highest}
    return {**place, "w": how, "dark": 0}
