"""One connection to one NATS server: TCP, TLS, the handshake, messages in both directions.

    start ─▶ TCP [─▶ TLS] ─▶ INFO [─▶ TLS] ─▶ CONNECT, PING ─▶ PONG: opened
    anything wrong, at any time ─▶ closed, once, with the reason

The first PONG says that the server has accepted the credentials. A server that stops answering is
found out by its users: they have requests with time limits (`client.py`), and ask whether anything
has come since. Must not know JetStream, nor other servers.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from vouchmq.server.replication import nats_protocol as nats
from vouchmq.server.replication.credentials import Credentials, CredentialsError
from vouchmq.server.version import VERSION

if TYPE_CHECKING:
    from vouchmq.server.replication.addresses import Server

# From the start of TCP to the PONG.
HANDSHAKE_LIMIT_S: Final = 2.0
# A handshake is looked at so many times until its limit: a loop that was busy for that long reads
# what has come before it looks again.
HANDSHAKE_LOOKS: Final = 10
WANTS_CERTIFICATE: Final = (
    "it takes only clients with a certificate that is valid and signed by an authority it trusts"
)
# A server that takes no more than this is not sent any more.
UNSENT_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True)
class Options:
    """How servers are spoken to.

    Args:
        credentials: who this client is
        tls: gives the context of a connection that begins; if set, nothing is said to a server
            without TLS
        tls_first: the server expects the handshake before its INFO
        name: of this client, in the server's monitoring
        handshake_limit_s: so long may a server take until it has accepted this client
    """

    credentials: Credentials = field(default_factory=Credentials)
    tls: Callable[[], ssl.SSLContext] | None = None
    tls_first: bool = False
    name: str = "vouchmq"
    handshake_limit_s: float = HANDSHAKE_LIMIT_S


class Owner(Protocol):
    """Who has the connection made."""

    def opened(self) -> None:
        """The server has accepted this client."""

    def received(self, message: nats.Message) -> None:
        """A message of a subscription."""

    def leaving(self) -> None:
        """The server asks its clients to go elsewhere: it is about to stop."""

    def closed(self, reason: str) -> None:
        """It could not be opened, or is lost; nothing else is called any more."""


class Connection(asyncio.Protocol):
    """One connection.

    Args:
        server: where to
        options: see there
        subjects: those that are subscribed to, or patterns of them
        owner: is told what happens
        loop: the running event loop
    """

    def __init__(
        self,
        server: Server,
        options: Options,
        subjects: Sequence[str],
        owner: Owner,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.server = server
        self.info: dict[str, Any] = {}
        # Counts what has come: one whose count stands still may be dead.
        self.received_count = 0
        # The server does not answer, as far as anybody has found out.
        self.is_silent = False
        self._options = options
        self._subjects = list(subjects)
        self._owner = owner
        self._loop = loop
        self._parser = nats.Parser()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[Any] | None = None
        # Of the server's name, those that were not tried yet.
        self._addresses: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_greeted = False
        self._is_subscribed = False
        self._is_open = False
        self._is_closed = False
        self._last_error = ""
        self._looks = 0

    @property
    def is_open(self) -> bool:
        """True from the server's acceptance to the end."""
        return self._is_open and not self._is_closed

    def start(self) -> None:
        """Connect; returns at once."""
        self._timer = self._loop.call_later(self._look_s, self._look_at_handshake)
        # By itself: what is given up while uvloop looks the name up in order to connect leaves a
        # failure that nobody asks for, and asyncio writes that to the log.
        self._await(self._loop.getaddrinfo(self.server.host, self.server.port), "name look-up")

    def _connect(self) -> None:
        """Try the next address of the server's name."""
        context = self._tls_context() if self._options.tls_first else None
        self._await(
            self._loop.create_connection(
                lambda: self,
                self._addresses.pop(0),
                self.server.port,
                ssl=context,
                server_hostname=self.server.host if context else None,
            ),
            "connect",
        )

    def publish(
        self, subject: str, reply: str, headers: bytes, payload: Sequence[bytes | memoryview]
    ) -> None:
        """Send a message; it is lost if the connection is."""
        transport = self._transport
        if transport is None or self._is_closed:
            return
        transport.writelines(nats.publish(subject, reply, headers, payload))
        if transport.get_write_buffer_size() > UNSENT_BYTES:
            # Later: whoever publishes is not told of the end in the middle of that.
            self._loop.call_soon(self.close, "it does not read what it is sent")

    def subscribe(self, subject: str) -> None:
        """Have the messages of one more subject sent."""
        self._subjects.append(subject)
        if self._is_subscribed:
            self._write(nats.subscribe(subject, len(self._subjects)))

    def hand_over(self, owner: Owner) -> None:
        """Tell somebody else from now on what happens."""
        self._owner = owner

    def ping(self) -> None:
        """Have the server send something."""
        self._write(nats.PING)

    def close(self, reason: str) -> None:
        """Close it without waiting; the owner is told, the first time."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._owner.closed(f"{self.server}: {reason}")

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._is_closed:
            self._transport.write(data)

    # asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket, or give it back if it comes too late."""
        self._transport = cast("asyncio.Transport", transport)
        if self._is_closed:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Do what the server says, in its order."""
        self.received_count += 1
        try:
            for event in self._parser.receive(data):
                # What is left of a closed connection is nobody's.
                if not self._is_closed:
                    self._on_event(event)
        except nats.NatsProtocolError as error:
            self.close(f"what it sends is not NATS: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell why, as well as that is known."""
        reason = self._last_error or (_text(exc) if exc else "it has closed the connection")
        # With TLS 1.3 a server judges the client's certificate when the client is done already.
        is_ours = isinstance(exc, ssl.SSLCertVerificationError)
        is_unsaid = not self._is_open and not self._last_error and not is_ours
        if self.info.get("tls_verify") and is_unsaid:
            reason += f"; {WANTS_CERTIFICATE}"
        self.close(reason)

    # What the server says

    def _on_event(self, event: nats.Event) -> None:
        match event:
            case nats.Message():
                self._owner.received(event)
            case nats.Ping():
                self._write(nats.PONG)
            case nats.Pong():
                self._on_pong()
            case nats.Info(fields):
                self._on_info(fields)
            case nats.ServerError(text):
                # Most of these end the connection, and then they are the reason.
                self._last_error = text
                if not self._is_open:
                    self.close(text)

    def _on_info(self, fields: Mapping[str, Any]) -> None:
        self.info = {**self.info, **fields}
        if self._is_greeted:
            if fields.get("ldm"):
                self._owner.leaving()
            return
        self._is_greeted = True
        server_has_tls = fields.get("tls_required") or fields.get("tls_available")
        if self._options.tls_first:
            self._greet()
        elif fields.get("tls_required") or self._wants_tls():
            if not server_has_tls:
                self.close("it offers no TLS, and nothing is said to it without")
                return
            self._start_tls()
        else:
            self._greet()

    def _wants_tls(self) -> bool:
        return self.server.needs_tls or self._options.tls is not None

    def _tls_context(self) -> ssl.SSLContext:
        make = self._options.tls
        return make() if make is not None else ssl.create_default_context()

    def _greet(self) -> None:
        fields: dict[str, object] = {
            "verbose": False,
            "pedantic": False,
            "echo": False,
            "protocol": 1,
            "headers": True,
            "no_responders": True,
            "lang": "vouchmq",
            "version": VERSION,
            "name": self._options.name,
        }
        try:
            fields |= self._options.credentials.connect_fields(self.info.get("nonce", ""))
        except CredentialsError as error:
            self.close(str(error))
            return
        if not self.info.get("headers"):
            self.close("it has no headers: the log needs nats-server 2.14 or later")
            return
        self._is_subscribed = True
        wanted = (nats.subscribe(each, number) for number, each in enumerate(self._subjects, 1))
        self._write(b"".join((nats.connect(fields), *wanted, nats.PING)))

    def _on_pong(self) -> None:
        if self._is_open or not self._is_greeted:
            return
        self._is_open = True
        if self._timer is not None:
            self._timer.cancel()
        self._owner.opened()

    # Steps of asyncio that take time

    def _start_tls(self) -> None:
        if self._transport is not None:
            context, host = self._tls_context(), self.server.host
            step = self._loop.start_tls(self._transport, self, context, server_hostname=host)
            self._await(step, "TLS")

    def _await(self, step: Coroutine[Any, Any, Any], name: str) -> None:
        self._task = self._loop.create_task(step)
        self._task.add_done_callback(lambda task: self._step_done(task, name))

    def _step_done(self, task: asyncio.Task[Any], name: str) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            if not isinstance(error, OSError | ssl.SSLError):
                self.close(f"{name} failed: {error!r}")
                raise error
            if name == "connect" and self._addresses and not self._is_closed:
                self._connect()
            else:
                self.close(f"{name} failed: {_text(error)}")
        elif name == "name look-up":
            # One for each kind of socket.
            self._addresses = [*dict.fromkeys(str(where[0]) for *_, where in task.result())]
            self._connect()
        elif name == "TLS":
            self._transport = task.result()
            if self._is_closed:
                if self._transport is not None:
                    self._transport.abort()
                return
            self._greet()

    @property
    def _look_s(self) -> float:
        return self._options.handshake_limit_s / HANDSHAKE_LOOKS

    def _look_at_handshake(self) -> None:
        self._looks += 1
        if self._looks < HANDSHAKE_LOOKS:
            self._timer = self._loop.call_later(self._look_s, self._look_at_handshake)
        else:
            self._too_late()

    def _too_late(self) -> None:
        self.is_silent = True
        step = "accepted this client" if self._is_greeted else "said anything"
        self.close(f"it has not {step} after {self._options.handshake_limit_s:g} s")


def _text(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not valid: {error.verify_message}; ha_tls_ca_file names the"
            " authorities that are trusted"
        )
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
