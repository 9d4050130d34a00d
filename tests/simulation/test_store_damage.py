"""Octets that change behind everybody's back cost the blocks they are in, and nothing else.

Random stores that have synced everything, then some octet of a journal is another one. A start
must serve what an inspection of the spoilt directory finds, tell what may be lost, set the
segment aside, and leave a directory that is whole.

Spec: DURABLE-14
"""

from __future__ import annotations

import random
from contextlib import suppress
from copy import deepcopy
from typing import NamedTuple

import pytest

from tests.simulation import store_model
from tests.simulation.sim_disk import PowerCut, SimDisk
from tests.simulation.store_model import Copy, StoreModel
from tests.unit.store.journals import corrupt, segments_on
from vouchmq.store.errors import ReadFailed, UnsupportedFormat
from vouchmq.store.inspection import Contents, Inspection, Inspector, StoredMessage
from vouchmq.store.journal.journal import Journal
from vouchmq.store.journal.segment import segment_name
from vouchmq.store.recovery.recover import Damage, Recovered, open_journal

SEEDS_AT_ONCE = 25


def lived(seed: int, draw: random.Random) -> tuple[StoreModel, dict[str, int]]:
    """A store in which everything is synced, and the octets of its files that this is true of."""
    model = StoreModel(seed, segment_size_bytes=draw.choice((4096, 16384, 65536)))
    steps = store_model._STEPS[:-2]
    for _ in range(draw.choice((20, 60, 200))):
        draw.choice(steps)(model, draw)
    model.write()
    for _ in range(3):  # what is under way, what was asked for meanwhile, and the rest
        model.finish_sync()
        model.worker.is_late = False
        model.commit.request()
    model.finish_sync()
    assert model.synced_blocks == len(model.blocks)
    used = {name: written(model.disk, name) for name in segments_on(model.disk)}
    active = model.journal._chain.active
    used[active.name] = active.offset
    # Else what was written last is taken for a torn tail.
    model.publish([min(model.queues)], [20])
    model.write()
    model.commit.request()
    model.finish_sync()
    assert not model.errno
    model.disk.kill()
    return model, used


def written(disk: SimDisk, name: str) -> int:
    """How much of a file is in use."""
    return len(bytes(disk.visible[name].visible).rstrip(b"\0"))


def open_spoilt(disk: SimDisk, model: StoreModel) -> tuple[Journal, Recovered]:
    return open_journal(
        disk,
        segment_size_bytes=model.segment_size_bytes,
        wall_ms=lambda: model.wall_ms,
        whole_bytes=model.whole_bytes,
    )


def look(disk: SimDisk) -> tuple[Inspection, dict[Copy, tuple[bytes, bytes]], list[StoredMessage]]:
    """What an inspection finds: copies with their octets, and where they lie."""
    inspector = Inspector(disk)
    found = inspector.inspect()
    messages = list(inspector.messages())
    contents = Contents(disk)
    copies = {
        (queue_id, each.lsn): (contents.read(each, each.size_bytes), each.tail)
        for each in messages
        for queue_id in each.queue_ids
    }
    contents.close()
    return found, copies, messages


class Served(NamedTuple):
    """What was served in the end, and what the starts have told on the way there."""

    copies: dict[Copy, tuple[bytes, bytes]]
    damaged: list[Damage]
    unroutable_messages: int
    unread_segments: int  # by the first start


def served(disk: SimDisk, model: StoreModel) -> Served:
    """Start until everything can be read.

    A start need not read every segment. Where a segment is met to be damaged later, the broker
    ends, and the next start looks at it.
    """
    reports = []
    for _ in range(len(segments_on(disk)) + 1):
        journal, recovered = open_spoilt(disk, model)
        reports.append(report := recovered.report)
        try:
            copies = copies_in(recovered)
        except ReadFailed:
            assert report.unread_segments
        else:
            damaged = [each for one in reports for each in one.damaged]
            unroutable = sum(one.unroutable_messages for one in reports)
            return Served(copies, damaged, unroutable, reports[0].unread_segments)
        finally:
            journal.close()
            disk.kill()
    raise AssertionError("segments that were found damaged are still believed")


def copies_in(recovered: Recovered) -> dict[Copy, tuple[bytes, bytes]]:
    return {
        (queue_id, lsn): (raw, tail)
        for queue_id, queue in recovered.queues.items()
        for lsn, raw, tail in queue.messages
    }


def hit(disk: SimDisk, used: dict[str, int], draw: random.Random) -> str:
    """Change an octet or a few where something is written."""
    name = draw.choice(list(used))
    at = draw.randrange(used[name])
    size = min(draw.choice((1, 1, 8, 600)), used[name] - at)
    corrupt(disk, name, at, size)
    return f"{size} octets at {at} of {name}"


def is_told(damaged: list[Damage], message: StoredMessage) -> bool:
    """Whether a report names the place where a message was."""
    return any(
        each.segment == segment_name(message.generation)
        and (not each.size_bytes or each.offset <= message.offset < each.offset + each.size_bytes)
        for each in damaged
    )


def check(seed: int) -> int:
    """Spoil one store and judge how it comes back; returns how many copies that cost."""
    draw = random.Random(seed)
    model, used = lived(seed, draw)
    disk = model.disk
    _, before, places = look(disk)
    what = [hit(disk, used, draw) for _ in range(draw.choice((1, 1, 2, 3)))]
    try:
        expected = look(disk)[1]
    except UnsupportedFormat as error:
        # Not one block of that segment is left, and its first octets tell of another version.
        assert "has journal format" in str(error), what
        return 0
    cut = deepcopy(disk)
    first = served(disk, model)
    if not first.unread_segments:
        assert first.copies == expected, what
    assert all(model.contents[copy] == octets for copy, octets in first.copies.items()), what
    lost = before.keys() - first.copies.keys()
    told = {
        (queue_id, each.lsn)
        for each in places
        if is_told(first.damaged, each)
        for queue_id in each.queue_ids
    }
    assert len(lost - told) <= first.unroutable_messages * len(model.queues), what
    again = served(disk, model)
    assert again.damaged == [], what
    assert again.copies == first.copies, what
    back = interrupted(cut, model, draw)
    # Settles of a segment that only its summary had told of may have been read and found damaged.
    has_more = first.unread_segments and back.items() >= first.copies.items()
    assert back == first.copies or has_more, what
    return len(lost)


def interrupted(
    disk: SimDisk, model: StoreModel, draw: random.Random
) -> dict[Copy, tuple[bytes, bytes]]:
    """What is served if the power goes while the damage is being set aside."""
    disk.crash_after = draw.randrange(30)
    with suppress(PowerCut):
        open_spoilt(disk, model)
    disk.crash_after = None
    disk.crash(draw.getrandbits(32))
    return served(disk, model).copies


@pytest.mark.parametrize("first", range(0, 200, SEEDS_AT_ONCE))
def test_damage_costs_what_it_hit(first: int) -> None:
    lost = [check(seed) for seed in range(first, first + SEEDS_AT_ONCE)]
    assert any(lost)
    assert not all(lost)
