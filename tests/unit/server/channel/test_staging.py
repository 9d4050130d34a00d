"""A large content is written in pieces before it is stored; others are served in between.

Spec: LIMIT-23
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.in_memory import SETTINGS, World, content
from tests.unit.server.runtime.budgeted import LOOKS, TICK_S, opened, said
from vouchmq.server.channel import publish

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.server.in_memory import Client

PERSISTENT = commands.Basic.Properties(delivery_mode=2)
PIECE = 10
BODY = bytes(300)


@pytest.fixture(autouse=True)
def small_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contents of some hundred octets are large."""
    monkeypatch.setattr(publish, "LARGE_OCTETS", 200)


@dataclass
class Staged:
    """Counts the octets that it was asked to write, ten to a piece."""

    raw: bytes
    is_due: bool = False
    written: int = 0

    def go_on(self, is_over: Callable[[], bool]) -> bool:
        while self.written < len(self.raw):
            self.written = min(self.written + PIECE, len(self.raw))
            if is_over():
                break
        return self.written == len(self.raw)


class StagingWorld(World):
    """A broker whose journal stages whatever it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.staged: list[Staged] = []
        self.journal.stage = self._stage  # type: ignore[method-assign, assignment]

    def _stage(self, raw: bytes) -> Staged:
        self.staged.append(Staged(raw))
        return self.staged[-1]


@pytest.fixture
def world() -> StagingWorld:
    """A broker with a durable queue `q` and a transient one `fleeting`; each look takes time."""
    world = StagingWorld()
    client = opened(world)
    client.declare("q", durable=True)
    client.declare("fleeting")
    world.sync()
    world.tick_s = TICK_S
    return world


def confirming(world: World) -> Client:
    client = opened(world)
    client.method(1, commands.Confirm.Select())
    client.hear()
    return client


def large(queue: str = "q", body: bytes = BODY) -> bytes:
    return wire.publish(1, queue, body, PERSISTENT)


def test_others_come_between_pieces_and_nothing_overtakes(world: StagingWorld) -> None:
    client, modest = confirming(world), opened(world)
    declared = wire.method(1, commands.Queue.Declare(queue="q", passive=True))
    ask = wire.method(1, commands.Basic.Get(queue="fleeting"))
    client.send(large())
    client.send(wire.publish(1, "q", b"behind", PERSISTENT), declared)
    written = [world.staged[0].written]
    while world.scheduled:
        assert (world.calls.runs == []) == (written[-1] < len(world.staged[0].raw))
        modest.send(ask)
        world.run_turn()
        assert said(modest) == ["Basic.GetEmpty"]
        written.append(world.staged[0].written)
    steps = [after - before for before, after in zip([0, *written], written, strict=False)]
    assert len(written) > 3
    assert max(steps) <= LOOKS * PIECE
    assert [[len(raw) > 200 for raw in raws] for _, _, raws in world.calls.runs] == [
        [True],
        [False],
    ]
    assert world.calls.runs[0][2][0] is world.staged[0].raw
    assert world.staged[0].is_due
    world.sync()
    assert client.names() == ["Queue.DeclareOk", "Basic.Ack"]


def test_what_is_buffered_is_written_before_it_is_stored(world: StagingWorld) -> None:
    written: list[int] = []
    write = world.journal.write

    def watched() -> int:
        written.append(len(world.calls.runs))
        return write()

    world.tick_s = 0.0
    world.journal.write = watched  # type: ignore[method-assign]
    client = opened(world)
    client.send(wire.publish(1, "q", b"small", PERSISTENT))
    client.send(large())
    assert written[-1] == 1
    assert len(world.calls.runs) == 2


@pytest.mark.parametrize(
    "octets",
    [
        wire.publish(1, "q", BODY),
        large("fleeting"),
        large("nowhere"),
        wire.publish(1, "q", bytes(100), PERSISTENT),
    ],
    ids=["transient", "transient queue", "no queue", "small"],
)
def test_only_large_contents_that_the_journal_keeps_are_staged(
    world: StagingWorld, octets: bytes
) -> None:
    opened(world).send(octets)
    world.run_turns()
    assert world.staged == []


def test_one_of_a_transaction_is_not_staged(world: StagingWorld) -> None:
    client = opened(world)
    client.method(1, commands.Tx.Select())
    client.send(large(), wire.method(1, commands.Tx.Commit()))
    world.run_turns()
    assert world.staged == []
    assert len(world.calls.runs) == 1


def test_what_the_journal_would_not_stage_is_stored_at_once(world: StagingWorld) -> None:
    world.journal.stage = lambda _raw: None  # type: ignore[method-assign, assignment]
    opened(world).send(large())
    assert len(world.calls.runs) == 1


def test_a_staged_one_is_there_after_a_restart() -> None:
    settings = replace(SETTINGS, segment_size_bytes=8192)
    world = World(settings)
    staging = world.journal.chain.staging
    staging.room_bytes, staging.piece_bytes = 1000, 100
    body = bytes(wire.FRAME_MAX - 8)
    client = confirming(world)
    client.declare("q", durable=True)
    world.tick_s = TICK_S
    generation = world.journal.chain.tail_generation
    client.send(large(body=body))
    world.sync()
    assert "Basic.Ack" in client.names()
    assert world.journal.chain.tail_generation == generation + 1
    assert not staging
    world.disk.crash(1)
    asking = opened(World(settings, disk=world.disk))
    asking.send(wire.method(1, commands.Basic.Get(queue="q")))
    assert content(asking.hear()[-1][1]).body == body


@pytest.mark.parametrize("end", ["lost", "closed"])
def test_who_leaves_meanwhile_has_nothing_staged_and_nothing_stored(
    world: StagingWorld, end: str
) -> None:
    client = opened(world)
    client.send(large())
    (staged,) = world.staged
    was_due = staged.is_due
    if end == "lost":
        client.connection.lost("it is gone")
    else:
        world.vhost.delete_queue("q", None)
        client.send(wire.method(1, commands.Channel.Close(200, "", 0, 0)))
    world.run_turns()
    assert (was_due, staged.is_due) == (False, True)
    assert world.calls.runs == []


def test_a_queue_that_goes_meanwhile_gets_nothing(world: StagingWorld) -> None:
    client = confirming(world)
    client.send(large())
    world.vhost.delete_queue("q", None)
    world.run_turns()
    assert world.calls.runs == []
    world.sync()
    assert "Basic.Ack" in client.names()
    # The next one lets go of what was staged for nothing.
    opened(world).declare("q", durable=True)
    client.send(large(body=bytes(400)))
    world.run_turns()
    assert [staged.is_due for staged in world.staged] == [True, True]
