"""Lines that are there twice and not the same: which files hold them, and which are believed.

A line is its broker, epoch and number. The same one in two files is the same line; if its contents
differ, one of them was forged, or two brokers have the same id. Files are read again only where
their numbers overlap, which those of a broker never do. Must not know Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Final

from vouchmq.spark.ledger.seals import END, HEAD, SEAL, TAMPERED, Fault, Look, read_look

Seen = tuple[bytes, Look, int]
"""What stands in a line, without its seal; the file and the number of the line there."""
SAME_NAME: Final = "it is not the same as {}, which has its name"
NOT_THE_SAME: Final = "not the same as in {}: one of them was changed, or two brokers have this id"


def credit(look: Look) -> tuple[bool, bool, str]:
    """The order in which files are believed: those whose seals fit come first."""
    is_faulty = any(fault.kind == TAMPERED for fault in look.faults)
    return is_faulty, not look.seals, look.path


def find(looks: Iterable[Look]) -> Iterator[Fault]:
    """What contradicts a file that is rather believed, in stretches of lines."""
    for group in overlapping(looks):
        yield from _compare(sorted(group, key=credit))


def overlapping(looks: Iterable[Look]) -> Iterator[list[Look]]:
    """Files of an epoch with the same numbers in them, those together that belong together."""
    by_epoch: dict[tuple[str, int], list[Look]] = {}
    for each in looks:
        if each.stamps:
            by_epoch.setdefault((each.broker, each.epoch), []).append(each)
    for files in by_epoch.values():
        files.sort(key=lambda each: (each.stamps[0][0], each.path))
        group: list[Look] = []
        last = -1
        for each in files:
            if group and each.stamps[0][0] > last:
                if len(group) > 1 or group[0].repeats:
                    yield group
                group = []
            group.append(each)
            last = max(last, each.stamps[1][0])
        if len(group) > 1 or (group and group[0].repeats):
            yield group


def _compare(files: list[Look]) -> Iterator[Fault]:
    believed: dict[int, Seen] = {}
    same: set[bytes] = set()
    for each in files:
        data = read_look(each)
        # A copy contradicts nothing.
        hashed = sha256(data).digest()
        if hashed in same:
            continue
        same.add(hashed)
        found: Fault | None = None
        for n, t, place, contents in _lines(each, data):
            before = believed.setdefault(n, (contents, each, place))
            if before[0] == contents:
                continue
            why = NOT_THE_SAME.format(
                f"line {before[2]}" if before[1] is each else f"{before[1].path}:{before[2]}"
            )
            if found is not None and found.last + 1 == place and before[1] is not each:
                found = replace(found, last=place)
                continue
            if found is not None:
                yield found
            found = Fault(TAMPERED, each.broker, each.epoch, n, t, each.path, place, place, why)
        if found is not None:
            yield found


def _lines(look: Look, data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Number, time, place in the file and contents of each line of the file's epoch."""
    epoch = str(look.epoch).encode()
    broker = look.broker.encode()
    for place, line in enumerate(data.splitlines(keepends=True), 1):
        head = HEAD.match(line)
        if head is not None and (head[1], head[2]) == (broker, epoch):
            contents = sha256(SEAL.sub(END, line)).digest()
            yield int(head[3]), int(head[4]), place, contents


def other_copies(chosen: Look, others: Iterable[Look]) -> Iterator[Fault]:
    """Files of one name that are neither the same nor an earlier state of it."""
    whole: bytes | None = None
    for each in others:
        whole = read_look(chosen) if whole is None else whole
        data = read_look(each)
        if whole and not whole.startswith(data):
            stamp = each.stamps[0] if each.stamps else [0, None]
            yield Fault(
                *(TAMPERED, each.broker, each.epoch, stamp[0] or 0, stamp[1]),
                *(each.path, 0, 0, SAME_NAME.format(chosen.path)),
            )
