"""A loop, a socket and a peer without an operating system."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vouchmq.protocol.states import ConnectionState
from vouchmq.server.edge.admission import Admission, Watch
from vouchmq.server.edge.listener import (
    SocketProtocol,
)


class Timer:
    """A timer that rings by hand."""

    def __init__(self, delay_s: float, callback: Callable[[], None], now: float = 0.0) -> None:
        self.delay_s = delay_s
        self.due_at = now + delay_s
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """A loop in which no time passes by itself."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.soon: list[Callable[[], None]] = []
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(delay_s, callback, self.now))
        return self.timers[-1]

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def pending(self) -> list[Timer]:
        return [timer for timer in self.timers if timer.callback is not None]


class Sockets:
    """A watch that says of sockets by hand that they can be read."""

    def __init__(self) -> None:
        self.watched: list[int] = []
        self.readable: list[int] = []

    def add(self, descriptor: int) -> None:
        self.watched.append(descriptor)

    def ready(self, most: int) -> list[int]:
        found = [each for each in self.readable if each in self.watched][:most]
        for each in found:
            self.watched.remove(each)
            self.readable.remove(each)
        return found


def admission_of(loop: Loop, watch: Watch | None = None, *, at_once: int) -> Admission:
    """The admission of a listener on this loop."""
    return Admission(
        Sockets() if watch is None else watch,
        loop.time,
        loop.call_soon,
        loop.call_later,
        at_once=at_once,
    )


class Socket:
    """The transport of a socket whose other side is in the test."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.has_eof = self.is_closed = self.is_aborted = self.is_paused = False
        self.own: object = None

    def write(self, data: bytes) -> None:
        assert not self.has_eof
        assert not self.is_closed
        self.written += data

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))

    def write_eof(self) -> None:
        self.has_eof = True

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        assert high > low

    def get_extra_info(self, name: str) -> object:
        facts = {
            "peername": ("10.0.0.9", 4000),
            "sockname": ("10.0.0.1", 5671),
            "socket": self.own,
        }
        return facts.get(name)


class Echo:
    """A connection that says what it hears, and keeps it."""

    def __init__(self, edge: SocketProtocol) -> None:
        self.edge = edge
        self.state = ConnectionState.STARTING
        self.heard = bytearray()
        self.lost_by: list[str] = []
        self.late = bytearray()
        self.is_in_large_body = False

    def receive(self, data: bytes, *, is_late: bool = False) -> None:
        self.heard += data
        self.late += data if is_late else b""
        self.edge.write(data)

    def lost(self, reason: str) -> None:
        self.lost_by.append(reason)
