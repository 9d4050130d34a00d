"""The listener for AMQP over TLS: a protocol between a socket and a `SocketProtocol`.

    socket ◀─ TLS records ─▶ TlsProtocol ◀─ octets of AMQP ─▶ SocketProtocol

To the socket's transport it is the protocol, to the `SocketProtocol` it is the transport. TLS
itself is OpenSSL, fed through memory: so whoever fails to shake hands can be told from the others
and is logged, and the end is like that of a plain connection: close-notify, then the sending side
is shut down, and what still comes is swallowed, so that no reset destroys the last words (CONN-07).
Must not know what a certificate means.

Spec: TLS-01 … TLS-04
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from vouchmq.server.edge.listener import (
    LINGER_OCTETS,
    LINGER_S,
    RECEIVE_OCTETS,
    Listener,
    SocketProtocol,
    read_now,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vouchmq.server.connection.wire import Timer
    from vouchmq.server.edge.tls import Certificate

log = structlog.get_logger(__name__)

# From accept to the end of the handshake (TLS-03).
HANDSHAKE_S: Final = 5.0
# The most that a TLS record carries.
RECORD_OCTETS: Final = 16384
# The first octet of a handshake's record.
HANDSHAKE_RECORD: Final = 0x16


class TlsListener:
    """What all TLS connections share. A new context counts for connections from then on (TLS-04).

    Args:
        listener: the one behind it
        context: certificate, key and what clients must show
        name_of: a valid certificate's user name, "" when it holds none
    """

    def __init__(
        self, listener: Listener, context: ssl.SSLContext, name_of: Callable[[Certificate], str]
    ) -> None:
        self.listener = listener
        self.context = context
        self.name_of = name_of


class TlsProtocol(asyncio.BufferedProtocol):
    """One socket with TLS on it."""

    def __init__(self, tls: TlsListener) -> None:
        self._tls = tls
        self._listener = tls.listener
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls_protocol = tls.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._socket: asyncio.Transport
        self._timer: Timer | None = None
        self._protocol: SocketProtocol | None = None
        self._has_spoken = False
        # As in `SocketProtocol`: None when it is heard.
        self._early: bytes | None = None
        self._descriptor = -1
        self._is_refused = False
        self._refused_octets = 0

    # asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the client to begin, but not for long."""
        # As in Edge: uvloop's are only shaped like these.
        self._socket = cast("asyncio.Transport", transport)
        if self._listener.is_full():
            self._socket.abort()
            return
        self._listener.greeted.add(self)
        self._timer = self._listener.call_later(HANDSHAKE_S, self._timeout)
        if not self._listener.admission.is_heard_at_once(self):
            self._early = b""
            self._listener.loop.call_soon(self._hold_back)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """The buffer that all share."""
        return self._listener.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Octets have come."""
        if self._early is None:
            self._receive(self._listener.buffer[:nbytes])
            return
        if not self._early:
            self._listener.admission.spoke_early(self)
        self._early += self._listener.buffer[:nbytes]

    def _receive(self, octets: memoryview) -> None:
        nbytes = len(octets)
        if self._is_refused:
            self._refused_octets += nbytes
            if self._refused_octets > LINGER_OCTETS:
                self._socket.abort()
            return
        protocol = self._protocol
        if protocol is not None and protocol.is_swallowing(nbytes):
            return
        if not self._has_spoken:
            self._has_spoken = True
            self._listener.admission.speaks(self)
            if octets[0] != HANDSHAKE_RECORD:
                self._refuse(_mistake(bytes(octets)))
                return
        self._incoming.write(octets)
        if protocol is None:
            protocol = self._shake_hands()
        if protocol is not None:
            self._read(protocol, is_full=nbytes == RECEIVE_OCTETS)

    def eof_received(self) -> bool:
        """The client will send no more: that is the end, in a later turn when many end at once."""
        return self._listener.ends(self)

    def end(self) -> None:
        """See `listener.Ends`."""
        self._socket.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._listener.greeted.discard(self)
        self._listener.admission.leaves(self, self._descriptor)
        self._cancel_timer()
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(exc)
        elif self._has_spoken and not self._is_refused:
            self._tell("the client hung up")

    def pause_writing(self) -> None:
        """The socket's buffer is above its mark."""
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """The socket's buffer has drained."""
        if self._protocol is not None:
            self._protocol.resume_writing()

    # The admission's calls

    @property
    def is_opening(self) -> bool:
        """See `Newcomer`."""
        if self._protocol is not None:
            return self._protocol.is_opening
        return not self._is_refused and not self._socket.is_closing()

    def hear(self) -> None:
        """See `Newcomer`."""
        early, self._early = self._early, None
        if self._socket.is_closing():
            return
        self._cancel_timer()
        self._timer = self._listener.call_later(HANDSHAKE_S, self._timeout)
        octets = early or read_now(self._descriptor)
        if octets:
            self._receive(memoryview(octets))
        if not self._socket.is_closing():
            self._socket.resume_reading()

    def _hold_back(self) -> None:
        if self._early is None or self._socket.is_closing():
            return
        self._socket.pause_reading()
        if not self._early:
            self._descriptor = self._socket.get_extra_info("socket").fileno()
            self._listener.admission.watch(self, self._descriptor)

    # TLS

    def _shake_hands(self) -> SocketProtocol | None:
        """Go on with the handshake; returns the `SocketProtocol` when it is done."""
        try:
            self._tls_protocol.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return None
        except ssl.SSLError as error:
            self._refuse(_reason(error))
            return None
        self._cancel_timer()
        self._flush()
        self._listener.greeted.discard(self)
        protocol = SocketProtocol(self._listener, self._certified(), is_plain=False)
        # Our methods are those that a `SocketProtocol` calls.
        protocol.connection_made(cast("asyncio.Transport", self))
        self._protocol = protocol
        return protocol

    def _certified(self) -> str | None:
        """The name in the client's certificate; None without a valid one."""
        try:
            certificate = self._tls_protocol.getpeercert()
        except (ValueError, ssl.SSLError):
            # A name in it is no text, or not what it says it is.
            return ""
        return self._tls.name_of(certificate) if certificate else None

    def _read(self, protocol: SocketProtocol, *, is_full: bool) -> None:
        """Give to the `SocketProtocol` what the records hold that have come."""
        pieces: list[bytes] = []
        is_over = False
        try:
            while piece := self._tls_protocol.read(RECORD_OCTETS):
                pieces.append(piece)
            is_over = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._tell(_reason(error))
            is_over = True
        self._flush()
        if pieces:
            protocol.receive(b"".join(pieces), is_full=is_full)
        # A connection that has said its last words ends by itself.
        if is_over and not protocol.is_swallowing(0):
            self._send_end()
            self._socket.close()

    def _flush(self) -> None:
        if self._outgoing.pending and not self._socket.is_closing():
            self._socket.write(self._outgoing.read())

    def _send_end(self) -> None:
        """close-notify, without waiting for the client's."""
        with suppress(ssl.SSLError):
            self._tls_protocol.unwrap()
        self._flush()

    # The ends of a handshake

    def _timeout(self) -> None:
        self._timer = None
        if self._listener.admission.has_spoken(self):
            # It waits for us.
            self._timer = self._listener.call_later(HANDSHAKE_S, self._timeout)
        elif self._is_refused:
            self._socket.abort()
        else:
            self._is_refused = True
            self._tell(f"no handshake within {HANDSHAKE_S:g} s")
            self._socket.abort()

    def _refuse(self, reason: str) -> None:
        """Say why in the log, send OpenSSL's alert, and let it arrive."""
        self._is_refused = True
        self._tell(reason)
        self._flush()
        self._socket.write_eof()
        self._cancel_timer()
        self._timer = self._listener.call_later(LINGER_S, self._timeout)

    def _tell(self, reason: str) -> None:
        peer = shown(self._socket.get_extra_info("peername"))
        here = shown(self._socket.get_extra_info("sockname"))
        log.warning("tls.handshake_failed", connection=f"{peer} -> {here}", reason=reason)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # What the `SocketProtocol` calls

    def write(self, data: bytes | memoryview) -> None:
        """Encrypt and send octets; nothing once TLS is broken."""
        self.writelines((data,))

    def writelines(self, parts: Sequence[bytes | memoryview]) -> None:
        """Encrypt several parts and send them together."""
        if self._socket.is_closing():
            return
        try:
            for part in parts:
                view = memoryview(part)
                while view:
                    view = view[self._tls_protocol.write(view) :]
        except ssl.SSLError as error:
            # A turn writes for many connections: it must not end because of one.
            self._tell(_reason(error))
            self._socket.abort()
            return
        self._flush()

    def can_write_eof(self) -> bool:
        """As a plain socket can."""
        return True

    def write_eof(self) -> None:
        """Send close-notify and shut down the sending side."""
        self._send_end()
        self._socket.write_eof()

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        """Of the socket."""
        self._socket.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        """Octets that wait in the socket's transport."""
        return self._socket.get_write_buffer_size()

    def get_extra_info(self, name: str) -> Any:
        """Of the socket."""
        return self._socket.get_extra_info(name)

    def pause_reading(self) -> None:
        """Stop reading the socket; nothing of what has been read is kept back here."""
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        """Read the socket again."""
        self._socket.resume_reading()

    def is_closing(self) -> bool:
        """True when the socket is being closed."""
        return self._socket.is_closing()

    def abort(self) -> None:
        """Close the socket at once; unsent octets are lost."""
        self._socket.abort()


def _reason(error: ssl.SSLError) -> str:
    """OpenSSL's words for it, as far as they say something."""
    verify = getattr(error, "verify_message", "")
    words = (error.reason or str(error)).lower().replace("_", " ")
    return f"{words}: {verify}" if verify else words


def _mistake(octets: bytes) -> str:
    """What a peer that begins no handshake has probably taken us for."""
    if octets.startswith(b"AMQP"):
        return "plain AMQP on the TLS port"
    if octets[:4] in {b"GET ", b"POST", b"HEAD"}:
        return "plain HTTP on the TLS port"
    return "no TLS handshake"
