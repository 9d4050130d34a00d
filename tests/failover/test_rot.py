"""Bytes rot in a segment of a broker of the log: on the leader while it leads, on a standby.

Whoever finds it stops to use that copy, and reads the segment again from the log. Nothing is left
out as by a broker without a log, which has no other copy.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pamqp.commands as amqp
import pytest

from tests.engine.servers import MISSING, program
from tests.failover.clients import FENCE, OVER, declare, left_in, publish
from tests.failover.sites import SiteBroker, Sites
from tests.failover.watched import watched
from tests.integration.raw_client import RawClient, method
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(program() is None, reason=MISSING)]

SEGMENT = 1 << 20
COUNT = 1500
SIZE = 2000
# A message of so many stays, where the others are acked: few enough for compaction.
KEPT = 25
WINDOW = 50


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Three machines; each test leaves them with a leader and two standbys."""
    directory = tmp_path_factory.mktemp("rot")
    flags = ("--segment-size-bytes", str(SEGMENT))
    with Sites(directory, takeover_after_s="3", flags=flags) as made:
        made.start()
        yield made
    shutil.rmtree(directory)


def fill(leader: SiteBroker, queue: str) -> list[bytes]:
    """Publish messages to a queue and have each confirmed; their names."""
    declare(leader.url, queue)
    names = [b"%s:%d:" % (queue.encode(), number) for number in range(COUNT)]
    with RawClient(leader.url).handshake() as client:
        client.open_channel()
        client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        for first in range(0, COUNT, WINDOW):
            some = names[first : first + WINDOW]
            client.send(b"".join(publish(queue, name, b"." * SIZE) for name in some))
            client.confirmed_up_to(first + len(some))
    return names


def rot(broker: SiteBroker, content: bytes) -> Path:
    """Change a bit of a message in the file of a broker that may run; the segment."""
    for segment in sorted(broker.data_dir.glob("*.journal")):
        at = segment.read_bytes().find(content + b"." * SIZE)
        if at >= 0:
            flip(segment, at + len(content) + SIZE // 2)
            return segment
    raise AssertionError(f"{content!r} is in no segment of {broker.name}")


def flip(segment: Path, at: int) -> None:
    """Change a bit at an offset, in the file that the broker has open."""
    with segment.open("r+b") as file:
        file.seek(at)
        octet = file.read(1)[0]
        file.seek(at)
        file.write(bytes([octet ^ 1]))
        os.fsync(file.fileno())


def heals(sites: Sites, broker: SiteBroker, segment: Path, leader: SiteBroker) -> None:
    """Wait until a broker can lead again, with a segment as the leader has it."""
    whole = leader.data_dir / segment.name
    wait_until(lambda: starts_the_same(segment, whole), sites.evidence)
    wait_until(lambda: broker.can_take_over, sites.evidence)


def test_a_leader_that_reads_a_rotten_message_ends_and_another_one_has_it(sites: Sites) -> None:
    names = fill(sites.wait_for_leader(), "read")
    first = sites.wait_for_leader()
    first.hand_over()
    # What a leader has recovered it reads from its files.
    leader = sites.wait_for_leader(but=first)
    leader.forgiven = ("store.failed",)
    sites.wait_for_standbys(2)
    with watched(sites, "rot-read") as load:
        segment = rot(leader, names[COUNT // 2])
        with suppress(*OVER), RawClient(leader.url).handshake() as client:
            client.open_channel()
            client.call(1, amqp.Basic.Consume(queue="read"), amqp.Basic.ConsumeOk)
            for _ in client.deliveries(COUNT):
                pass
        assert leader.wait() == 1
        following = sites.wait_for_leader(but=leader)
        load.goes_on(claims=1)
        leader.begin()
        heals(sites, leader, segment, following)
    assert '"store.failed"' in leader.output()
    assert [name for name, _ in left_in(following.url, "read")] == names
    sites.wait_for_standbys(2)


def test_a_leader_whose_compaction_finds_rot_leads_on_and_the_next_one_has_all(
    sites: Sites,
) -> None:
    """What it had to move stays where it was; the log has what the file has lost."""
    leader = sites.wait_for_leader()
    leader.forgiven = ("segment.corrupt",)
    names = fill(leader, "moved")
    with watched(sites, "rot-moved") as load:
        segment = rot(leader, names[COUNT // 2 // KEPT * KEPT])
        kept = settle_most(leader, "moved")
        assert kept == names[::KEPT]
        wait_for_event(leader, "segment.corrupt", segment.name)
        load.goes_on(claims=0)
        leader.kill9()
        following = sites.wait_for_leader(but=leader)
        load.goes_on(claims=1)
        leader.begin()
        heals(sites, leader, segment, following)
    assert [name for name, _ in left_in(following.url, "moved")] == kept
    sites.wait_for_standbys(2)


def settle_most(broker: SiteBroker, queue: str) -> list[bytes]:
    """Ack all but each 25th message of a queue, and have that confirmed; the others."""
    kept: list[bytes] = []
    with RawClient(broker.url).handshake() as client:
        client.open_channel()
        client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        client.call(1, amqp.Basic.Consume(queue=queue), amqp.Basic.ConsumeOk)
        for number, (sent, body) in enumerate(client.deliveries(COUNT)):
            if number % KEPT:
                client.send(method(1, amqp.Basic.Ack(delivery_tag=sent.delivery_tag or 0)))
            else:
                kept.append(body.rstrip(b"."))
        client.send(publish(FENCE, b"fence", b""))
        client.confirmed_up_to(1)
    return kept


def wait_for_event(broker: SiteBroker, event: str, text: str) -> None:
    """Wait for a line of its log with both."""
    wait_until(
        lambda: any(event in line and text in line for line in broker.output().splitlines()),
        lambda: broker.output()[-3000:],
    )


def in_the_middle(broker: SiteBroker, names: list[bytes]) -> Path:
    """A message between others."""
    return rot(broker, names[COUNT // 2])


def at_the_end(broker: SiteBroker, names: list[bytes]) -> Path:
    """The last block: no other one says that it was safe, as with one that was torn."""
    del names
    segment = max(each for each in broker.data_dir.glob("*.journal") if written_bytes(each))
    flip(segment, written_bytes(segment) - 1)
    return segment


@pytest.mark.parametrize("place", [in_the_middle, at_the_end])
def test_a_standby_that_rots_while_it_runs_reads_that_again_before_it_leads(
    sites: Sites, place: Callable[[SiteBroker, list[bytes]], Path]
) -> None:
    """Its recovery finds the damage, when its claim is committed already."""
    leader = sites.wait_for_leader()
    sites.wait_for_standbys(2)
    standby, other = sites.others(leader)
    names = fill(leader, place.__name__)
    end = int(leader.status()["committed_sequence"])
    wait_until(lambda: int(standby.status()["synced_sequence"]) >= end, sites.evidence)
    since = len(standby.output())
    segment = place(standby, names)
    other.signal(signal.SIGSTOP)
    leader.kill9()
    wait_until(lambda: standby.is_serving, sites.evidence)
    other.signal(signal.SIGCONT)
    said = standby.output()[since:]
    assert "journal.reopened" in said
    assert "journal.damaged" not in said
    assert "journal.truncated" not in said
    assert "replication.segment_healed" in said
    assert segment.exists()
    leader.begin()
    sites.wait_for_standbys(2)
    found = left_in(standby.url, place.__name__)
    assert [name for name, _ in found] == names


@pytest.mark.parametrize("damage", ["bit", pytest.param("file", marks=pytest.mark.campaign)])
def test_a_segment_that_rots_on_a_standby_or_a_former_leader(sites: Sites, damage: str) -> None:
    """It is read again from the log, and whoever has it may lead."""
    leader = sites.wait_for_leader()
    with watched(sites, f"rot-{damage}", size_bytes=2000) as load:
        load.publisher.wait(200)
        leader.kill9()
        following = sites.wait_for_leader(but=leader)
        segment = max(leader.data_dir.glob("*.journal"), key=written_bytes)
        if damage == "file":
            segment.unlink()
        else:
            raw = bytearray(segment.read_bytes())
            raw[written_bytes(segment) // 2] ^= 1
            segment.write_bytes(raw)
        whole = following.data_dir / segment.name
        leader.begin()
        wait_until(lambda: starts_the_same(segment, whole), sites.evidence)
        sites.wait_for_standbys(2)
        # The one that healed is to lead.
        other = next(each for each in sites.others(leader) if not each.is_serving)
        other.signal(signal.SIGSTOP)
        sites.wait_for_leader().hand_over()
        wait_until(lambda: leader.is_serving, sites.evidence)
        other.signal(signal.SIGCONT)
        load.goes_on(claims=2)
    sites.wait_for_standbys(2)


def written_bytes(segment: Path) -> int:
    """How much of a segment is no empty space."""
    return len(segment.read_bytes().rstrip(b"\0"))


def starts_the_same(one: Path, other: Path) -> bool:
    """Whether one of two segments has what the other one has, or both were given up."""
    try:
        size = written_bytes(other)
        return one.read_bytes()[:size] == other.read_bytes()[:size]
    except FileNotFoundError:
        return not one.exists() and not other.exists()
