"""The outbox: one write a turn, and when deliveries have to wait."""

from __future__ import annotations

import pytest

from vouchmq.server.connection.outbox import UNJOINED_OCTETS, Outbox


class Socket:
    """Counts what the outbox does to the world."""

    def __init__(self) -> None:
        self.written: list[bytes | memoryview] = []
        self.written_beside: list[bytes | memoryview] = []
        self.flushes: list[Outbox] = []
        self.drained_count = 0

    def write(self, data: bytes | memoryview, *more: bytes | memoryview) -> bool:
        self.written.append(data)
        self.written_beside += more
        return not more

    def wants_flush(self, outbox: Outbox) -> None:
        self.flushes.append(outbox)

    def drained(self) -> None:
        self.drained_count += 1


@pytest.fixture
def socket() -> Socket:
    """What stands around the outbox."""
    return Socket()


@pytest.fixture
def outbox(socket: Socket) -> Outbox:
    """An outbox that is full at 100 octets."""
    return Outbox(socket, socket.write, 100, socket.drained)


def waits(outbox: Outbox) -> bool:
    """Whether deliveries must wait now; a call, because it changes between two looks."""
    return outbox.blocked


def test_a_turn_is_one_write(outbox: Outbox, socket: Socket) -> None:
    outbox.send(b"one")
    outbox.add([b"two", b"three"], 8)
    assert socket.written == []
    assert socket.flushes == [outbox]
    outbox.flush()
    assert socket.written == [b"onetwothree"]
    outbox.send(b"four")
    assert socket.flushes == [outbox, outbox]


def test_large_parts_leave_uncopied_and_still_in_one_write(outbox: Outbox, socket: Socket) -> None:
    body = bytes(UNJOINED_OCTETS)
    for _ in range(2):
        outbox.add([b"head", b"tag"], 7)
        outbox.add_content([b"header", body, b"end"])
    outbox.flush()
    assert socket.written == [b"headtagheader"]
    assert socket.written_beside == [body, b"endheadtagheader", body, b"end"]
    assert socket.written_beside[0] is socket.written_beside[2] is body
    outbox.add([b"two", b"three"], 8)
    outbox.flush()
    assert socket.written[1:] == [b"twothree"]


def test_an_empty_frame_is_nothing(outbox: Outbox, socket: Socket) -> None:
    outbox.send(b"")
    outbox.flush()
    assert (socket.flushes, socket.written) == ([], [])


def test_flush_without_parts_writes_nothing(outbox: Outbox, socket: Socket) -> None:
    outbox.flush()
    assert socket.written == []


def test_full_outbox_blocks_until_it_is_written(outbox: Outbox, socket: Socket) -> None:
    outbox.add([b"x"], 99)
    assert waits(outbox) is False
    outbox.add([b"x"], 1)
    assert waits(outbox) is True
    outbox.flush()
    assert waits(outbox) is False
    assert socket.drained_count == 1


def test_nobody_is_woken_when_nobody_waited(outbox: Outbox, socket: Socket) -> None:
    outbox.send(b"x")
    outbox.flush()
    assert socket.drained_count == 0


def test_held_socket_blocks_deliveries_but_not_replies(outbox: Outbox, socket: Socket) -> None:
    outbox.hold()
    assert waits(outbox) is True
    outbox.send(b"reply")
    outbox.flush()
    assert socket.written == [b"reply"]
    assert waits(outbox) is True
    outbox.release()
    assert waits(outbox) is False
    assert socket.drained_count == 1


def test_full_and_held_needs_both_to_end(outbox: Outbox, socket: Socket) -> None:
    outbox.add([b"x"], 200)
    outbox.hold()
    outbox.release()
    assert waits(outbox) is True
    outbox.hold()
    outbox.flush()
    assert waits(outbox) is True
    assert socket.drained_count == 0
    outbox.release()
    assert waits(outbox) is False
    assert socket.drained_count == 1


def test_closed_outbox_writes_nothing_and_stays_blocked(outbox: Outbox, socket: Socket) -> None:
    outbox.send(b"x")
    outbox.close()
    outbox.send(b"y")
    outbox.flush()
    outbox.release()
    assert socket.written == []
    assert waits(outbox) is True
    assert socket.drained_count == 0
