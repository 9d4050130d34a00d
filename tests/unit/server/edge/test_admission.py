"""Who is heard next when many connect at once; by counts and by a clock that is moved by hand.

Spec: CONN-06, LIMIT-23, TLS-03
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pytest
from structlog.testing import capture_logs

from tests.unit.server.edge.sockets import Echo, Loop, Socket, Sockets, admission_of
from vouchmq.protocol.states import ConnectionState
from vouchmq.server.edge.admission import (
    HEARD_AT_ONCE,
    MOST_OPENING,
    MOST_READY,
    OPENING_S,
    TURN_S,
    EpollWatch,
)
from vouchmq.server.edge.listener import Listener, SocketProtocol

if TYPE_CHECKING:
    import asyncio

    from vouchmq.server.connection.connection import Connection


class Newcomer:
    """One that takes some time to be heard, and stays unopened until it is said to be open."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        self.crowd = crowd
        self.number = number
        self.is_opening = True

    def hear(self) -> None:
        self.crowd.heard.append(self.number)
        self.crowd.loop.now += self.crowd.cost_s


class Crowd:
    """Newcomers whose descriptors are their numbers."""

    def __init__(self, count: int, *, cost_s: float = 0.0) -> None:
        self.cost_s = cost_s
        self.loop = Loop()
        self.sockets = Sockets()
        self.admission = admission_of(self.loop, self.sockets, at_once=HEARD_AT_ONCE)
        self.heard: list[int] = []
        self.newcomers = [Newcomer(self, number) for number in range(count)]
        self.at_once = [
            each.number for each in self.newcomers if self.admission.is_heard_at_once(each)
        ]
        for each in self.newcomers:
            if each.number not in self.at_once:
                self.admission.watch(each, each.number)

    def speak(self, *numbers: int) -> None:
        """These have something to say, in this order."""
        self.sockets.readable += numbers
        while self.sockets.readable:
            self.admission.on_readable()

    def turn(self) -> list[int]:
        """What the loop does next; gives who was heard."""
        before = len(self.heard)
        soon, self.loop.soon[:] = list(self.loop.soon), []
        for job in soon:
            job()
        return self.heard[before:]

    def go_off(self) -> None:
        """The next timer."""
        timer = self.loop.pending()[0]
        self.loop.now += timer.delay_s
        assert timer.callback is not None
        callback, timer.callback = timer.callback, None
        callback()


def test_few_are_heard_at_once() -> None:
    crowd = Crowd(HEARD_AT_ONCE + 3)
    assert crowd.at_once == list(range(HEARD_AT_ONCE))
    assert crowd.sockets.watched == [HEARD_AT_ONCE, HEARD_AT_ONCE + 1, HEARD_AT_ONCE + 2]


def test_connections_one_after_the_other_are_never_held_back() -> None:
    crowd = Crowd(0)
    for number in range(10 * MOST_OPENING):
        newcomer = Newcomer(crowd, number)
        assert crowd.admission.is_heard_at_once(newcomer)
        crowd.admission.speaks(newcomer)
        newcomer.is_opening = False
        if number % 2:
            crowd.admission.leaves(newcomer)


def test_the_oldest_of_those_that_have_spoken_is_heard_first() -> None:
    crowd = Crowd(HEARD_AT_ONCE + 30)
    crowd.speak(*reversed(range(HEARD_AT_ONCE + 10, HEARD_AT_ONCE + 30)))
    crowd.speak(HEARD_AT_ONCE + 5)
    assert crowd.heard == []
    crowd.turn()
    first = HEARD_AT_ONCE + 10
    assert crowd.heard == [HEARD_AT_ONCE + 5, *range(first, HEARD_AT_ONCE + 30)]


def test_a_turn_hears_as_many_as_it_has_time_for() -> None:
    crowd = Crowd(HEARD_AT_ONCE + 10, cost_s=TURN_S / 2)
    crowd.speak(*range(HEARD_AT_ONCE, HEARD_AT_ONCE + 10))
    assert [len(crowd.turn()) for _ in range(6)] == [2, 2, 2, 2, 2, 0]
    dear = Crowd(HEARD_AT_ONCE + 3, cost_s=10 * TURN_S)
    dear.speak(*range(HEARD_AT_ONCE, HEARD_AT_ONCE + 3))
    assert [len(dear.turn()) for _ in range(4)] == [1, 1, 1, 0]


def test_only_so_many_are_opened_at_a_time() -> None:
    crowd = Crowd(HEARD_AT_ONCE + MOST_OPENING + 5)
    crowd.speak(*range(HEARD_AT_ONCE, HEARD_AT_ONCE + MOST_OPENING + 5))
    assert len(crowd.turn()) == MOST_OPENING
    crowd.go_off()
    assert len(crowd.heard) == MOST_OPENING
    for number in (HEARD_AT_ONCE + 7, HEARD_AT_ONCE + 9):
        crowd.newcomers[number].is_opening = False
    crowd.admission.leaves(crowd.newcomers[HEARD_AT_ONCE + 11])
    crowd.go_off()
    assert len(crowd.heard) == MOST_OPENING + 3


def test_who_takes_long_to_be_opened_keeps_nobody_out_for_long() -> None:
    crowd = Crowd(HEARD_AT_ONCE + MOST_OPENING + 5)
    crowd.speak(*range(HEARD_AT_ONCE, HEARD_AT_ONCE + MOST_OPENING + 5))
    crowd.turn()
    while len(crowd.heard) == MOST_OPENING:
        crowd.go_off()
    assert crowd.loop.now == pytest.approx(OPENING_S, abs=0.006)
    assert len(crowd.heard) == MOST_OPENING + 5


def test_who_is_silent_keeps_nobody_out() -> None:
    crowd = Crowd(2000)
    crowd.speak(1999)
    assert crowd.turn() == [1999]
    assert not crowd.admission.has_spoken(crowd.newcomers[1998])


def test_nobody_overtakes_those_that_have_spoken() -> None:
    crowd = Crowd(HEARD_AT_ONCE + 1)
    for newcomer in crowd.newcomers[:HEARD_AT_ONCE]:
        crowd.admission.leaves(newcomer)
    crowd.speak(HEARD_AT_ONCE)
    assert not crowd.admission.is_heard_at_once(Newcomer(crowd, 100))
    crowd.turn()
    assert crowd.admission.is_heard_at_once(Newcomer(crowd, 101))


def test_who_has_gone_is_not_heard() -> None:
    crowd = Crowd(HEARD_AT_ONCE + 4)
    silent, spoken, *others = range(HEARD_AT_ONCE, HEARD_AT_ONCE + 4)
    crowd.admission.leaves(crowd.newcomers[silent], silent)
    crowd.speak(silent, spoken, *others)
    crowd.admission.leaves(crowd.newcomers[spoken], spoken)
    assert crowd.turn() == others


def test_the_system_is_asked_for_so_many_at_a_time() -> None:
    crowd = Crowd(HEARD_AT_ONCE + MOST_READY + 10)
    crowd.sockets.readable += range(HEARD_AT_ONCE, HEARD_AT_ONCE + MOST_READY + 10)
    crowd.admission.on_readable()
    assert len(crowd.sockets.readable) == 10


def test_epoll_tells_of_each_socket_once() -> None:
    watch = EpollWatch()
    pairs = [socket.socketpair() for _ in range(5)]
    for ours, _ in pairs:
        watch.add(ours.fileno())
    assert watch.ready(10) == []
    for _, theirs in pairs[1:]:
        theirs.send(b"x")
    pairs[0][1].close()
    readable, _, _ = select.select([watch], [], [], 0)
    assert readable == [watch]
    found = watch.ready(3) + watch.ready(10)
    assert sorted(found) == sorted(ours.fileno() for ours, _ in pairs)
    assert watch.ready(10) == []
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


class Held:
    """A socket that is held back: eight others before it say nothing."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.watch = Sockets()
        self.connections: list[Echo] = []
        self.listener = Listener(
            cast("asyncio.AbstractEventLoop", self.loop),
            self._connect,
            65536,
            10_000,
            look=lambda: None,
            is_short=lambda: False,
            admission=admission_of(self.loop, self.watch, at_once=0),
            handshake_timeout_s=7.0,
        )
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.socket = Socket()
        self.socket.own = self.ours
        self.edge = SocketProtocol(self.listener)
        self.edge.connection_made(cast("asyncio.Transport", self.socket))

    def _connect(self, edge: SocketProtocol, _: str) -> Connection:
        self.connections.append(Echo(edge))
        return cast("Connection", self.connections[-1])

    def turn(self) -> None:
        soon, self.loop.soon[:] = list(self.loop.soon), []
        for job in soon:
            job()

    def pauses(self) -> list[bool]:
        """Whether the socket is paused now."""
        return [self.socket.is_paused]

    def read(self, octets: bytes) -> None:
        """The loop has read these octets."""
        self.edge.get_buffer(-1)[: len(octets)] = octets
        self.edge.buffer_updated(len(octets))

    def speak(self, octets: bytes) -> None:
        """The client sends octets, which are not read."""
        self.theirs.send(octets)
        self.watch.readable.append(self.ours.fileno())
        self.listener.admission.on_readable()


@pytest.fixture
def held() -> Iterator[Held]:
    """A socket that is held back."""
    held = Held()
    yield held
    held.ours.close()
    held.theirs.close()


def test_a_socket_that_is_held_back_is_not_read_until_it_has_its_turn(held: Held) -> None:
    held.turn()
    assert held.watch.watched == [held.ours.fileno()]
    held.speak(b"AMQP")
    was_paused, was_heard = held.socket.is_paused, bool(held.connections)
    held.turn()
    assert was_paused
    assert not was_heard
    assert [each.heard for each in held.connections] == [b"AMQP"]
    assert held.pauses() == [False]
    held.read(b"more")
    assert held.connections[0].heard == b"AMQPmore"
    was_opening = held.edge.is_opening
    held.connections[0].state = ConnectionState.RUNNING
    assert [was_opening, held.edge.is_opening] == [True, False]


def test_what_is_read_before_it_is_paused_comes_first(held: Held) -> None:
    held.read(b"A")
    held.read(b"M")
    held.theirs.send(b"Q")
    held.turn()
    assert held.connections[0].heard == b"AM"
    assert not held.socket.is_paused
    assert held.watch.watched == []


def test_a_socket_that_is_held_back_and_says_nothing_is_dropped_in_time(held: Held) -> None:
    """CONN-06."""
    held.turn()
    (timer,) = held.loop.pending()
    assert timer.delay_s == 7.0
    assert timer.callback is not None
    with capture_logs() as logs:
        timer.callback()
    assert held.socket.is_aborted
    assert [line["event"] for line in logs] == ["connection.handshake_timeout"]


def test_what_waits_for_its_turn_is_not_late(held: Held) -> None:
    held.turn()
    (timer,) = held.loop.pending()
    held.speak(b"AMQP")
    assert timer.callback is not None
    timer.callback()
    assert not held.socket.is_aborted
    held.turn()
    assert held.connections[0].heard == b"AMQP"


def test_one_that_hangs_up_while_it_is_held_back_leaves_nothing(held: Held) -> None:
    held.turn()
    held.speak(b"AMQP")
    held.edge.connection_lost(None)
    held.turn()
    assert held.connections == []
    assert held.loop.pending() == []
    assert not held.listener.edges


def test_the_end_of_a_silent_client_is_seen_when_it_has_its_turn(held: Held) -> None:
    held.turn()
    held.theirs.close()
    held.watch.readable.append(held.ours.fileno())
    held.listener.admission.on_readable()
    held.turn()
    assert [connection.heard for connection in held.connections] == [b""]
    assert not held.socket.is_paused
