"""A NATS client with several servers: always one connection, requests with an age limit.

    start ─▶ one server after the other until one accepts ─▶ up
    lost, silent, stopping ─▶ the next one
    request ─▶ its own reply subject ─▶ answers, or failed: once, and never both
    listen ─▶ plain messages of others, `tell` ─▶ to others: any of them may get lost
    prefer ─▶ a second connection ─▶ the only one, once no request is under way on the first

A request is sent once. When its connection is lost, or when it is too old, it has failed, and
whoever asked decides what follows: only that one knows what a second request would do. The limit is
one of age, so that other traffic does not prolong it. Time that this loop has missed is no age
(`lived_clock.py`): after seconds of other work the answers are there, and are read first. A server
that has sent nothing at all between half of a request's limit and its end is left for the next one,
and passed over for `SILENT_S`: one that is paused still takes connections, and each would cost the
whole limit of the handshake.

A request takes two hops and two wake-ups less if the server has what is asked for. So a client may
be told by name which one that is (`prefer`): it connects there as well, and goes on there between
two requests. Neither fails by it. A server that was left is preferred again after `AVOID_S` only.

Must not know JetStream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from vouchmq.server.replication.connection import Connection, Options
from vouchmq.server.replication.lived_clock import LivedClock

if TYPE_CHECKING:
    import asyncio
    import random
    from collections.abc import Callable, Sequence

    from vouchmq.server.replication.addresses import Server
    from vouchmq.server.replication.nats_protocol import Message

log = structlog.get_logger(__name__)

# Ages of requests are looked at so often, while there are any.
LOOK_S: Final = 0.05
# A look that comes later than this counts as so much.
LATE_LOOK_S: Final = 4 * LOOK_S
# Between two rounds of servers none of which accepts.
FIRST_DELAY_S: Final = 0.1
LONGEST_DELAY_S: Final = 1.0
# A server that was left was left for a reason, whoever recommends it.
AVOID_S: Final = 60.0
# A server that did not answer is tried again after so long, or when no other is left.
SILENT_S: Final = 10.0


@dataclass(slots=True)
class _Request:
    """One request that is under way."""

    answered: Callable[[Message], bool]
    failed: Callable[[str], None]
    sent_at: float
    limit_s: float
    # What the connection had received when it was asked whether the server lives.
    count_at_ping: int = -1


class _Second:
    """Owns the connection to a server that is preferred, until the client does."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def opened(self) -> None:
        self._client.second_opened()

    def received(self, message: Message) -> None:
        """Nothing is subscribed to yet."""

    def leaving(self) -> None:
        self._client.second_closed()

    def closed(self, _reason: str) -> None:
        self._client.second_closed()


class Client:
    """Requests to whichever server is there.

    Args:
        servers: tried in this order, from a random one on
        options: how they are spoken to
        loop: the running event loop
        chance: of the first server, and of the inbox's name
        went_up: a server has accepted this client
        went_down: the reason why there is none now; told once until it is up again
    """

    def __init__(
        self,
        servers: Sequence[Server],
        options: Options,
        loop: asyncio.AbstractEventLoop,
        chance: random.Random,
        *,
        went_up: Callable[[], None],
        went_down: Callable[[str], None],
    ) -> None:
        self._servers = list(servers)
        self._options = options
        self._loop = loop
        self._chance = chance
        self._went_up = went_up
        self._went_down = went_down
        self._next = chance.randrange(len(self._servers))
        self._inbox = f"_INBOX.{chance.getrandbits(96):024x}"
        self._connection: Connection | None = None
        # To the server that is preferred, or that may be it; how that one is called.
        self._second: Connection | None = None
        self._preferred = ""
        # What servers call themselves, and when they were left.
        self._names: dict[Server, str] = {}
        self._left_at: dict[Server, float] = {}
        # When they were found not to answer.
        self._silent_at: dict[Server, float] = {}
        # The request whose answer is being told.
        self._answering = 0
        # Of ages.
        self.clock = LivedClock(loop.time, LATE_LOOK_S)
        self._requests: dict[int, _Request] = {}
        self._last_request = 0
        self._listeners: dict[str, Callable[[bytes], None]] = {}
        self._failed_servers = 0
        self._delay_s = FIRST_DELAY_S
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._is_stopped = True
        self._was_up = True
        # Why the last server was left or did not accept; "" while one accepts.
        self.trouble = "no server of the log has been tried yet"

    @property
    def is_up(self) -> bool:
        """True while a server accepts requests."""
        return self._connection is not None and self._connection.is_open

    @property
    def server(self) -> str:
        """The server it speaks to, or tries to."""
        return str(self._connection.server) if self._connection else ""

    @property
    def max_payload(self) -> int:
        """The largest message that this server takes, with its headers; 0 while there is none."""
        return int(self._connection.info.get("max_payload", 0)) if self._connection else 0

    def start(self) -> None:
        """Connect, and stay connected until `stop`."""
        self._is_stopped = False
        self._connect()

    def stop(self) -> None:
        """Close the connection; requests fail."""
        self._is_stopped = True
        for timer in (self._timer, self._look):
            if timer is not None:
                timer.cancel()
        self._timer = self._look = None
        self._drop_second()
        if self._connection is not None:
            self._connection.close("this client stops")

    def leave_server(self, reason: str) -> None:
        """Go on with the next server; requests fail."""
        if self._connection is not None:
            self._left_at[self._connection.server] = self._loop.time()
            self._connection.close(reason)

    def prefer(self, name: str) -> None:
        """Go on with the server of this name, once it accepts and no request is under way."""
        connection = self._connection
        if self._second is not None or connection is None or not connection.is_open:
            return
        if not name or connection.info.get("server_name") == name:
            return
        now = self._loop.time()
        for server in self._servers:
            if server == connection.server or now - self._left_at.get(server, -AVOID_S) < AVOID_S:
                continue
            # One that was not spoken to yet may have that name.
            if self._names.get(server, name) == name:
                self._preferred = name
                self._second = Connection(server, self._options, [], _Second(self), self._loop)
                self._second.start()
                return

    def request(
        self,
        subject: str,
        payload: Sequence[bytes | memoryview],
        answered: Callable[[Message], bool],
        failed: Callable[[str], None],
        *,
        limit_s: float,
        headers: bytes = b"",
    ) -> int:
        """Send a request; gives its number. Nothing is called before this returns.

        Args:
            subject: where to
            payload: parts that are the content when joined
            answered: told each answer; returns True with the last one
            failed: told why there will be no more answers
            limit_s: the age at which it has failed
            headers: lines with CRLF
        """
        self._change_connection()
        self._last_request += 1
        number = self._last_request
        self._requests[number] = _Request(answered, failed, self.clock.now(), limit_s)
        connection = self._connection
        if connection is None or not connection.is_open:
            self._loop.call_soon(self._fail, number, self.trouble)
            return number
        connection.publish(subject, f"{self._inbox}.{number}", headers, payload)
        if self._look is None:
            self.clock.look()
            self._look = self._loop.call_later(LOOK_S, self._look_at_ages)
        return number

    def listen(self, subject: str, heard: Callable[[bytes], None]) -> None:
        """Have the messages of a subject passed on, also over later connections."""
        is_new = subject not in self._listeners
        self._listeners[subject] = heard
        if is_new and self._connection is not None:
            self._connection.subscribe(subject)

    def tell(self, subject: str, payload: bytes) -> None:
        """Send a message to whoever listens; without a connection nobody gets it."""
        if self._connection is not None and self._connection.is_open:
            self._connection.publish(subject, "", b"", [payload])

    def forget(self, number: int) -> None:
        """Nobody waits for this request any more."""
        self._requests.pop(number, None)

    # The connection's calls

    def opened(self) -> None:
        """A server has accepted this client."""
        if self._connection is not None:
            self._note_name(self._connection)
            self._silent_at.pop(self._connection.server, None)
        self._failed_servers = 0
        self._delay_s = FIRST_DELAY_S
        self._was_up = True
        self.trouble = ""
        log.info("replication.connected", server=self.server)
        self._went_up()

    def received(self, message: Message) -> None:
        """Pass an answer to who waits for it, if anybody does, and others to who listens."""
        heard = self._listeners.get(message.subject)
        if heard is not None:
            heard(message.payload)
            return
        last = message.subject.rpartition(".")[2]
        request = self._requests.get(int(last)) if last.isdigit() else None
        if request is None:
            return
        self._answering = int(last)
        if request.answered(message):
            self._requests.pop(self._answering, None)
        self._answering = 0

    def leaving(self) -> None:
        """It stops: go elsewhere."""
        self.leave_server("it is about to stop")

    def closed(self, reason: str) -> None:
        """Try the next server; what was under way has failed."""
        if self._connection is not None and self._connection.is_silent:
            self._silent_at[self._connection.server] = self._loop.time()
        self._connection = None
        self._drop_second()
        self.trouble = reason
        self._next = self._following()
        if not self._is_stopped:
            self._connect_later()
        if self._was_up:
            self._was_up = False
            if not self._is_stopped:
                log.warning("replication.disconnected", reason=reason)
            self._went_down(reason)
        for number in list(self._requests):
            self._fail(number, reason)

    # The second connection

    def second_opened(self) -> None:
        """Use it from now on, or look for another if that server has another name."""
        if self._second is None:
            return
        self._note_name(self._second)
        if self._names[self._second.server] == self._preferred:
            self._change_connection()
        else:
            self._drop_second()
            self.prefer(self._preferred)

    def second_closed(self) -> None:
        """It does not accept this client, or has gone again."""
        if self._second is not None:
            self._left_at[self._second.server] = self._loop.time()
            self._second = None

    def _change_connection(self) -> None:
        """Go on with the preferred server if nothing is under way at this one."""
        second = self._second
        if second is None or not second.is_open or self._requests.keys() - {self._answering}:
            return
        first, self._connection, self._second = self._connection, second, None
        self._next = self._servers.index(second.server)
        second.hand_over(self)
        for subject in (f"{self._inbox}.*", *self._listeners):
            second.subscribe(subject)
        if first is not None:
            first.hand_over(_Second(self))
            first.close("another server is preferred")
        log.info("replication.server_changed", server=self.server)

    def _drop_second(self) -> None:
        second, self._second = self._second, None
        if second is not None:
            second.close("it is not used")

    def _note_name(self, connection: Connection) -> None:
        self._names[connection.server] = str(connection.info.get("server_name", ""))

    def _following(self) -> int:
        """The place of the next server that may answer; of the next one if none does."""
        now = self._loop.time()
        count = len(self._servers)
        places = [(self._next + step) % count for step in range(1, count + 1)]
        silent_at = [self._silent_at.get(self._servers[each], -SILENT_S) for each in places]
        heard = [each for each, at in zip(places, silent_at, strict=True) if now - at >= SILENT_S]
        return (heard or places)[0]

    def _connect_later(self) -> None:
        self._failed_servers += 1
        if self._failed_servers < len(self._servers):
            delay_s = 0.0
        else:
            self._failed_servers = 0
            delay_s = self._delay_s * (0.5 + self._chance.random())
            self._delay_s = min(2 * self._delay_s, LONGEST_DELAY_S)
        self._timer = self._loop.call_later(delay_s, self._connect)

    def _connect(self) -> None:
        self._timer = None
        server = self._servers[self._next]
        subjects = [f"{self._inbox}.*", *self._listeners]
        self._connection = Connection(server, self._options, subjects, self, self._loop)
        self._connection.start()

    # Ages

    def _look_at_ages(self) -> None:
        self._look = None
        now = self.clock.look()
        connection = self._connection
        is_silent = False
        for number, request in list(self._requests.items()):
            age_s = now - request.sent_at
            if age_s >= request.limit_s:
                if connection is not None and request.count_at_ping == connection.received_count:
                    is_silent = connection.is_silent = True
                self._fail(number, f"no answer after {request.limit_s:g} s")
            elif age_s >= request.limit_s / 2 and request.count_at_ping < 0 and connection:
                request.count_at_ping = connection.received_count
                connection.ping()
        if is_silent and connection is self._connection and connection is not None:
            connection.close("it does not answer")
        if self._requests and self._look is None:
            self._look = self._loop.call_later(LOOK_S, self._look_at_ages)

    def _fail(self, number: int, reason: str) -> None:
        request = self._requests.pop(number, None)
        if request is not None:
            request.failed(reason)
