"""Connections over HTTP, and how long a client may take: uvicorn's protocol with limits.

    a connection ─▶ too many of this address, or in all: 503, closed
    what is no HTTP ─▶ 400, unless an answer is under way already; closed
    the head of a request ─▶ not there in time: 408, closed
    an answer that is not read ─▶ nothing of it has gone for a while: closed

Without them a client that sends a byte now and then has a connection for as long as it likes. How
long a body may take is up to who reads it. Must not know what is asked.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

BUSY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n"
    b"content-type: application/json\r\ncontent-length: 65\r\n\r\n"
    b'{"error":"service_unavailable","reason":"too many connections"}\r\n'
)
BAD_REQUEST: Final = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Limits(Struct, frozen=True):
    """What clients may take.

    Args:
        connections: at one time
        per_address: of them, from one address; a reverse proxy has one
        head_s: for the head of a request
        unread_s: in which something of an answer has to be read
    """

    connections: int = 512
    per_address: int = 256
    head_s: float = 10.0
    unread_s: float = 30.0


class LimitedProtocol(H11Protocol):
    """One connection; the limits and the count of addresses are those of its server."""

    limits: ClassVar[Limits]
    addresses: ClassVar[Counter[str]]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._address: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it, or refuse it."""
        super().connection_made(transport)
        address = self.client[0] if self.client is not None else ""
        is_full = self.addresses.total() >= self.limits.connections
        if is_full or self.addresses[address] >= self.limits.per_address:
            transport.write(BUSY)
            transport.close()
            return
        self._address = address
        self.addresses[address] += 1
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._forget_head()
        self._forget_unread()
        if self._address is not None:
            self.addresses[self._address] -= 1
            if not self.addresses[self._address]:
                del self.addresses[self._address]
            self._address = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`; a head that is complete has come in time."""
        super().data_received(data)
        if self._is_answering:
            self._forget_head()
        elif self._head_timer is None and not self.transport.is_closing():
            self._await_head()

    def send_400_response(self, msg: str) -> None:
        """What has come is no HTTP; an answer that has begun ends there."""
        del msg
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or not cycle.response_started or self._is_answered(cycle):
            self.transport.write(BAD_REQUEST)
        self.transport.close()

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered."""
        super().pause_writing()
        if self._unread_timer is None:
            self._await_reading()

    def resume_writing(self) -> None:
        """It has read enough."""
        self._forget_unread()
        super().resume_writing()

    @property
    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None until there is a first one
        return cycle is not None and not cycle.response_complete

    @staticmethod
    def _is_answered(cycle: RequestResponseCycle) -> bool:
        """Whether a request is done with: what comes now is the next."""
        return cycle.response_complete and not cycle.more_body

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.head_s, self._is_too_slow)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _is_too_slow(self) -> None:
        self._head_timer = None
        if not self._is_answering and not self.transport.is_closing():
            self.transport.write(TOO_SLOW)
            self.transport.close()

    def _await_reading(self) -> None:
        size = self.transport.get_write_buffer_size()
        self._unread_timer = self.loop.call_later(self.limits.unread_s, self._look_at_reading, size)

    def _forget_unread(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _look_at_reading(self, before: int) -> None:
        self._unread_timer = None
        if self.transport.get_write_buffer_size() >= before:
            self.transport.abort()
        else:
            self._await_reading()


def limited(limits: Limits) -> type[LimitedProtocol]:
    """The protocol of one server, whose connections are counted together."""
    counted = {"limits": limits, "addresses": Counter[str]()}
    return type("LimitedProtocol", (LimitedProtocol,), counted)
