"""A connection: events in, channel table, stalls, heartbeats, and one way from error to close.

The connection gets octets from its wire and never touches a socket. From `receive` to the journal's
buffer a publish is one chain of plain calls, without `async`; that is what lets tests and the
simulator run it without a loop.

    receive ─▶ InboundQueue.receive_data ─▶ Reader.receive_data ─▶ _take ─▶ _dispatch ─▶ Channel

What holds:

- Events are done one at a time and in order (GEN-08). When one has to stop, everything behind it
  waits in `InboundQueue` and the socket is not read.
- It is the only place that turns an `AmqpError` into `channel.close` or `connection.close`, and the
  only one that knows which frames are owed after that. Anything else that is raised is a bug:
  logged with its traceback, and 541 for the client.
- A reply that has to wait for the disk (DURABLE-02) stalls the connection (`hold_reply`) until the
  watermark has passed. A definition that is not stored ends the connection with 506: a promise that
  is never made before it is true need not be undone (decision 0003).
- Clean-up happens before close-ok leaves, and is the same after a lost socket (CONN-53, CONN-55).

Reasons to stop reading are bits, so that several can hold at once: a reply waits for the disk
(`STALLED`), what was said is not yet sent (`UNSENT`), publishers are too fast (`backpressure.py`),
work is put off to a later turn, an alarm blocks publishers.

What was learnt: all that one read held was once done in one go, and 500 gets of 10 MB kept
everybody else waiting for seconds (commit fdfff34). Work is now cut by the clock between events,
and a client that does not read has only those methods done that settle or end something.

What it costs: a connection and its parts refer to each other. `_tear_down` cuts that circle, or
thousands of short connections would be left to the garbage collector.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
from mypy_extensions import mypyc_attr

from vouchmq.protocol.codec import (
    KNOWN_METHODS,
    connection_close,
    connection_close_ok,
    decode_method,
    method_ids,
)
from vouchmq.protocol.constants import (
    BASIC_ACK,
    BASIC_PUBLISH,
    BASIC_REJECT,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    CONNECTION_TUNE_OK,
    CONNECTION_UPDATE_SECRET,
)
from vouchmq.protocol.errors import (
    AmqpError,
    CommandInvalid,
    ConnectionForced,
    HardError,
    InternalError,
    ResourceError,
    SoftError,
    UnexpectedFrame,
)
from vouchmq.protocol.reader import (
    ACKS,
    ACKS_UP_TO,
    METHOD,
    PUBLISH_BEGUN,
    PUBLISHES,
    REJECTS,
    TOO_LARGE,
    UNLIKE,
    Reader,
)
from vouchmq.protocol.reader import HEARTBEAT as HEARTBEAT_EVENT
from vouchmq.protocol.states import (
    ConnectionEvent,
    ConnectionState,
    is_expected,
    next_connection_state,
    unexpected_method,
)
from vouchmq.server.broker.counters import ConnectionCounters
from vouchmq.server.channel.methods import handle
from vouchmq.server.connection.backpressure import Backpressure
from vouchmq.server.connection.blocked import PublisherBlock
from vouchmq.server.connection.channel_table import CHANNEL_ENDS, SETTLES_OR_ENDS, ChannelTable
from vouchmq.server.connection.committed import new_outbox
from vouchmq.server.connection.events import log_channel_failed, log_lost, tell, tell_opened
from vouchmq.server.connection.handshake import header_mistake, judge_header
from vouchmq.server.connection.heartbeat import Heartbeat
from vouchmq.server.connection.inbound import GOES_ON, InboundQueue
from vouchmq.server.connection.login_failures import LoginFailure
from vouchmq.server.connection.wire import CHECKED, STALLED, UNSENT
from vouchmq.server.ledger.publish_numbers import PublishNumbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vouchmq.protocol.codec import Command
    from vouchmq.protocol.reader import Event
    from vouchmq.protocol.runs import Piece
    from vouchmq.server.auth.users import User
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.broker.vhost import VHost
    from vouchmq.server.channel.channel import Channel
    from vouchmq.server.connection.handshake import Handshake
    from vouchmq.server.connection.inbound import Task
    from vouchmq.server.connection.wire import Timer, Wire
    from vouchmq.server.runtime.context import BrokerContext

log = structlog.get_logger(__name__)

HEADER_OCTETS: Final = 8
# While memory is tight so much less may wait for a client.
TIGHT_PART: Final = 16
LEAST_UNSENT_OCTETS: Final = 4096
# A method of this size holds a table to be kept: while an alarm is up it waits like a publish.
LARGE_METHOD_OCTETS: Final = 4096
# One message of the largest size there is may always come, with what stands around it.
BESIDE_MESSAGE_OCTETS: Final = 1024 * 1024


@mypyc_attr(allow_interpreted_subclasses=True)
class Connection:
    """One client connection.

    Args:
        context: what all connections share
        connections: all there are; it stands among them until it is over
        wire: its socket
        handshake: the state machine up to connection.open
    """

    # What refers back to it and goes with its end; for the compiler, which wants to know.
    __deletable__ = ("_backpressure", "_heartbeat", "_inbound", "_publisher_block", "_table")

    def __init__(
        self,
        context: BrokerContext,
        connections: dict[Connection, None],
        wire: Wire,
        handshake: Handshake,
    ) -> None:
        self.context = context
        limits = context.limits
        self.wire = wire
        self.state = ConnectionState.STARTING
        mark = limits.deliver_high_water_bytes
        self.outbox = new_outbox(context.commits, context.turn, self._write, mark, self._drained)
        self.vhost: VHost[Queue]
        self.user: User
        self.frame_max = 0
        self.opened_at = context.clock()
        self.counters = ConnectionCounters()
        context.closed_counters.connections_opened += 1
        self.uncommitted_bytes = 0  # see `Transaction`
        self.publish_numbers = PublishNumbers()
        self.handshake = handshake
        self._header: bytes | None = b""
        self._reader = Reader(limits.initial_frame_max, limits.max_message_size_bytes)
        self.channels: dict[int, Channel] = {}  # open and closing ones by number
        self._table = ChannelTable(self, self._reader, self.channels)
        self._backpressure = Backpressure(self)
        self._inbound = InboundQueue(
            self._reader,
            wire,
            self._take,
            lambda error: self._fail(error, deaf=True),
            context.budget,
            context.turn.flow,
            self._backpressure,
            context.turn.wake,
        )
        self._publisher_block = PublisherBlock(self, self._inbound)
        self._held: list[bytes] = []
        self._held_until, self._ids = 0, (0, 0)
        self._has_published = self._is_in_vhost = False
        self._heartbeat = Heartbeat(
            context.clock, wire.call_later, self._write, self._silent, self._is_deaf
        )
        self._close_timer: Timer | None = None
        self._handshake_timer: Timer | None = wire.call_later(
            limits.handshake_timeout_s, self._handshake_timeout
        )
        self._connections = connections
        connections[self] = None

    @property
    def client_name(self) -> str:
        """What the client calls this connection; "" if it does not say (CONN-14)."""
        return self.handshake.connection_name

    @property
    def is_blocked(self) -> bool:
        """True while an alarm keeps it from publishing."""
        return self._publisher_block.is_blocked

    @property
    def has_consumers(self) -> bool:
        """See `ConnectionPort`."""
        return any(channel.consumers for channel in self.channels.values())

    @property
    def shown_state(self) -> str:
        """Its state, or that it is held back (LIMIT-20, LIMIT-29)."""
        is_open = self.state is ConnectionState.RUNNING
        return "flow" if is_open and self._backpressure.is_shown else str(self.state)

    def has_capability(self, name: str) -> bool:
        """What the client said it can do (CONN-14)."""
        return name in self.handshake.capabilities

    # Octets in

    def receive(self, data: bytes, *, is_late: bool = False) -> None:
        """Process octets that the socket has received; `is_late`: not before a later turn."""
        self._heartbeat.heard_at = self.context.clock()
        self.counters.received_bytes += len(data)
        if self._header is not None:
            data = self._greet(self._header + data)
        if not data or self.state is ConnectionState.CLOSED:
            return
        is_opening = self._handshake_timer is not None
        self._inbound.receive_data(data, is_late=is_late)
        if is_opening and not self.channels:
            return
        # Whatever these octets did to the journal is written in this turn.
        self.context.turn.wake()
        if self._has_published:
            self._backpressure.check_flood()
            if self._reader.unfinished_octets or self.uncommitted_bytes:
                self._check_held()

    def _greet(self, data: bytes) -> bytes:
        """Judge the protocol header (CONN-01…05); returns what follows it."""
        accepted = judge_header(data)
        if accepted is None:
            self._header = data
            return b""
        self._header = None
        if accepted:
            self._write(self.handshake.start())
            return data[HEADER_OCTETS:]
        self.state = next_connection_state(self.state, ConnectionEvent.LOST)
        self._cancel_timers()
        log.warning("connection.refused", connection=self.wire.name, reason=header_mistake(data))
        self._write(b"AMQP\x00\x00\x09\x01")
        self.wire.finish()
        return b""

    def _take(self, event: Task) -> None:
        """One event; errors become closes here and nowhere else."""
        try:
            self._dispatch(event)
        except SoftError as error:
            if event[1] in self.channels:
                self.fail_channel(event[1], error)
            else:
                self._fail(error)
        except HardError as error:
            self._fail(error)
        except Exception:
            log.exception(
                "internal_error", where="connection", connection=self.wire.name, channel=event[1]
            )
            self._fail(InternalError("an error in the broker, see its log"))

    def _dispatch(self, event: Task) -> None:
        kind, number = event[0], event[1]
        if kind in {PUBLISHES, UNLIKE}:
            self._ids = BASIC_PUBLISH
            channel = self._open_channel(number)
            if channel is not None:
                if self._publisher_block.is_blocking:
                    self._publisher_block.block(event)  # type: ignore[arg-type]
                    return
                self._has_published = True
                channel.publish(event)  # type: ignore[arg-type]
        elif kind in {ACKS, ACKS_UP_TO, REJECTS}:
            self._ids = BASIC_REJECT if kind == REJECTS else BASIC_ACK
            channel = self._open_channel(number)
            if channel is not None and kind == REJECTS:
                channel.reject_ranges(event[2])  # type: ignore[misc, arg-type]
            elif channel is not None:
                channel.ack(event)  # type: ignore[arg-type]
        elif kind == METHOD:
            self._method(number, event[2])  # type: ignore[misc, arg-type]
        elif kind == PUBLISH_BEGUN:
            self._ids = BASIC_PUBLISH
            if self._open_channel(number) is not None and self._publisher_block.is_blocking:
                self._publisher_block.block()
            self._has_published = True
        elif kind != HEARTBEAT_EVENT:
            self._dispatch_rare(event)

    def _dispatch_rare(self, event: Task) -> None:
        kind, number = event[0], event[1]
        if kind == TOO_LARGE:
            self._ids = BASIC_PUBLISH
            channel = self._open_channel(number)
            if channel is not None:
                channel.refuse_too_large(event[3])  # type: ignore[misc, arg-type]
        elif kind == GOES_ON:
            if not number or self._open_channel(number) is not None:
                event[2]()  # type: ignore[misc, operator]
        else:
            raise InternalError(f"unknown event {kind}")

    def _open_channel(self, number: int) -> Channel | None:
        """The open channel of this number; None when what came for it is to be discarded."""
        channel = self.channels.get(number)
        if channel is not None:
            return None if channel.is_closing else channel
        if self.state in {ConnectionState.CLOSING, ConnectionState.CLOSED}:
            return None
        self._check_running(number)
        self._table.missing(number, self._ids)
        return None

    def _check_running(self, number: int) -> None:
        if self.state is ConnectionState.CLOSING:
            return
        if not number:
            raise unexpected_method(self.state, self._ids)
        if self.state is not ConnectionState.RUNNING:
            raise UnexpectedFrame("a frame on a channel before connection.open", ids=(0, 0))

    # Methods

    def _method(self, number: int, payload: bytes) -> None:
        self._ids = (0, 0)
        if number and self._publisher_block.is_blocking and len(payload) > LARGE_METHOD_OCTETS:
            self._publisher_block.block((METHOD, number, payload))
            return
        if number and self.state is not ConnectionState.RUNNING:
            self._check_running(number)
            return
        if not number:
            # Judged before it is decoded: out of turn is 504 even for what only we may send.
            ids = method_ids(payload)
            if ids in KNOWN_METHODS and not is_expected(self.state, ids):
                return
            self._ids = ids
        elif self.outbox.blocked and method_ids(payload) not in SETTLES_OR_ENDS:
            self._inbound.pause_before((METHOD, number, payload), UNSENT)
            return
        command = decode_method(payload)
        self._ids = command.ids
        if not number:
            self._connection_method(command, payload)
        elif command.ids[0] == 10:
            raise CommandInvalid("unimplemented method")
        elif command.ids in CHANNEL_ENDS:
            self._table.handle(number, command, self.handshake.channel_max)
        else:
            channel = self._open_channel(number)
            if channel is not None:
                handle(channel, command)

    def _connection_method(self, command: Command, payload: bytes) -> None:
        """Methods of channel 0 (CONN-35, CONN-50…54, CONN-70)."""
        ids = command.ids
        if ids == CONNECTION_CLOSE:
            self._closed_by_client(payload)
        elif ids == CONNECTION_CLOSE_OK:
            self._end(is_orderly=True)
        elif ids == CONNECTION_UPDATE_SECRET:
            self._answer(self.handshake.update_secret(command, self._checked))
        else:
            self._handshake_method(command)

    def _handshake_method(self, command: Command) -> None:
        handshake = self.handshake
        self._answer(handshake.handle(command, self._checked))
        if command.ids == CONNECTION_TUNE_OK:
            self.frame_max = handshake.frame_max
            self._reader.set_frame_max(self.frame_max)
            self._heartbeat.start(handshake.heartbeat_s)
        elif self.state is ConnectionState.RUNNING:
            self.user, self.vhost, self._is_in_vhost = handshake.user, handshake.vhost, True
            self._cancel_handshake_timer()
            tell_opened(self, self.context)

    def _answer(self, answer: bytes | None) -> None:
        """What the handshake says now; None: once a password has been checked."""
        if answer is None:
            self._inbound.pause(CHECKED)
        elif answer:
            # No turn is waited for: it rests on nothing that the journal is still to write.
            self._write(answer)
        self.state = self.handshake.state

    def _checked(self, result: Callable[[], bytes]) -> None:
        if self in self._connections:
            self._take((GOES_ON, 0, lambda: self._answer(result())))
            self._inbound.resume(CHECKED)

    # Waiting for the disk

    def hold_reply(self, frame: bytes, lsn: int) -> None:
        """Send this reply once `lsn` is on disk; until then nothing further is done (GEN-08)."""
        self._held.append(frame)
        self._inbound.pause(STALLED)
        self._held_until = max(self._held_until, lsn)
        self.outbox.waits_for_reply = True
        self.context.turn.wake()
        self.context.waits(self)

    def send_behind_replies(self, *pieces: Piece) -> None:
        """Send at once, but not before a reply that is being held."""
        if self._held_until:
            self._held.append(b"".join(pieces))
        else:
            self.outbox.add_content(pieces)

    def release(self, watermark: int) -> bool:
        """See `context.Waiter`."""
        if self._held_until and self._held_until <= watermark:
            self._held_until = 0
            self.outbox.waits_for_reply = False
            held, self._held = self._held, []
            for frame in held:
                self.outbox.send(frame)
            self._inbound.resume(STALLED)
            if not self._held_until:
                self._drained()
        return not self._held_until

    def storage_failed(self) -> None:
        """See `context.Waiter`: a definition that is not stored ends the connection (CONF-12)."""
        if self._held_until:
            self._fail(ConnectionForced("storage has failed", ids=(0, 0)))

    def storage_refused(self, first_lsn: int) -> None:
        """Nothing from this LSN on was stored: say so to whoever hoped for it (CONF-12, TX-09)."""
        is_lost = False
        for channel in list(self.channels.values()):
            is_lost |= channel.storage_refused(first_lsn)
        if is_lost:
            self._fail(ResourceError("failed to deliver message", ids=BASIC_PUBLISH))
        elif any(channel.barrier_lsn >= first_lsn for channel in self.channels.values()):
            self._fail(ResourceError("failed to store definition"))

    # Memory

    @property
    def label(self) -> str:
        """See `memory_relief.Holder`."""
        return self.wire.name

    @property
    def has_unfinished(self) -> bool:
        """True while a content has begun to come in, and not ended."""
        return self._reader.unfinished_octets > 0

    @property
    def awaits_commit(self) -> bool:
        """True while its client waits for a reply or a confirm of what is not safe yet."""
        return self._held_until > 0 or any(each.awaits_confirm for each in self.channels.values())

    @property
    def is_in_large_body(self) -> bool:
        return self._reader.is_in_large_body

    @property
    def buffered_octets(self) -> int:
        """See `memory_relief.Holder`."""
        out = self.outbox.size + self.wire.unsent_octets
        return self._inbound.held_octets + self.uncommitted_bytes + out

    @property
    def unacked_octets(self) -> int:
        """See `memory_relief.Holder`."""
        return sum(channel.unacked_octets for channel in self.channels.values())

    def limit_unsent(self, *, is_tight: bool) -> None:
        """What may wait for the client: less while memory is tight."""
        octets = self.context.limits.deliver_high_water_bytes
        if is_tight:
            octets = max(LEAST_UNSENT_OCTETS, octets // TIGHT_PART)
        self.outbox.limit(octets)
        self.wire.limit_unsent(octets)

    def restrain(self, *, is_restrained: bool) -> None:
        """See `memory_relief.Holder`."""
        self.outbox.restrain(is_restrained=is_restrained)

    def close_for_memory(self) -> None:
        """See `memory_relief.Holder`."""
        hears = self.wire.unsent_octets < LEAST_UNSENT_OCTETS
        if self.state is ConnectionState.RUNNING:
            self._fail(
                ResourceError("memory is low and this connection uses much of it", ids=(0, 0))
            )
        if not hears or self.state is not ConnectionState.CLOSING:
            self.wire.abort()

    def _check_held(self) -> None:
        """Refuse to hold more of what is not finished than one connection may (LIMIT-27)."""
        held = self._reader.unfinished_octets + self.uncommitted_bytes
        limits = self.context.limits
        most = limits.connection_memory_bytes
        if held > most and held > limits.max_message_size_bytes + BESIDE_MESSAGE_OCTETS:
            self._fail(
                ResourceError(
                    f"unfinished messages and transactions of more than {most} bytes", ids=(0, 0)
                )
            )

    # Octets out

    def _write(self, data: Piece, *more: Piece) -> bool:
        self._heartbeat.said_at = self.context.clock()
        self.counters.sent_bytes += len(data) + (sum(map(len, more)) if more else 0)
        if not more:
            return self.wire.write(data)
        self.wire.write_parts((data, *more))
        return False

    def _drained(self) -> None:
        for channel in self.channels.values():
            channel.wake_consumers()
        if self._inbound.stops & UNSENT:
            self.context.budget.put_off(self._go_on_sent)

    def _go_on_sent(self) -> None:
        if not self.outbox.blocked:
            self._inbound.resume(UNSENT)

    def put_off(self, event: Event) -> None:
        """Take this event, or what is left of one, in a later turn, and nothing before (GEN-08)."""
        self._inbound.put_off(event)

    def go_on_later(self, number: int, job: Callable[[], None]) -> None:
        """Do the rest of a method in a later turn, unless its channel is closed by then."""
        self._inbound.put_off((GOES_ON, number, job))

    # Time

    def _is_deaf(self) -> bool:
        """True while this side does not read: then silence is no sign (CONN-62)."""
        return self.wire.is_paused

    def _silent(self) -> None:
        log.warning(
            "connection.heartbeat_timeout",
            connection=self.wire.name,
            idle_s=self.handshake.heartbeat_s,
        )
        self.wire.abort()

    def beats_at(self, now: float) -> bool:
        """Whether a heartbeat is due, for somebody who sends it while the loop cannot."""
        return self.state is ConnectionState.RUNNING and self._heartbeat.beats_at(now)

    def said(self, now: float) -> None:
        """Something was sent at that time."""
        self._heartbeat.said_at = now

    def _handshake_timeout(self) -> None:
        if self.state is not ConnectionState.RUNNING:
            log.warning("connection.handshake_timeout", connection=self.wire.name)
            self.wire.abort()

    # Ends

    def fail_channel(self, number: int, error: SoftError) -> None:
        """Close a channel with an error, whether a method of its client has made it or not."""
        log_channel_failed(self, number, error, self.channels[number].next_tag - 1)
        self._table.fail(number, error, error.ids if error.ids is not None else self._ids)

    def _fail(self, error: AmqpError, *, deaf: bool = False) -> None:
        """A hard error closes the connection (CONN-54); deaf: nothing more can be read."""
        if self.state in {ConnectionState.CLOSING, ConnectionState.CLOSED}:
            if deaf:
                self._end()
            return
        log.warning(
            "connection.failed",
            connection=self.wire.name,
            reply_code=error.code,
            reason=error.reply_text,
        )
        self._held_until = 0
        self.outbox.waits_for_reply = False
        self._held.clear()
        self.context.budget.go_through(self._cleaning_up())
        self._reader.discard_all()
        self.state = next_connection_state(self.state, ConnectionEvent.SERVER_CLOSED)
        limit = self.handshake.close_limit_s(error, self.context.limits.auth_failure_delay_s)
        if not isinstance(error, LoginFailure) or error.notify:
            ids = error.ids if error.ids is not None else self._ids
            self.outbox.send(connection_close(error, ids))
        if deaf:
            self._end()
            return
        self._close_timer = self.wire.call_later(limit, self._end)
        # Whatever kept the connection from being read: close-ok lies behind it.
        self._publisher_block.open()
        self._inbound.resume(STALLED)

    def shut_down(self, reason: str) -> None:
        """Close by force (CONN-56)."""
        if self._header is not None or self.state is not ConnectionState.RUNNING:
            self.wire.abort()
            return
        self._fail(ConnectionForced(reason, ids=(0, 0)))

    def _closed_by_client(self, payload: bytes) -> None:
        """CONN-53: everything is cleaned up before close-ok leaves, in later turns if need be."""
        if not self._clean_up():
            self._inbound.put_off((METHOD, 0, payload))
            return
        self.outbox.send(connection_close_ok())
        if self.state is ConnectionState.CLOSING:
            return
        self.state = next_connection_state(self.state, ConnectionEvent.CLIENT_CLOSED)
        if self.context.logs_connections:
            log.info("connection.closed", connection=self.wire.name, duration_ms=self._age_ms())
        self._end(is_orderly=True)

    def _end(self, *, is_orderly: bool = False) -> None:
        """Nothing more to say: let the last octets reach the client, then close (CONN-07)."""
        self._cancel_timers()
        self.context.turn.write_owed()
        self.outbox.flush()
        self.state = next_connection_state(self.state, ConnectionEvent.LOST)
        self.outbox.close()
        self.wire.finish(is_orderly=is_orderly)

    def lost(self, reason: str) -> None:
        """The socket is gone: cleaned up as after a close, in slices (CONN-55, LIMIT-23)."""
        self._inbound.end()
        self.outbox.close()
        if self in self._connections:
            self.context.budget.soon(partial(self._tear_down, reason))
        else:
            self._tear_down(reason)  # cleaned up with its last words

    def _tear_down(self, reason: str) -> None:
        self._cancel_timers()
        self._reader.discard_all()
        if self.state is not ConnectionState.CLOSED and self._header is None:
            was_open = self.state is not ConnectionState.STARTING
            log_lost(self, reason, self._age_ms(), was_open=was_open)
        self.context.budget.go_through(self._cleaning_up(is_lost=True))

    def _cancel_timers(self) -> None:
        """Nothing more is done, neither by the clock nor with what was read."""
        self._inbound.end()
        self._heartbeat.stop()
        self._cancel_handshake_timer()
        if self._close_timer is not None:
            self._close_timer.cancel()
            self._close_timer = None

    def _cancel_handshake_timer(self) -> None:
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
            self._handshake_timer = None

    def _cleaning_up(self, *, is_lost: bool = False) -> Iterator[None]:
        while not self._clean_up():
            yield
        if not is_lost:
            return
        self.state = next_connection_state(self.state, ConnectionEvent.LOST)
        # These refer back to us. Without the ring everything goes at once, and the garbage
        # collector need not look at all that a thousand short connections have left.
        del self._table, self._publisher_block, self._inbound, self._heartbeat, self._backpressure

    def _clean_up(self) -> bool:
        """Let go of everything while there is time; False: there is more (LIMIT-23)."""
        self.context.forget(self)
        if self not in self._connections:
            return True
        self._publisher_block.leave()
        self._backpressure.leave()
        # It stays among them meanwhile: a queue that goes looks for what others hold of it.
        if not self._table.close_some(is_over := self.context.budget.is_over) or (
            self._is_in_vhost and not self.vhost.owner_gone(self, is_over)
        ):
            return False
        del self._connections[self]
        counted, self.counters = self.counters, self.context.closed_counters.connections
        self.counters.add(counted)  # the last words to a client are counted there at once
        if self._is_in_vhost:
            self.vhost.closed_connections.add(counted)
            tell("connection.closed", self, self.context.events)
        self.handshake.leave()
        return True

    def _age_ms(self) -> int:
        return int((self.context.clock() - self.opened_at) * 1000)
