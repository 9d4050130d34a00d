"""A blocking AMQP 0-9-1 client made for runs of messages: columns in, columns out.

For programs that move many messages and can wait: data pipelines, archives, tests. It reads up to
a MiB at a time and walks over it once; it publishes hundreds of messages with one write and reads
the confirms in between. It knows AMQP and nothing of the broker behind it.

One thread at a time polls (reads the socket and fills the channels' inboxes); any thread may
write. Who waits for something polls, or waits for the thread that does.
"""

from __future__ import annotations

import platform
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from pamqp import base
from pamqp.commands import Connection

from vouchmq.kit.bulk.channel import BulkChannel, closed_by
from vouchmq.kit.bulk.errors import BulkClosed, BulkError
from vouchmq.kit.bulk.frames import BrokenFrameError, FrameWalk, Inbox
from vouchmq.kit.bulk.methods import FRAME_MAX_BYTES, HEARTBEAT, method_frame
from vouchmq.kit.bulk.url import Target, targets
from vouchmq.kit.bulk.wire import Wire, WireLostError

CONNECT_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 30.0
HEARTBEAT_S: Final = 30
CLOSE_TIMEOUT_S: Final = 3.0
CHANNEL_MAX: Final = 2047
PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
CAPABILITIES: Final = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "exchange_exchange_bindings": True,
    "publisher_confirms": True,
}
_CLOSED_HERE: Final = "the connection was closed here"
# A heartbeat that is due, but cannot be sent just now, is tried again after this.
_MOMENT_S: Final = 0.05

Answer = TypeVar("Answer", bound=base.Frame)


class BulkConnection:
    """Made by `open()`; a context manager that closes itself.

    Poll at least every `heartbeat_s / 2` seconds, or call `beat()` where reading has to wait: the
    broker drops a client that it hears nothing of.
    """

    def __init__(self, wire: Wire, target: Target, read_timeout_s: float) -> None:
        self._wire = wire
        self._target = target
        self._walk = FrameWalk()
        self._channels: dict[int, BulkChannel] = {}
        self._opening = threading.Lock()
        self._answers: deque[base.Frame] = deque()
        # Frames that the broker asked for, sent as soon as nobody else is writing.
        self._owed: deque[bytes] = deque()
        self._progress = threading.Condition()
        self._waiters = 0
        self._ended: BulkClosed | None = None
        self._channel_max = CHANNEL_MAX
        self.read_timeout_s: Final = read_timeout_s
        self.heartbeat_s = 0
        self.frame_max = FRAME_MAX_BYTES
        self.server_properties: dict[str, object] = {}
        self.capabilities: frozenset[str] = frozenset()
        self.blocked_reason: str | None = None

    @classmethod
    def open(
        cls,
        url: str,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        read_timeout_s: float = READ_TIMEOUT_S,
        heartbeat_s: int = HEARTBEAT_S,
        name: str = "",
    ) -> BulkConnection:
        """Connect to the first broker that lets us in.

        Args:
            url: one amqp:// or amqps:// URL, or several separated by commas, tried in order.
                Parameters as in aio-pika: cafile, capath, cadata, certfile, keyfile,
                no_verify_ssl, heartbeat, name, timeout.
            connect_timeout_s: for each broker, login included
            read_timeout_s: how long an answer may take, or the broker may take no bytes
            heartbeat_s: the longest silence; 0 for none
            name: shown by the broker's tools

        Raises:
            ValueError: a URL cannot be read
            BulkClosed: the only broker is not there (code 0) or refused us
            BulkError: none of several did; the text lists each with its reason
        """
        tried: list[str] = []
        brokers = targets(url)
        for target in brokers:
            try:
                return cls._open(target, connect_timeout_s, read_timeout_s, heartbeat_s, name)
            except BulkClosed as error:
                if len(brokers) == 1:
                    raise
                tried.append(str(error))
        raise BulkError("could not connect or log in to any broker: " + "; ".join(tried))

    def another(self, *, name: str = "") -> BulkConnection:
        """A second connection to the same broker, without heartbeats. Raises: as `open`."""
        return self._open(self._target, CONNECT_TIMEOUT_S, self.read_timeout_s, 0, name)

    @classmethod
    def _open(
        cls, target: Target, connect_s: float, read_s: float, heartbeat_s: int, name: str
    ) -> BulkConnection:
        limit_s = connect_s if target.timeout_s is None else target.timeout_s
        deadline = time.monotonic() + limit_s
        try:
            wire = Wire.connect(target, limit_s)
        except WireLostError as error:
            raise BulkClosed(0, f"{target}: {error}", is_connection=True) from None
        made = cls(wire, target, read_s)
        try:
            asked_s = heartbeat_s if target.heartbeat_s is None else target.heartbeat_s
            made._log_in(deadline, asked_s, name or target.name)
        except BaseException:
            wire.close()
            raise
        return made

    def __enter__(self) -> BulkConnection:
        """Return the connection; the end of `with` closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection, as `close` does."""
        self.close()

    def __repr__(self) -> str:
        state = "open" if self._ended is None else f"closed: {self._ended}"
        return f"<BulkConnection {self._target}, {state}>"

    @property
    def is_blocked(self) -> bool:
        """True while the broker takes no publishes (FLOW-10)."""
        return self.blocked_reason is not None

    @property
    def ended(self) -> BulkClosed | None:
        """Why the connection can be used no more; None while it can."""
        return self._ended

    def channel(self) -> BulkChannel:
        """Open a channel; use one for each consumer."""
        with self._opening:
            self._check()
            number = next(
                (each for each in range(1, self._channel_max + 1) if each not in self._channels),
                None,
            )
            if number is None:
                raise BulkError(f"all {self._channel_max} channels of {self._target} are open")
            inbox = self._walk.inboxes[number] = Inbox()
            channel = self._channels[number] = BulkChannel(self, number, inbox)
        channel.open()
        return channel

    def poll(self, timeout_s: float) -> None:
        """Read what has come, waiting for it at most `timeout_s`; hand it to the channels.

        Heartbeats are sent when they are due.

        Raises:
            BulkClosed: the connection has ended
        """
        deadline = time.monotonic() + timeout_s
        if not self._wire.reading.acquire(timeout=max(0.0, timeout_s)):
            self._check()
            return
        try:
            while True:
                self._check()
                left = deadline - time.monotonic()
                data = self._read(left)
                if data:
                    self._take(data)
                if data or left <= 0:
                    return
        finally:
            self._wire.reading.release()
            if self._waiters:
                with self._progress:
                    self._progress.notify_all()

    def poll_until(
        self, is_done: Callable[[], bool], timeout_s: float, *, is_quiet: bool = False
    ) -> bool:
        """Poll until something is true; False when the time is over.

        Raises:
            BulkClosed: the connection has ended; with `is_quiet` that only ends the waiting
        """
        deadline = time.monotonic() + timeout_s
        while not is_done():
            left = deadline - time.monotonic()
            try:
                if self._wire.reading.acquire(blocking=False):
                    try:
                        # Somebody else may have read it a moment ago.
                        if not is_done():
                            self.poll(left)
                    finally:
                        self._wire.reading.release()
                else:
                    self._wait_for_reader(left)
            except BulkClosed:
                if is_quiet or is_done():
                    return is_done()
                raise
            if left <= 0:
                return is_done()
        return True

    def beat(self) -> None:
        """Send a heartbeat if one is due, and read nothing."""
        self._check()
        due = self._wire.written_at + self.heartbeat_s / 2
        if self.heartbeat_s and time.monotonic() >= due and not self._owed:
            self._owed.append(HEARTBEAT)
        self._pay()

    def close(self) -> None:
        """Close, and wait for the broker's word a little; no error when it has ended already."""
        if self._ended is not None:
            return
        try:
            self._answers.clear()
            self.write(method_frame(0, _close_method(200, "")))
            self.poll_until(lambda: bool(self._answers), CLOSE_TIMEOUT_S)
        except BulkClosed:
            # Gone is what it should be.
            pass
        self._end(BulkClosed(0, _CLOSED_HERE, is_connection=True))

    # What channels call.

    def write(self, data: bytes) -> None:
        """Send frames.

        Raises:
            BulkClosed: the connection has ended
        """
        self._check()
        try:
            with self._wire.writing:
                if self._owed:
                    data = b"".join((*self._take_owed(), data))
                self._wire.write(data, self.read_timeout_s)
        except WireLostError as error:
            with self._wire.reading:
                self._hear_out(str(error))
            self._check()

    def forget(self, number: int) -> None:
        """A channel has ended: its number is free."""
        self._channels.pop(number, None)
        self._walk.inboxes.pop(number, None)

    # Reading.

    def _read(self, timeout_s: float) -> bytes:
        """Bytes, or none when nothing came; a heartbeat goes out meanwhile if it is due."""
        self.beat()
        wire = self._wire
        if self.heartbeat_s:
            due_in_s = wire.written_at + self.heartbeat_s / 2 - time.monotonic()
            timeout_s = min(timeout_s, max(_MOMENT_S, due_in_s))
        try:
            data = wire.read(max(0.0, timeout_s))
        except WireLostError as error:
            self._hear_out(str(error))
            self._check()
            return b""
        silence_s = time.monotonic() - wire.read_at
        if not data and self.heartbeat_s and silence_s > 2 * self.heartbeat_s:
            self._lose(f"nothing heard for {silence_s:.0f} s, heartbeat {self.heartbeat_s} s")
            self._check()
        return data

    def _take(self, data: bytes) -> None:
        """Bytes to the channels; methods are dispatched in their order."""
        broken = ""
        try:
            self._walk.receive_data(data)
        except BrokenFrameError as error:
            broken = str(error)
        methods = self._walk.methods
        if methods:
            self._walk.methods = []
            for number, method in methods:
                self._dispatch(number, method)
            self._pay()
        if broken:
            self._lose(broken)
        self._check()

    def _dispatch(self, number: int, method: base.Frame) -> None:
        if number:
            channel = self._channels.get(number)
            if channel is not None:
                self._owed.append(channel.receive(method))
        elif isinstance(method, Connection.Close):
            self._owed.append(method_frame(0, Connection.CloseOk()))
            self._pay()
            self._end(closed_by(method))
        elif isinstance(method, Connection.Blocked):
            self.blocked_reason = method.reason or "no reason given"
        elif isinstance(method, Connection.Unblocked):
            self.blocked_reason = None
        else:
            self._answers.append(method)

    def _hear_out(self, text: str) -> None:
        """The wire is gone: whatever the broker said last tells why, else `text`."""
        if self._ended is not None:
            return
        try:
            last = self._wire.last_words()
            if last:
                self._take(last)
        except BulkClosed:
            return
        self._lose(text)

    def _wait_for_reader(self, left_s: float) -> None:
        """Until the thread that reads has handed something on."""
        with self._progress:
            self._waiters += 1
            self._progress.wait(max(0.0, min(left_s, 0.05)))
            self._waiters -= 1
        self._check()

    # Writing what nobody here asked for.

    def _pay(self) -> None:
        """Send what is owed, unless another thread writes just now; then it will."""
        if not self._owed or self._ended is not None:
            return
        writing = self._wire.writing
        if not writing.acquire(blocking=False):
            return
        try:
            data = b"".join(self._take_owed())
            if data:
                self._wire.write(data, self.read_timeout_s)
        except WireLostError as error:
            self._hear_out(str(error))
        finally:
            writing.release()

    def _take_owed(self) -> list[bytes]:
        return [self._owed.popleft() for _ in range(len(self._owed))]

    # The way in and the end.

    def _log_in(self, deadline: float, heartbeat_s: int, name: str) -> None:
        self.write(PROTOCOL_HEADER)
        start = self._next(deadline, Connection.Start)
        self.server_properties = dict(start.server_properties)
        offered = self.server_properties.get("capabilities")
        if isinstance(offered, dict):
            self.capabilities = frozenset(key for key, has in offered.items() if has is True)
        if "PLAIN" not in str(start.mechanisms).split():
            raise self._refusal("the broker does not offer PLAIN")
        user, password = self._target.user, self._target.password
        properties: dict[str, object] = {
            "product": "vouchmq.kit.bulk",
            "platform": f"Python {platform.python_version()}",
            "capabilities": CAPABILITIES,
        }
        if name:
            properties["connection_name"] = name
        answer = Connection.StartOk(response=f"\0{user}\0{password}")
        answer.client_properties = properties  # type: ignore[assignment]  # plain field values
        self.write(method_frame(0, answer))
        try:
            tune = self._next(deadline, Connection.Tune)
        except BulkClosed as error:
            if not error.code:
                # Brokers without `authentication_failure_close` say it by hanging up.
                raise self._refusal(f"{error.text} during the login of {user!r}") from None
            raise
        self._tune(tune, heartbeat_s)
        self.write(method_frame(0, Connection.Open(virtual_host=self._target.vhost)))
        self._next(deadline, Connection.OpenOk)

    def _tune(self, tune: Connection.Tune, heartbeat_s: int) -> None:
        """The smaller of what both want; 0 means no limit, or no heartbeat."""
        self._channel_max = min(tune.channel_max or CHANNEL_MAX, CHANNEL_MAX)
        self.frame_max = min(tune.frame_max or FRAME_MAX_BYTES, FRAME_MAX_BYTES)
        self.heartbeat_s = min(tune.heartbeat or heartbeat_s, heartbeat_s)
        self._walk.frame_max = self.frame_max
        answer = Connection.TuneOk(
            channel_max=self._channel_max, frame_max=self.frame_max, heartbeat=self.heartbeat_s
        )
        self.write(method_frame(0, answer))

    def _next(self, deadline: float, expected: type[Answer]) -> Answer:
        """The next method on channel 0."""
        left_s = deadline - time.monotonic()
        try:
            has_come = self.poll_until(lambda: bool(self._answers), left_s)
        except BulkClosed as error:
            raise self._refusal(error.text, error.code) from None
        if not has_come:
            raise self._refusal("no answer in time")
        method = self._answers.popleft()
        if not isinstance(method, expected):
            raise self._refusal(f"{method.name} where {expected.name} was due")
        return method

    def _refusal(self, text: str, code: int = 0) -> BulkClosed:
        prefix = "" if text.startswith(str(self._target)) else f"{self._target}: "
        return BulkClosed(code, prefix + text, is_connection=True)

    def _lose(self, text: str) -> None:
        self._end(BulkClosed(0, text, is_connection=True))

    def _end(self, reason: BulkClosed) -> None:
        """Close the connection; later calls raise the first reason that was given."""
        if self._ended is None:
            self._ended = reason
            self._wire.close()

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended.again()


def _close_method(code: int, text: str) -> Connection.Close:
    return Connection.Close(reply_code=code, reply_text=text, class_id=0, method_id=0)
