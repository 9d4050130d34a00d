"""A client without opinions: it sends what it is told, in any order, and shows what comes back.

`Connection` owns one socket and sorts incoming events into one inbox per channel; nothing is
answered by itself, heartbeats neither sent nor hidden. Every frame is kept in a short trace,
the wire evidence of a failed case. One thread uses one connection.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from ssl import SSLContext
from typing import Final, Self

from vouchmq.conformance import wire
from vouchmq.conformance.events import (
    EndedError,
    Event,
    RefusedError,
    SilenceError,
    describe,
    describe_octets,
)
from vouchmq.conformance.expect import MismatchError, Text, equal, eventually, says
from vouchmq.conformance.target import Target
from vouchmq.conformance.wire import Argument, Raw, Table

REPLY_S: Final = 10.0
QUIET_S: Final = 0.3
END_S: Final = 8.0
TRACE_LINES: Final = 14
READ_SIZE: Final = 1 << 16

# What an ordinary modern client announces; cases that need a plainer client pass their own.
CAPABILITIES: Final[Table] = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}
CLIENT_PROPERTIES: Final[Table] = {"product": "conformance", "capabilities": CAPABILITIES}

_CONTENT: Final = frozenset({"basic.deliver", "basic.return", "basic.get_ok"})


class Connection:
    """One socket to the broker, from the protocol header on."""

    def __init__(
        self, target: Target, *, greet: bytes = wire.PROTOCOL_HEADER, tls: SSLContext | None = None
    ) -> None:
        self.target = target
        self.frame_max = 4096
        self.heartbeats: list[float] = []
        self.end: str | None = None
        self.trace: deque[str] = deque(maxlen=TRACE_LINES)
        self._inboxes: dict[int, deque[Event]] = {}
        self._partial: dict[int, Event] = {}
        self._received = bytearray()
        self._socket = socket.create_connection((target.host, target.port), timeout=REPLY_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            self._socket = tls.wrap_socket(self._socket)
        if greet:
            self.send(greet)

    # --- opening, step by step -------------------------------------------------------------

    def start_ok(
        self,
        response: bytes | None = None,
        *,
        mechanism: str = "PLAIN",
        client_properties: Table = CLIENT_PROPERTIES,
        locale: str = "en_US",
    ) -> None:
        """Send start-ok; by default PLAIN with the target's user."""
        self.send_method(
            0,
            "connection.start_ok",
            client_properties=client_properties,
            mechanism=mechanism,
            response=self.target.plain() if response is None else response,
            locale=locale,
        )

    def tune_ok(self, *, channel_max: int = 2047, frame_max: int = 131072, beat: int = 0) -> None:
        """Send tune-ok; by default without heartbeats, so that a case may be slow."""
        self.frame_max = frame_max
        self.send_method(
            0,
            "connection.tune_ok",
            channel_max=channel_max,
            frame_max=frame_max,
            heartbeat=beat,
        )

    def open(
        self,
        *,
        client_properties: Table = CLIENT_PROPERTIES,
        channel_max: int = 2047,
        frame_max: int = 131072,
        beat: int = 0,
    ) -> Self:
        """From `connection.start` to `connection.open-ok`."""
        self.wait(0, "connection.start")
        self.start_ok(client_properties=client_properties)
        self.wait(0, "connection.tune")
        self.tune_ok(channel_max=channel_max, frame_max=frame_max, beat=beat)
        self.call("connection.open", vhost=self.target.vhost)
        return self

    def channel(self, number: int = 1) -> Channel:
        """Open a channel."""
        channel = Channel(self, number)
        channel.call("channel.open")
        return channel

    # --- sending ---------------------------------------------------------------------------

    def send(self, octets: bytes) -> None:
        """Send octets as they are; a peer that is gone shows up when reading.

        Raises:
            EndedError: the peer does not read any more.
        """
        self.trace.append(f"  > {describe_octets(octets)}")
        try:
            self._socket.sendall(octets)
        except OSError as error:
            # What the broker said before it hung up may still be readable.
            with contextlib.suppress(SilenceError):
                self._read(time.monotonic() + QUIET_S)
            self.end = self.end or f"reset ({error})"

    def send_method(self, channel: int, name: str, **arguments: Argument) -> None:
        """Send one method frame."""
        self.send(wire.method(channel, name, **arguments))

    def call(self, name: str, **arguments: Argument) -> Event:
        """A method on channel 0 and its -ok."""
        self.send_method(0, name, **arguments)
        return self.wait(0, f"{name}_ok")

    # --- receiving -------------------------------------------------------------------------

    def wait(self, channel: int, *names: str, timeout_s: float = REPLY_S) -> Event:
        """The next event of one of these names on the channel; others stay in their inboxes.

        Raises:
            RefusedError: the broker closed the channel or the connection instead.
            EndedError: TCP ended first.
            SilenceError: the time ran out.
        """
        deadline = time.monotonic() + timeout_s
        wanted = " or ".join(names) or "close"
        while True:
            inbox = self.inbox(channel)
            for at, event in enumerate(inbox):
                if event.name in names:
                    del inbox[at]
                    return event
            self._raise_close(channel, names)
            if self.end:
                raise EndedError(f"connection ended ({self.end}), waiting for {wanted}")
            self._read(deadline, f"no {wanted} on channel {channel} in {timeout_s} s")

    def _raise_close(self, channel: int, names: Sequence[str]) -> None:
        for number, name in ((0, "connection.close"), (channel, "channel.close")):
            for event in self.inbox(number):
                if event.name == name and name not in names:
                    self.inbox(number).remove(event)
                    raise RefusedError(event, is_hard=number == 0)

    def inbox(self, channel: int) -> deque[Event]:
        """Events of a channel that nobody has waited for yet."""
        return self._inboxes.setdefault(channel, deque())

    def listen(self, seconds: float) -> None:
        """Read whatever comes for that long, or until TCP ends."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(SilenceError):
            while not self.end:
                self._read(deadline)

    def wait_end(self, timeout_s: float = END_S) -> float:
        """Wait until the broker ends TCP; the monotonic time it happened.

        Raises:
            MismatchError: it is still open.
        """
        deadline = time.monotonic() + timeout_s
        try:
            while not self.end:
                self._read(deadline)
        except SilenceError:
            raise MismatchError(f"connection still open after {timeout_s} s") from None
        return time.monotonic()

    def read_octets(self, count: int, timeout_s: float = REPLY_S) -> bytes:
        """Raw octets, for answers that are not frames; fewer if TCP ends."""
        self._socket.settimeout(timeout_s)
        out = b""
        with contextlib.suppress(OSError):
            while len(out) < count:
                octets = self._socket.recv(count - len(out))
                if not octets:
                    break
                out += octets
        return out

    def _read(self, deadline: float, otherwise: str = "nothing came") -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise SilenceError(otherwise)
        self._socket.settimeout(left)
        try:
            octets = self._socket.recv(READ_SIZE)
        except TimeoutError:
            raise SilenceError(otherwise) from None
        except OSError as error:
            self.end = f"reset ({error})"
            return
        if not octets:
            self.end = "closed"
            self.trace.append("  < end of stream")
            return
        self._received += octets
        self._sort()

    def _sort(self) -> None:
        at, data = 0, self._received
        while len(data) - at >= wire.FRAME_OVERHEAD:
            if data[at : at + 4] == b"AMQP":
                raise MismatchError("the broker answered with a protocol header")
            size = int.from_bytes(data[at + 3 : at + 7], "big")
            if len(data) - at < size + wire.FRAME_OVERHEAD:
                break
            if data[at + 7 + size] != wire.FRAME_END:
                raise MismatchError("a frame from the broker does not end with CE")
            channel = int.from_bytes(data[at + 1 : at + 3], "big")
            frame = wire.Frame(data[at], channel, bytes(data[at + 7 : at + 7 + size]))
            at += size + wire.FRAME_OVERHEAD
            self.trace.append(f"  < {describe(frame)}")
            self._take(frame)
        del data[:at]

    def _take(self, frame: wire.Frame) -> None:
        if frame.kind == wire.HEARTBEAT:
            self.heartbeats.append(time.monotonic())
            return
        partial = self._partial.get(frame.channel)
        if frame.kind == wire.METHOD:
            if partial is not None:
                raise MismatchError(f"a method in the middle of the content of {partial.name}")
            method = wire.decode_method(frame.payload)
            event = Event(method.name, method.ids, method.arguments, time.monotonic())
            if event.name in _CONTENT:
                self._partial[frame.channel] = event
            else:
                self.inbox(frame.channel).append(event)
            return
        if partial is None:
            raise MismatchError(f"a content frame (type {frame.kind}) without its method")
        self._take_content(frame, partial)

    def _take_content(self, frame: wire.Frame, partial: Event) -> None:
        if frame.kind == wire.HEADER:
            partial.header = wire.decode_header(frame.payload)
        else:
            partial.body += frame.payload
            partial.body_sizes.append(len(frame.payload))
        if partial.header and len(partial.body) >= partial.header.body_size:
            equal(len(partial.body), partial.header.body_size, "octets of the body")
            del self._partial[frame.channel]
            self.inbox(frame.channel).append(partial)

    # --- ends ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def hard(self, code: int, text: Text, method: str | None = None) -> Iterator[None]:
        """The block must make the broker close the connection with exactly this.

        `method` names the method at fault, None means ids 0,0. Nothing is answered.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(_refusal(code, text, method, is_hard=True))
            yield
            self.wait(0)

    def close(self) -> None:
        """Close in good order."""
        self.call("connection.close", reply_code=200, reply_text="bye")

    def drop(self) -> None:
        """End TCP without a word."""
        self.trace.append("  > (socket closed)")
        self.end = self.end or "dropped"
        self._socket.close()

    def half_close(self) -> None:
        """End only the sending side."""
        self._socket.shutdown(socket.SHUT_WR)

    def shrink_receive_buffer(self, size: int) -> None:
        """Make the kernel take little on our behalf, so that the broker feels a slow reader."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


class Channel:
    """One channel: methods, contents, and what came for it."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self._settled: dict[int, str] = {}

    def send(self, name: str, **arguments: Argument) -> None:
        """Send a method and wait for nothing."""
        self.connection.send_method(self.number, name, **arguments)

    def wait(self, *names: str, timeout_s: float = REPLY_S) -> Event:
        """As `Connection.wait`, on this channel."""
        return self.connection.wait(self.number, *names, timeout_s=timeout_s)

    def call(self, name: str, **arguments: Argument) -> Event:
        """Send a method and wait for its -ok."""
        self.send(name, **arguments)
        return self.wait(f"{name}_ok")

    def publish(
        self,
        exchange: str,
        key: str,
        body: bytes | str = b"",
        *,
        mandatory: bool = False,
        immediate: bool = False,
        block: Raw | None = None,
        **properties: Argument,
    ) -> None:
        """Publish; `block` sends a whole property block as it is."""
        octets = body.encode() if isinstance(body, str) else body
        self.connection.send(
            wire.method(
                self.number,
                "basic.publish",
                exchange=exchange,
                routing_key=key,
                mandatory=mandatory,
                immediate=immediate,
            )
            + wire.content(
                self.number,
                octets,
                wire.encode_properties(**properties) if block is None else block,
                self.connection.frame_max or 131072,
            )
        )

    def count(self, queue: str) -> int:
        """Ready messages of a queue, by passive declare."""
        return self.call("queue.declare", queue=queue, passive=True).number("message_count")

    def holds(self, queue: str, count: int) -> None:
        """Fail unless the queue comes to have that many ready messages.

        Brokers may answer a declare before they have enqueued what the same channel published.
        """
        eventually(lambda: self.count(queue), count, f"ready messages in {queue}")

    def get(self, queue: str, *, no_ack: bool = True) -> Event:
        """basic.get: a get_ok with content, or a get_empty."""
        self.send("basic.get", queue=queue, no_ack=no_ack)
        return self.wait("basic.get_ok", "basic.get_empty")

    def drain(self, queue: str) -> list[str]:
        """Get (and so settle) all ready messages; their bodies."""
        bodies = []
        while (event := self.get(queue)).name == "basic.get_ok":
            bodies.append(event.body.decode())
        return bodies

    def consume(
        self, queue: str, *, tag: str = "", arguments: Table | None = None, **flags: bool
    ) -> str:
        """basic.consume; the consumer tag."""
        reply = self.call(
            "basic.consume", queue=queue, consumer_tag=tag, arguments=arguments or {}, **flags
        )
        return reply.text("consumer_tag")

    def deliver(self, timeout_s: float = REPLY_S) -> Event:
        """The next delivery, of whatever consumer."""
        return self.wait("basic.deliver", timeout_s=timeout_s)

    def deliveries(self, count: int) -> list[Event]:
        """The next deliveries."""
        return [self.deliver() for _ in range(count)]

    def bodies(self, count: int) -> list[str]:
        """The bodies of the next deliveries."""
        return [event.body.decode() for event in self.deliveries(count)]

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """basic.ack."""
        self.send("basic.ack", delivery_tag=tag, multiple=multiple)

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        """basic.nack."""
        self.send("basic.nack", delivery_tag=tag, multiple=multiple, requeue=requeue)

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        """basic.reject."""
        self.send("basic.reject", delivery_tag=tag, requeue=requeue)

    def confirms(self, count: int) -> dict[int, str]:
        """Settlements of the first `count` publishes: sequence number to `ack` or `nack`.

        Raises:
            MismatchError: a number settled twice or out of range (CONF-08).
        """
        settled = self._settled
        while len(settled) < count:
            event = self.wait("basic.ack", "basic.nack")
            last = event.tag
            if not event.arguments["multiple"] and last in settled:
                raise MismatchError(f"{last} confirmed twice")
            first = 1 if event.arguments["multiple"] else last
            for number in range(first, last + 1):
                settled.setdefault(number, event.name.removeprefix("basic."))
            if last > count or last < 1:
                raise MismatchError(f"{event.name} of {last}, but {count} were published")
        return dict(settled)

    def quiet(self, *names: str, seconds: float = QUIET_S) -> None:
        """Fail if one of these events (or any, if none is named) comes within that time."""
        self.connection.listen(seconds)
        for event in self.connection.inbox(self.number):
            if not names or event.name in names:
                raise MismatchError(
                    f"unexpected {event.name} {event.arguments} {event.body[:40]!r}"
                )

    def sync(self) -> None:
        """A round trip: everything sent before it on this channel has been processed."""
        self.call("basic.qos", prefetch_count=0)

    def close(self) -> None:
        """Close in good order."""
        self.call("channel.close", reply_code=200, reply_text="bye")

    def reopen(self) -> None:
        """Open the same number again, with an empty inbox."""
        self.connection.inbox(self.number).clear()
        self._settled.clear()
        self.call("channel.open")

    @contextlib.contextmanager
    def soft(self, code: int, text: Text, method: str | None) -> Iterator[None]:
        """The block must make the broker close this channel with exactly this.

        `method` names the method at fault, None means ids 0,0. Answers close-ok.
        """
        with _refusal(code, text, method, is_hard=False):
            yield
            self.wait("channel.close_ok")
        self.send("channel.close_ok")

    def soft_again(self, code: int, text: Text, name: str, **arguments: Argument) -> None:
        """A method that must be refused softly; the channel is open again afterwards."""
        with self.soft(code, text, name):
            self.send(name, **arguments)
        self.reopen()


@contextlib.contextmanager
def _refusal(code: int, text: Text, method: str | None, *, is_hard: bool) -> Iterator[None]:
    ids = wire.ids_of(method) if method else (0, 0)
    wanted = f"{'connection' if is_hard else 'channel'}.close {code} {text!r} ids {ids}"
    try:
        yield
    except RefusedError as refused:
        equal("hard" if refused.is_hard else "soft", "hard" if is_hard else "soft", str(refused))
        equal(refused.code, code, f"reply code ({refused.text})")
        says(refused.text, text, "reply text")
        equal(refused.ids, ids, "class and method id of the close")
    except (SilenceError, EndedError) as error:
        raise MismatchError(f"{error}; wanted {wanted}") from None
    else:
        raise MismatchError(f"accepted; wanted {wanted}")
