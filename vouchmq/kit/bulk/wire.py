"""The socket of a bulk connection: one reader, many writers, and nobody ever waits for ever.

Knows bytes and time, no AMQP. While a write waits for room in the socket's buffer it takes in what
arrives: the other side may be waiting, too, until somebody reads what it wants to say.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Final

from vouchmq.kit.bulk.url import Target

# One read takes what the kernel has, up to this. Over TLS a read is one record of 16 KiB at most.
READ_BYTES: Final = 1 << 20
# So long a thread waits for room before it looks whether it may read now.
_LOOK_AGAIN_S: Final = 0.05

_READABLE: Final = select.POLLIN | select.POLLERR | select.POLLHUP
_WRITABLE: Final = select.POLLOUT | select.POLLERR | select.POLLHUP


class WireLostError(Exception):
    """The connection is gone; the text says how."""


class Wire:
    """A connected socket, with TLS where the target wants it.

    `reading` is held by the thread that reads and takes the bytes apart; `writing` by the one
    that writes.
    """

    def __init__(self, raw: socket.socket, target: Target) -> None:
        self._socket = raw
        self._is_tls = isinstance(raw, ssl.SSLSocket)
        # OpenSSL's state is one for both directions.
        self._tls = threading.Lock()
        self._target = target
        self._unread: list[bytes] = []
        self._is_closed = False
        self.reading: Final = threading.RLock()
        self.writing: Final = threading.RLock()
        self.read_at = self.written_at = time.monotonic()
        raw.setblocking(False)
        self._read_poll = select.poll()
        self._read_poll.register(raw, _READABLE)

    @classmethod
    def connect(cls, target: Target, timeout_s: float) -> Wire:
        """Connect, TLS handshake included.

        Raises:
            WireLostError: nobody there, no answer in time, a certificate that is not trusted
            ValueError: the TLS files of the URL cannot be used
        """
        context = target.tls_context() if target.has_tls else None
        deadline = time.monotonic() + timeout_s
        try:
            raw = socket.create_connection((target.host, target.port), timeout_s)
        except OSError as error:
            raise WireLostError(_reason(error, timeout_s)) from None
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if context is not None:
                raw.settimeout(max(0.001, deadline - time.monotonic()))
                raw = context.wrap_socket(raw, server_hostname=target.host)
        except OSError as error:
            raw.close()
            raise WireLostError(f"TLS: {_reason(error, timeout_s)}") from None
        return cls(raw, target)

    def read(self, timeout_s: float) -> bytes:
        """What has arrived, up to a MiB; nothing when nothing came in time.

        Only with `reading` held.

        Raises:
            WireLostError: the other side is gone
        """
        if self._unread:
            unread, self._unread = self._unread, []
            return b"".join(unread)
        data = self._receive()
        if data or timeout_s <= 0:
            return data
        try:
            ready = self._read_poll.poll(timeout_s * 1000)
        except OSError as error:
            raise WireLostError(_reason(error, timeout_s)) from None
        return self._receive() if ready else b""

    def write(self, data: bytes, timeout_s: float) -> None:
        """Hand all of it to the kernel, reading meanwhile when nobody else does.

        Raises:
            WireLostError: the other side is gone, or took nothing for `timeout_s`
        """
        with self.writing:
            left = memoryview(data)
            deadline = time.monotonic() + timeout_s
            while left:
                sent = self._send(left)
                if sent:
                    left = left[sent:]
                    deadline = time.monotonic() + timeout_s
                elif time.monotonic() >= deadline:
                    raise WireLostError(f"the broker has read nothing for {timeout_s:g} s")
                else:
                    self._wait_for_room()
            self.written_at = time.monotonic()

    def close(self) -> None:
        """Close the socket; a thread that waits for it wakes up."""
        self._is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def last_words(self) -> bytes:
        """What can still be read when a write has failed: it may say why. With `reading` held."""
        words = self._unread
        self._unread = []
        try:
            while more := self._receive():
                words.append(more)
        except WireLostError:
            pass
        return b"".join(words)

    def _wait_for_room(self) -> None:
        """Until there is room or something was read, but not longer than a moment."""
        is_reader = self.reading.acquire(blocking=False)
        try:
            # A poll object of its own: two threads may not wait on one.
            waiting = select.poll()
            waiting.register(self._socket, _WRITABLE | (_READABLE if is_reader else 0))
            try:
                events = waiting.poll(_LOOK_AGAIN_S * 1000)
            except OSError as error:
                raise WireLostError(_reason(error, 0)) from None
            if is_reader and any(event & _READABLE for _, event in events):
                data = self._receive()
                if data:
                    self._unread.append(data)
        finally:
            if is_reader:
                self.reading.release()

    def _send(self, data: memoryview) -> int:
        try:
            if not self._is_tls:
                return self._socket.send(data)
            with self._tls:
                # One record at a time: a refused write must be repeated with the same bytes.
                return self._socket.send(data[:16384])
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except (OSError, ValueError) as error:
            raise WireLostError(self._end(error)) from None

    def _receive(self) -> bytes:
        try:
            data = self._receive_tls() if self._is_tls else self._socket.recv(READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b""
        except (OSError, ValueError) as error:
            raise WireLostError(self._end(error)) from None
        if not data:
            raise WireLostError("the broker closed the socket")
        self.read_at = time.monotonic()
        return data

    def _receive_tls(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        with self._tls:
            while size < READ_BYTES:
                try:
                    data = self._socket.recv(READ_BYTES - size)
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    if not parts:
                        raise
                    break
                except OSError:
                    # What came before it is handed on first; the error comes again.
                    if not parts:
                        raise
                    break
                if not data:
                    break
                parts.append(data)
                size += len(data)
        return b"".join(parts)

    def _end(self, error: Exception) -> str:
        return "the connection was closed here" if self._is_closed else _reason(error, 0)


def _reason(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {timeout_s:g} s" if timeout_s else "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
