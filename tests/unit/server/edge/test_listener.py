"""Sockets that end: never more in one turn of the loop than it has time for; writes.

Spec: LIMIT-23
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from socket import socketpair
from typing import TYPE_CHECKING, cast

import pytest

from tests.unit.server.edge.sockets import Echo, Loop, Socket, admission_of
from vouchmq.server.edge.listener import (
    BODY_BUDGET_S,
    READ_BUDGET_S,
    READS_S,
    RECEIVE_OCTETS,
    TURN_ENDS,
    UNMEASURED_READS,
    Listener,
    SocketProtocol,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from vouchmq.server.connection.connection import Connection


class Sockets:
    """A door with connections, and the transports on which they stand."""

    def __init__(self, count: int) -> None:
        self.loop = Loop()
        self.now, self.tick_s = 1.0, 0.0
        self.listener = Listener(
            cast("asyncio.AbstractEventLoop", self.loop),
            lambda edge, _: cast("Connection", Echo(edge)),
            65536,
            10_000,
            look=lambda: None,
            is_short=lambda: False,
            admission=admission_of(self.loop, at_once=count),
            clock=self.clock,
        )
        self.sockets = [Socket() for _ in range(count)]
        self.edges = [SocketProtocol(self.listener) for _ in range(count)]
        for edge, socket in zip(self.edges, self.sockets, strict=True):
            edge.connection_made(cast("asyncio.Transport", socket))

    def clock(self) -> float:
        """Time passes with each look at it."""
        self.now += self.tick_s
        return self.now

    def hang_up(self, edge: SocketProtocol, socket: Socket) -> None:
        """The client of one sends no more: as asyncio, close it unless it is to stay."""
        if not edge.eof_received():
            socket.close()

    def closed(self) -> list[bool]:
        return [socket.is_closed for socket in self.sockets]

    def turn(self) -> int:
        """What the loop does next; gives how many were closed by it."""
        before = sum(self.closed())
        soon, self.loop.soon[:] = list(self.loop.soon), []
        for job in soon:
            job()
        return sum(self.closed()) - before


def test_one_ends_at_once() -> None:
    world = Sockets(1)
    world.hang_up(world.edges[0], world.sockets[0])
    assert world.closed() == [True]
    while world.loop.soon:
        assert world.turn() == 0


def test_many_end_in_the_order_in_which_they_hung_up() -> None:
    count = 3 * TURN_ENDS + 5
    world = Sockets(count)
    for edge, socket in zip(world.edges, world.sockets, strict=True):
        world.hang_up(edge, socket)
    ended = [sum(world.closed())]
    while world.loop.soon:
        ended.append(world.turn())
        assert world.closed() == sorted(world.closed(), reverse=True)
    assert sum(ended) == count
    assert max(ended) == TURN_ENDS


def test_who_comes_while_others_wait_ends_behind_them() -> None:
    world = Sockets(2 * TURN_ENDS + 1)
    for edge, socket in zip(world.edges[:-1], world.sockets[:-1], strict=True):
        world.hang_up(edge, socket)
    world.turn()
    world.hang_up(world.edges[-1], world.sockets[-1])
    assert not world.sockets[-1].is_closed
    while world.loop.soon:
        world.turn()
    assert all(world.closed())


@pytest.mark.parametrize("is_read_again", [False, True])
def test_one_that_waits_may_end_otherwise(*, is_read_again: bool) -> None:
    """Its socket is lost, or tells its end once more, before it is its turn."""
    world = Sockets(TURN_ENDS + 1)
    for edge, socket in zip(world.edges, world.sockets, strict=True):
        world.hang_up(edge, socket)
    if is_read_again:
        world.hang_up(world.edges[-1], world.sockets[-1])
    else:
        world.edges[-1].connection_lost(None)
    while world.loop.soon:
        assert world.turn() <= 1
    assert world.sockets[-1].is_closed == is_read_again


def test_what_many_sockets_bring_is_worked_through_while_there_is_time() -> None:
    """The others' octets are for later turns; the next turn begins anew.

    The first few are not measured.
    """
    world = Sockets(30)
    world.tick_s = READS_S / 8
    for edge in world.edges:
        edge.receive(b"x", is_full=False)
    connections = [cast("Echo", edge.connection) for edge in world.edges]
    in_time = UNMEASURED_READS + 8
    assert [len(each.late) for each in connections] == [0] * in_time + [1] * (30 - in_time)
    while world.loop.soon:
        world.turn()
    world.edges[-1].receive(b"y", is_full=False)
    assert connections[-1].late == b"x"


FULL = bytes(RECEIVE_OCTETS)


@pytest.mark.parametrize(("is_large", "budget_s"), [(False, READ_BUDGET_S), (True, BODY_BUDGET_S)])
def test_a_socket_is_read_while_there_is_time(*, is_large: bool, budget_s: float) -> None:
    """The octets of a large body only have to be copied: there is more time for them."""
    world = Sockets(1)
    world.tick_s = READ_BUDGET_S / 3.7
    edge = world.edges[0]
    cast("Echo", edge.connection).is_in_large_body = is_large
    count = 0
    while not world.sockets[0].is_paused:
        edge.receive(FULL, is_full=True)
        count += 1
    assert count == int(budget_s / world.tick_s) + 2
    world.turn()
    assert not world.sockets[0].is_paused


def test_who_has_had_most_of_a_turn_is_the_last_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Sockets(3)
    world.tick_s = 2 * BODY_BUDGET_S
    resumed: list[int] = []
    for at, edge in enumerate(world.edges):
        edge.receive(FULL, is_full=False)
        edge.receive(FULL, is_full=True)
        monkeypatch.setattr(world.sockets[at], "resume_reading", partial(resumed.append, at))
    assert all(socket.is_paused for socket in world.sockets)
    world.turn()
    assert resumed == [1, 2, 0]


class Written:
    """An edge whose socket is real, and whose transport keeps what it is given."""

    def __init__(self) -> None:
        self.ours, self.theirs = socketpair()
        self.ours.setblocking(False)
        self.transport = Transport(self.ours)
        loop = Loop()
        listener = Listener(
            cast("asyncio.AbstractEventLoop", loop),
            lambda edge, _: cast("Connection", Echo(edge)),
            65536,
            10_000,
            look=lambda: None,
            is_short=lambda: False,
            admission=admission_of(loop, at_once=1),
        )
        self.edge = SocketProtocol(listener)
        self.edge.connection_made(cast("asyncio.Transport", self.transport))

    def fill(self) -> bytes:
        """Write more than the socket takes; gives all of it."""
        octets = bytes(range(256)) * 16384
        self.edge.write(octets)
        assert 0 < len(self.transport.written) < len(octets)
        return octets

    def hear(self) -> bytes:
        self.theirs.setblocking(False)
        heard = bytearray()
        with suppress(BlockingIOError):
            while octets := self.theirs.recv(1 << 20):
                heard += octets
        return bytes(heard)


class Transport(Socket):
    """Holds what it is given, until it is said to be sent."""

    def __init__(self, own: object) -> None:
        super().__init__()
        self.own = own

    def get_write_buffer_size(self) -> int:
        return len(self.written)


@pytest.fixture
def written() -> Iterator[Written]:
    found = Written()
    with found.ours, found.theirs:
        yield found


def test_what_the_socket_takes_is_written_at_once(written: Written) -> None:
    written.edge.write(b"one")
    written.edge.write(memoryview(b"two"))
    assert (written.hear(), bytes(written.transport.written)) == (b"onetwo", b"")


def test_what_the_socket_does_not_take_is_left_to_the_transport(written: Written) -> None:
    octets = written.fill()
    assert written.hear() + written.transport.written == octets


def test_nothing_overtakes_what_the_transport_still_holds(written: Written) -> None:
    octets = written.fill()
    heard = written.hear()
    written.edge.write(b"last")
    assert heard + written.transport.written == octets + b"last"
    assert not written.hear()
    written.transport.written.clear()
    written.edge.write(b"again")
    assert (written.hear(), bytes(written.transport.written)) == (b"again", b"")


def test_parts_that_the_transport_holds_are_not_overtaken(written: Written) -> None:
    written.edge.write_parts([b"one", b"two"])
    written.edge.write(b"three")
    assert (written.hear(), bytes(written.transport.written)) == (b"", b"onetwothree")


def test_a_broken_socket_is_left_to_the_transport(written: Written) -> None:
    written.theirs.close()
    written.edge.write(b"one")
    assert bytes(written.transport.written) == b"one"


@pytest.mark.parametrize("end", ["eof", "abort", "lost"])
def test_a_socket_that_has_ended_is_not_written_to(written: Written, end: str) -> None:
    """Its number may be that of another one by then."""
    edge = written.edge
    if end == "eof":
        edge.eof_received()
    elif end == "abort":
        edge.abort()
        written.transport.is_closed = False
    else:
        edge.connection_lost(None)
    edge.write(b"one")
    assert (written.hear(), bytes(written.transport.written)) == (
        b"",
        b"" if end == "lost" else b"one",
    )
