"""The listener: asyncio's side of a connection, and nothing else.

All connections share one receive buffer: asyncio asks for it, receives into it and hands it
over without a pause between, and what has come is copied out at once. A larger buffer would
cost more (page faults), one per connection would cost memory.

uvloop reads one busy socket many times before any other gets a turn. So time is taken at the
first chunk of a loop turn, and who still fills the buffer when the budget is used up waits for
the next turn (LIMIT-23).
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, cast

import structlog

from vouchmq.protocol.codec import HEARTBEAT
from vouchmq.protocol.states import OPENING_STATES
from vouchmq.server.connection.wire import OUT_OF_BUDGET, UNHEARD, UNREAD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vouchmq.protocol.states import ConnectionState
    from vouchmq.server.connection.wire import Timer
    from vouchmq.server.edge.admission import Admission

log = structlog.get_logger(__name__)

RECEIVE_OCTETS: Final = 65536
READ_BUDGET_S: Final = 250e-6
# Octets of a large body are only copied. Who is in the middle of one may go on so long: then what a
# turn costs beside them is shared by a MiB of them. With the shorter time bodies of 64 KiB took
# twice the processor time.
BODY_BUDGET_S: Final = 1e-3
# So long what sockets bring in one turn is worked through as it comes; what comes later is put off,
# so that clients that have waited for a turn are served in between. Without it a thousand
# publishers that all had sent something kept the loop for 63 ms (docs/operate/growth.md).
READS_S: Final = 0.008
# A closed connection's unread octets are swallowed this long and this far (CONN-07).
LINGER_S: Final = 1.0
LINGER_OCTETS: Final = 65536
# A closed connection's client may take this long to read what was written before, and to send
# what stood behind its own close.
LAST_WORDS_LIMIT_S: Final = 30.0
# Descriptors that connections must leave to files and listeners (LIMIT-22).
RESERVED_DESCRIPTORS: Final = 64
TOLD_EVERY_S: Final = 10.0
# Few short reads take no time worth measuring: only every so many of them have the turn's end told.
UNMEASURED_READS: Final = 8
# Sockets closed in one turn of the loop because their clients have closed them (LIMIT-23).
TURN_ENDS: Final = 64
# Answers that a client may leave unread.
UNREAD_OCTETS: Final = 16 * 1024 * 1024
# How much comes in or goes out between two looks at memory.
LOOK_OCTETS: Final = 16 * 1024 * 1024


class Ends(Protocol):
    """A socket that its client has closed."""

    def end(self) -> None:
        """Close it here, too."""


class Outgoing(Protocol):
    """What a connection has to say: not written while the client does not read."""

    def hold(self) -> None:
        """The socket's buffer is above its high mark."""

    def release(self) -> None:
        """It has drained."""


class Served(Protocol):
    """The connection behind a socket."""

    @property
    def state(self) -> ConnectionState:
        """Where it stands."""

    @property
    def outbox(self) -> Outgoing:
        """What it has to say."""

    @property
    def is_in_large_body(self) -> bool:
        """Whether the next octets belong to a large body."""

    def receive(self, data: bytes, *, is_late: bool = False) -> None:
        """Process octets; `is_late`: not before a later turn."""

    def lost(self, reason: str) -> None:
        """The socket is gone."""

    def shut_down(self, reason: str) -> None:
        """Close by force."""

    def beats_at(self, now: float) -> bool:
        """Whether a heartbeat is due."""

    def said(self, now: float) -> None:
        """Something was sent at that time."""


class Listener:
    """What all edges share: the loop, the buffer, the read budget, who is connected.

    Args:
        loop: the running event loop
        new_connection: makes the connection of a socket
        high_octets: the high-water mark of a socket's write buffer (CONS-11)
        descriptors: how many this process may have open
        look: has the memory in use looked at
        is_short: tells whether there is none for new connections
        admission: says which new connections are heard, and when
        handshake_timeout_s: within which a client has to say its first word
        clock: seconds; that of the loop stands still while callbacks run
        call_later: runs a callable after a delay in seconds; None: the loop's
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        new_connection: Callable[[SocketProtocol, str], Served],
        high_octets: int,
        descriptors: int,
        *,
        look: Callable[[], None],
        is_short: Callable[[], bool],
        admission: Admission,
        handshake_timeout_s: float = 10.0,
        clock: Callable[[], float] = time.perf_counter,
        call_later: Callable[[float, Callable[[], None]], Timer] | None = None,
    ) -> None:
        self.loop = loop
        self.call_later = call_later or loop.call_later
        self._clock = clock
        self.admission = admission
        self.handshake_timeout_s = handshake_timeout_s
        self.new_connection = new_connection
        self.high_octets = high_octets
        self.buffer = memoryview(bytearray(RECEIVE_OCTETS))
        self.edges: set[SocketProtocol] = set()
        # Sockets on which nobody can be heard yet: they shake hands.
        self.greeted: set[object] = set()
        self._look = look
        self._is_short = is_short
        self._moved_octets = 0
        self._most_edges = max(1, descriptors - RESERVED_DESCRIPTORS)
        self._told_at = -TOLD_EVERY_S
        self._turn_began = 0.0
        self._unmeasured_reads = 0
        self.is_late = False
        self._is_long = False
        self._waiting: list[SocketProtocol] = []
        # Whose clients will send no more, in that order, and how many more may end in this turn.
        self._ending: dict[Ends, None] = {}
        self._may_end = TURN_ENDS

    def is_full(self) -> bool:
        """True when another connection would take descriptors that files need (LIMIT-22)."""
        reason = "memory"
        if not self._is_short():
            if len(self.edges) + len(self.greeted) < self._most_edges:
                return False
            reason = "file descriptors"
        now = self.loop.time()
        if now - self._told_at >= TOLD_EVERY_S:
            self._told_at = now
            log.warning("connection.refused", reason=reason, count=len(self.edges))
        return True

    def count(self, octets: int) -> None:
        """So much has come in or goes out: memory is looked at each time it is much (LIMIT-01)."""
        self._moved_octets += octets
        if self._moved_octets >= LOOK_OCTETS:
            self._moved_octets = 0
            self.loop.call_soon(self._look)

    def begins_read(self, octets: int) -> bool:
        """So much has come in. True when this loop turn has spent its time on reading; `is_late`:
        far more than that.
        """
        self._moved_octets += octets
        if self._moved_octets >= LOOK_OCTETS:
            self.count(0)
        if not self._turn_began:
            self._unmeasured_reads += 1
            if octets < RECEIVE_OCTETS and self._unmeasured_reads < UNMEASURED_READS:
                return False
            self._unmeasured_reads = 0
            self._turn_began = self._clock()
            self.loop.call_soon(self._end_turn)
            return False
        now = self._clock()
        spent_s = now - self._turn_began
        self.is_late = spent_s > READS_S
        self._is_long = spent_s > BODY_BUDGET_S
        return spent_s > READ_BUDGET_S

    def out_of_time(self, protocol: SocketProtocol, served: Served) -> None:
        """Read this one again in the next loop turn, unless it has time for a large body."""
        if self._is_long or not served.is_in_large_body:
            protocol.pause(OUT_OF_BUDGET)
            self._waiting.append(protocol)

    def ends(self, protocol: Ends) -> bool:
        """Its client will send no more: False when it may end now, else it will in a later turn."""
        if self._may_end == TURN_ENDS:
            self.loop.call_soon(self._end_some)
        if self._may_end and not self._ending:
            self._may_end -= 1
            return False
        self._ending[protocol] = None
        return True

    def _end_some(self) -> None:
        """End those that have waited longest; sockets are read before the next ones end."""
        self._may_end = TURN_ENDS
        if self._ending:
            self._may_end = 0
            for protocol in list(islice(self._ending, TURN_ENDS)):
                del self._ending[protocol]
                protocol.end()
            self.loop.call_soon(self._end_some)

    def _end_turn(self) -> None:
        self._turn_began = 0.0
        self.is_late = self._is_long = False
        waiting, self._waiting = self._waiting, []
        # The first was read first, and has had most of the time: now it is the last.
        for protocol in (*waiting[1:], *waiting[:1]):
            protocol.resume(OUT_OF_BUDGET)


class SocketProtocol(asyncio.BufferedProtocol):
    """One socket. It is the connection's `Wire`."""

    # uvloop asks for it first, and an exception for each connection costs more than this.
    data_received: ClassVar[None] = None

    def __init__(
        self, listener: Listener, certified: str | None = None, *, is_plain: bool = True
    ) -> None:
        """`certified`: the user name in the client's certificate, "" if it holds none, None when
        there is no valid certificate (TLS-20); `is_plain`: what is written here is what is sent.
        """
        self._listener = listener
        self._is_plain = is_plain
        self.certified = certified
        self._transport: asyncio.Transport | None = None
        self._connection: Served | None = None
        # Once it is heard and until it ends: the connection's `receive`.
        self._take: Callable[..., None] | None = None
        # Of the socket while it may be written to here; whether the transport may hold something.
        self._own_descriptor = -1
        self._is_behind = False
        self._paused = 0
        self._is_finishing = False
        self._linger_until = 0.0
        # Until it is heard: the end of patience; at the end: that of the last words.
        self._lingering: Timer | None = None
        # None: it is heard. Otherwise it is held back, and this was read before it was paused.
        self._early: bytes | None = None
        self._descriptor = -1
        self._is_silent = is_plain
        self._is_held = False
        self._is_orderly = False
        self._swallowed_octets = 0
        # As many at the last look: whether more have come since.
        self._looked_octets = 0
        self.name = "?"
        self._address = ""

    # asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: name the connection and make it."""
        # uvloop's transports are no subclasses of asyncio's, only shaped like them.
        self._transport = socket_transport = cast("asyncio.Transport", transport)
        high = self._listener.high_octets
        socket_transport.set_write_buffer_limits(high=high, low=high // 4)
        peer, here = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self.name = f"{shown(peer)} -> {shown(here)}"
        self._address = str(peer[0]) if peer else ""
        if self._listener.is_full():
            self._transport.abort()
            return
        self._listener.edges.add(self)
        if self._is_plain and not self._listener.admission.is_heard_at_once(self):
            self._early = b""
            self._await_word()
            # The loop begins to read it only after this call.
            self._listener.loop.call_soon(self._hold_back)
        else:
            self._connect(socket_transport)

    def _connect(self, transport: asyncio.Transport) -> None:
        own = transport.get_extra_info("socket") if self._is_plain else None
        if own is not None:
            self._own_descriptor = own.fileno()
        self._connection = self._listener.new_connection(self, self._address)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """The buffer that all sockets share, to receive into."""
        return self._listener.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Hand the received octets to the connection, copied out of the buffer."""
        take, listener = self._take, self._listener
        if take is not None:
            # All that `receive` looks at has been found to be as usual.
            is_over = listener.begins_read(nbytes)
            take(listener.buffer[:nbytes].tobytes(), is_late=listener.is_late)
            if is_over and nbytes == RECEIVE_OCTETS and self._connection is not None:
                listener.out_of_time(self, self._connection)
        elif not self.is_swallowing(nbytes):
            self.receive(bytes(listener.buffer[:nbytes]), is_full=nbytes == RECEIVE_OCTETS)

    def is_swallowing(self, octets: int) -> bool:
        """True when all has been said: what still comes is counted, and not read."""
        if self._is_finishing:
            self._swallowed_octets += octets
            if self._swallowed_octets > LINGER_OCTETS and not self._is_orderly:
                self.abort()
        return self._is_finishing

    def receive(self, data: bytes, *, is_full: bool) -> None:
        """Give octets to the connection; `is_full` when more are likely to wait in the socket."""
        if self._early is not None:
            if not self._early:
                self._listener.admission.spoke_early(self)
            self._early += data
            return
        if self._is_silent:
            self._is_silent = False
            self._listener.admission.speaks(self)
        if self._connection is not None:
            self._take = self._connection.receive
            is_over = self._listener.begins_read(len(data))
            self._take(data, is_late=self._listener.is_late)
            if is_over and is_full and self._connection is not None:
                self._listener.out_of_time(self, self._connection)

    def eof_received(self) -> bool:
        """The client will send no more: that is the end, in a later turn when many end at once."""
        self._own_descriptor = -1
        return self._listener.ends(self)

    def end(self) -> None:
        """See `Ends`."""
        self._own_descriptor = -1
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._listener.edges.discard(self)
        self._transport = self._take = None
        self._own_descriptor = -1
        if self._is_plain:
            self._listener.admission.leaves(self, self._descriptor)
        self._cancel_lingering()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.lost(str(exc) if exc else "closed by the client")

    def pause_writing(self) -> None:
        """The write buffer is above its mark."""
        self._is_held = True
        if self._connection is not None:
            self._connection.outbox.hold()

    def resume_writing(self) -> None:
        """The write buffer has drained."""
        self._is_held = False
        self.resume(UNREAD)
        if self._connection is not None:
            self._connection.outbox.release()

    # The admission's calls

    @property
    def is_opening(self) -> bool:
        """See `Newcomer`."""
        connection = self._connection
        return connection is not None and connection.state in OPENING_STATES

    def hear(self) -> None:
        """See `Newcomer`."""
        transport, data = self._transport, self._early
        self._early = None
        self._is_silent = False
        self._cancel_lingering()
        if transport is None or transport.is_closing():
            return
        self._connect(transport)
        data = data or read_now(self._descriptor)
        if data:
            self.receive(data, is_full=False)
        self.resume(UNHEARD)

    def _hold_back(self) -> None:
        transport = self._transport
        if self._early is None or transport is None or transport.is_closing():
            return
        self.pause(UNHEARD)
        if not self._early:
            self._descriptor = transport.get_extra_info("socket").fileno()
            self._listener.admission.watch(self, self._descriptor)

    def _await_word(self) -> None:
        timeout_s = self._listener.handshake_timeout_s
        self._lingering = self._listener.call_later(timeout_s, self._end_patience)

    def _end_patience(self) -> None:
        """End a client that says nothing (CONN-06); what waits for its turn is our own fault."""
        if self._listener.admission.has_spoken(self):
            self._await_word()
        else:
            log.warning("connection.handshake_timeout", connection=self.name)
            self.abort()

    def _cancel_lingering(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None

    # The connection's calls

    @property
    def connection(self) -> Served | None:
        """The connection behind this socket, None when it is gone."""
        return self._connection

    def write(self, data: bytes | memoryview) -> bool:
        """Send octets: at once, if the socket takes them and nothing waits in front of them.

        The transport would wait for the end of the loop's turn, and it costs as much as the write.

        Returns:
            False if the transport has some of them
        """
        transport = self._transport
        if transport is None or self._is_finishing:
            return True
        self._listener.count(len(data))
        if self._own_descriptor >= 0 and not (
            self._is_behind and transport.get_write_buffer_size()
        ):
            self._is_behind = False
            try:
                sent = os.write(self._own_descriptor, data)
            except OSError:
                sent = 0  # it is full; or broken, which the transport finds out as well
            if sent == len(data):
                return True
            data = memoryview(data)[sent:]
        self._is_behind = True
        transport.write(data)
        # Deliveries stop at the high mark; answers do not. A client that asks on and on and
        # never reads is no longer listened to.
        if self._is_held and transport.get_write_buffer_size() > UNREAD_OCTETS:
            self.pause(UNREAD)
        return False

    def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send several parts in one system call where the loop can."""
        if self._transport is None or self._is_finishing:
            return
        self._listener.count(sum(map(len, parts)))
        self._is_behind = True
        self._transport.writelines(parts)
        if self._is_held and self._transport.get_write_buffer_size() > UNREAD_OCTETS:
            self.pause(UNREAD)

    @property
    def unsent_octets(self) -> int:
        """See `Wire`."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def limit_unsent(self, octets: int) -> None:
        """See `Wire`."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=octets, low=octets // 4)

    def pause(self, reason: int) -> None:
        """Stop reading; several reasons may hold at once."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._paused |= reason

    def resume(self, reason: int) -> None:
        """Read again once no reason is left."""
        if not self._paused & reason:
            return
        self._paused &= ~reason
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def finish(self, *, is_orderly: bool = False) -> None:
        """Shut down sending, then swallow what still comes, so that no reset destroys our last
        words (CONN-07). See `Wire`."""
        transport = self._transport
        if transport is None or self._is_finishing or transport.is_closing():
            return
        self._is_finishing = True
        self._take = None
        self._is_orderly = is_orderly
        if self._paused:
            self._paused = 0
            transport.resume_reading()
        if transport.can_write_eof():
            transport.write_eof()
        self._linger_until = self._listener.loop.time() + LAST_WORDS_LIMIT_S
        self._lingering = self._listener.call_later(LINGER_S, self._linger)

    def _linger(self) -> None:
        """The end, unless a slow client has not yet been given everything, or one that said its
        close is still sending what it had written before."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        is_sending = self._is_orderly and self._swallowed_octets > self._looked_octets
        self._looked_octets = self._swallowed_octets
        is_busy = is_sending or transport.get_write_buffer_size()
        if is_busy and self._listener.loop.time() < self._linger_until:
            self._lingering = self._listener.call_later(LINGER_S, self._linger)
        else:
            self.abort()

    @property
    def is_paused(self) -> bool:
        """True while this side does not read."""
        return self._paused != 0

    @property
    def is_swamped(self) -> bool:
        """True while the client leaves more unread than it may."""
        return self._paused & UNREAD != 0

    def abort(self) -> None:
        """Close the socket at once; unsent octets are lost."""
        self._own_descriptor = -1
        if self._transport is not None:
            self._transport.abort()

    # Calls of another thread, while that of the loop is known to stand still

    def beat_from_thread(self, now: float) -> None:
        """Send a heartbeat if one is due, and nothing waits in front of it (CONN-60)."""
        transport, connection = self._transport, self._connection
        if transport is None or connection is None or not self._is_plain:
            return
        if self._is_finishing or transport.is_closing() or transport.get_write_buffer_size():
            return
        if connection.beats_at(now):
            with suppress(OSError):
                os.write(transport.get_extra_info("socket").fileno(), HEARTBEAT)
                connection.said(now)

    def cut(self) -> None:
        """Have the client see the end, whatever becomes of this process."""
        if self._transport is not None:
            with suppress(OSError):
                descriptor = os.dup(self._transport.get_extra_info("socket").fileno())
                with socket.socket(fileno=descriptor) as own:
                    own.shutdown(socket.SHUT_RDWR)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Run a callable after a delay."""
        return self._listener.call_later(delay_s, callback)


def read_now(descriptor: int) -> bytes:
    """What has come by now in a socket that the loop does not read; nothing tells of its end."""
    try:
        return os.read(descriptor, RECEIVE_OCTETS)
    except OSError:
        return b""


def shown(address: tuple[object, ...] | str | None) -> str:
    """An address as in connection names (CONN-15): IPv4-mapped as IPv4, IPv6 in brackets."""
    if not isinstance(address, tuple) or len(address) < 2:
        return str(address or "?")
    host = str(address[0]).removeprefix("::ffff:")
    return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"
