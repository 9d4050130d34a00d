"""What all files of a ledger say together: changed lines, absent seals, files that do not fit.

A fault of one file, broker or epoch never keeps the others from being judged. What cannot be found
is listed in docs/guides/audit.md. Must not know Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import groupby

from vouchmq.spark.ledger import contradictions
from vouchmq.spark.ledger.seals import (
    FIRST_SEALING,
    NO_NUMBER,
    STRIPPED,
    TAMPERED,
    Ended,
    Fault,
    Head,
    Look,
    Seals,
    clock,
    follows,
    is_cut,
    links,
)

Overlap = tuple[str, int, int]
"""A broker, one of its epochs, and the next one, which began before that was over."""


def judge(looks: Iterable[Look], ended: Ended, overlaps: Sequence[Overlap] = ()) -> Seals:
    """What the files of all brokers say together.

    Args:
        looks: of all files that are there
        ended: how epochs ended
        overlaps: epochs that go on after the next one has begun
    """
    every = list(looks)
    ordered, faults = _each_once(every)
    faults = [
        *(fault for each in every for fault in each.faults if fault.kind == TAMPERED),
        *faults,
        *contradictions.find(every),
        *_overlapping(every, overlaps),
    ]
    heads: list[Head] = []
    for _, group in groupby(ordered, key=lambda each: each.broker):
        files = list(group)
        unlinked, covered = links(files, ended)
        faults += unlinked
        faults += without_seals(files, ended, covered)
        last = next((each for each in reversed(files) if each.seal is not None), None)
        if last is not None:
            n = last.stamps[1][0] - last.unsealed if last.stamps else 0
            heads.append(Head(last.broker, last.epoch, n, str(last.seal)))
    faults += clock(ordered)
    return Seals(
        # The copy of a file has the same faults.
        tuple(dict.fromkeys(faults)),
        tuple(heads),
        sum(each.lines - each.unsealed for each in ordered),
        sum(each.unsealed for each in ordered),
        sum(each.seals for each in ordered),
    )


def _each_once(looks: Iterable[Look]) -> tuple[list[Look], list[Fault]]:
    """Files in their order, and what is wrong with others of the same name."""
    named: dict[tuple[str, int, int, str], list[Look]] = {}
    for each in looks:
        # The same file may be there twice, or once more as it was while it was written to.
        key = (each.broker, each.epoch, each.number, each.path * (each.number == NO_NUMBER))
        named.setdefault(key, []).append(each)
    chosen: list[Look] = []
    faults: list[Fault] = []
    for some in named.values():
        one = max(some, key=lambda each: each.lines)
        chosen.append(one)
        faults += contradictions.other_copies(one, (each for each in some if each is not one))
    return sorted(chosen, key=lambda each: (each.broker, each.epoch, each.number)), faults


def _overlapping(looks: Sequence[Look], overlaps: Iterable[Overlap]) -> Iterator[Fault]:
    for broker, old, new in overlaps:
        some = [each for each in looks if (each.broker, each.epoch) == (broker, old)]
        last = max((each for each in some if each.stamps), key=_last_line, default=None)
        if last is not None:
            why = (
                f"epoch {old} goes on after epoch {new} has begun: lines were added or changed, "
                "or two brokers have this id"
            )
            yield last.fault(TAMPERED, last.stamps[1], (last.lines, last.lines), why)


def _last_line(look: Look) -> int:
    return look.stamps[1][0]


def without_seals(files: Sequence[Look], ended: Ended, covered: Set[str]) -> Iterator[Fault]:
    """Lines of a broker that lack the seals which the build that wrote them has given them.

    A crash may leave the lines of its last flush without one; those of older builds have none.

    Args:
        files: of the broker, in their order
        ended: how epochs ended
        covered: paths of files whose last lines the next epoch follows
    """
    versions = {each.epoch: tuple(each.version) for each in files if each.version}
    last_of = {each.epoch: each for each in files}
    has_begun = False
    for place, each in enumerate(files):
        after = next((one for one in files[place + 1 :] if one.epoch > each.epoch), None)
        is_known = versions.get(each.epoch, ()) >= FIRST_SEALING
        # The next epoch says which seal it follows.
        is_followed = after is not None and after.epoch == each.epoch + 1 and bool(after.begins)
        if each.unsealed and (has_begun or each.seals or is_known or is_followed):
            after = None if last_of[each.epoch] is each else files[place + 1]
            if not _is_excused(each, after, ended, is_covered=each.path in covered):
                yield _stripped(each)
        has_begun = has_begun or bool(each.seals) or is_known


def _is_excused(each: Look, after: Look | None, ended: Ended, *, is_covered: bool) -> bool:
    """Whether a crash explains the lines without a seal, or the next file of the epoch tells."""
    has_crashed = ended.get((each.broker, each.epoch)) in ("crash", None)
    # Lines that are written at once have one time.
    is_flush = bool(each.tail) and each.tail[0][1] == each.tail[1][1]
    if after is None:
        return has_crashed and (is_covered or is_flush)
    if not each.seals:
        return False
    is_linked = follows(each, after) and after.begins is not None
    return (is_linked and not is_cut(each, after, ended)) or (has_crashed and is_flush)


def _stripped(look: Look) -> Fault:
    where = (look.lines - look.unsealed + 1, look.lines)
    return look.fault(TAMPERED, look.tail[0] if look.tail else None, where, STRIPPED)
