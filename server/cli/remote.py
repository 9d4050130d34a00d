"""A broker elsewhere, asked over HTTP: `--url https://user@host:15672`, or VOUCHMQ_URL.

    request ─▶ a frame ─▶ POST /api/commands of the management process ─▶ frames of the answer

They are the frames of the control socket, so a command shows the same of a broker here and there.
User and password come from the URL, the environment or a netrc file. Must not know what is asked.
"""

from __future__ import annotations

import base64
import netrc
import os
import ssl
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection, IncompleteRead
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from vouchmq.server.admin.frames import BadFrame, FrameReader, request_frame
from vouchmq.server.cli.client import EXIT_NO_BROKER, EXIT_REFUSED, Listing, Refused
from vouchmq.server.cli.program import EXIT_MISTAKE, CommandFailed
from vouchmq.server.settings.settings import URL_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from http.client import HTTPResponse

    from vouchmq.server.cli.client import Broker

PATH: Final = "/api/commands"
MEDIA_TYPE: Final = "application/vnd.vouchmq.frames"
# An address that leads nowhere is told sooner than a broker that is slow.
CONNECT_LIMIT_S: Final = 10.0
# The other side says within a quarter of this that it is still there.
QUIET_LIMIT_S: Final = 60.0
READ_BYTES: Final = 65536
PORTS: Final = {"http": 15672, "https": 443}
UNAVAILABLE: Final = 503
OK: Final = 200
_, USER, PASSWORD = URL_VARIABLES
NETRC: Final = "NETRC"
PLACES: Final = f"put one into the URL, into {USER} and {PASSWORD}, or into ~/.netrc"


class Address(NamedTuple):
    """Where a management process listens, and who asks it.

    Args:
        scheme: http or https
        host: name or address
        port: of the HTTP API
        prefix: of all paths, where a proxy has one
        user: who asks
        password: of the user
    """

    scheme: str
    host: str
    port: int
    prefix: str
    user: str
    password: str

    def __str__(self) -> str:
        """For people: no secrets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


class RemoteBroker:
    """A broker whose management process answers at an address.

    Args:
        address: that
        tls: how its certificate is checked, of https
    """

    def __init__(self, address: Address, tls: ssl.SSLContext | None = None) -> None:
        self._address = address
        self._tls = tls

    def ask(self, command: str, /, **arguments: object) -> dict[str, Any]:
        """See `Broker`."""
        *_, answer = self._answers(command, arguments)
        return answer

    def rows(self, command: str, /, **arguments: object) -> Listing:
        """See `Broker`."""
        return Listing(self._answers(command, arguments))

    def watch(self, command: str, /, **arguments: object) -> Listing:
        """See `Broker`."""
        return Listing(self._answers(command, arguments))

    def _answers(self, command: str, arguments: dict[str, object]) -> Iterator[dict[str, Any]]:
        try:
            with closing(self._connection()) as connection:
                yield from self._exchange(connection, command, arguments)
        except (OSError, HTTPException, BadFrame) as error:
            raise CommandFailed(self._trouble(error), EXIT_NO_BROKER) from None

    def _connection(self) -> HTTPConnection:
        where = (self._address.host, self._address.port)
        if self._tls is None:
            return HTTPConnection(*where, timeout=CONNECT_LIMIT_S)
        return HTTPSConnection(*where, timeout=CONNECT_LIMIT_S, context=self._tls)

    def _exchange(
        self,
        connection: HTTPConnection,
        command: str,
        arguments: dict[str, object],
    ) -> Iterator[dict[str, Any]]:
        connection.connect()
        connection.sock.settimeout(QUIET_LIMIT_S)
        login = f"{self._address.user}:{self._address.password}".encode()
        headers = {
            "Authorization": f"Basic {base64.b64encode(login).decode()}",
            "Content-Type": MEDIA_TYPE,
        }
        request = request_frame({"command": command, **arguments})
        connection.request("POST", self._address.prefix + PATH, request, headers)
        response = connection.getresponse()
        if response.status != OK or response.getheader("content-type") != MEDIA_TYPE:
            raise self._refusal(command, response)
        frames = FrameReader()
        columns: list[str] = []
        while data := response.read1(READ_BYTES):
            frames.add(data)
            for content in frames:
                if "ok" in content:
                    yield self._end(command, content, columns)
                    return
                columns = content.get("columns", columns)
                for row in content.get("rows", ()):
                    yield dict(zip(columns, row, strict=True))
        raise CommandFailed(f"{self._address} has closed the connection", EXIT_NO_BROKER)

    def _end(self, command: str, content: dict[str, Any], columns: list[str]) -> dict[str, Any]:
        """The last frame of an answer."""
        if not content["ok"]:
            text, code = content.get("error", "refused"), content.get("code", 400)
            if code == UNAVAILABLE:
                raise CommandFailed(f"{self._address}: {text}", EXIT_NO_BROKER)
            raise Refused(f"{command}: {text}", code)
        return {**content, "columns": columns} if columns else content

    def _refusal(self, command: str, response: HTTPResponse) -> CommandFailed:
        """What an answer means that is none of a command."""
        reason = _reason(response.read(READ_BYTES))
        user = self._address.user
        if response.status == 401:
            if reason in {"", "Login failed"}:
                text = f"{self._address}: wrong password for user {user!r}, or no such user"
            else:
                text = f"{command}: user {user!r} may not do this ({reason})"
            return CommandFailed(text, EXIT_REFUSED)
        if response.status == UNAVAILABLE:
            return CommandFailed(f"{self._address}: {reason or 'busy'}", EXIT_NO_BROKER)
        if response.status in {400, 413} and reason:
            return CommandFailed(f"{command}: {reason}", EXIT_REFUSED)
        said = f"{response.status} {response.reason}".strip()
        text = f"{self._address}{PATH} is no HTTP API of VouchMQ: it answers {said}"
        return CommandFailed(text, EXIT_NO_BROKER)

    def _trouble(self, error: Exception) -> str:
        """Why there is no answer."""
        if isinstance(error, ssl.SSLCertVerificationError):
            why = error.verify_message
            return (
                f"{self._address}: its certificate is not trusted ({why}); --ca-file names an "
                "authority, --insecure trusts any"
            )
        if isinstance(error, ssl.SSLError):
            return f"{self._address}: no TLS there ({error.reason or error})"
        if isinstance(error, TimeoutError):
            return f"no answer from {self._address} in time"
        if isinstance(error, IncompleteRead):
            return f"{self._address} has closed the connection"
        if isinstance(error, OSError):
            return f"no answer from {self._address}: {error.strerror or error}"
        return f"{self._address} does not speak HTTP ({type(error).__name__})"


def remote(
    url: str, environment: Mapping[str, str], *, ca_file: str | None, is_insecure: bool
) -> Broker:
    """The broker at a URL.

    Args:
        url: of its HTTP API
        environment: may have user and password
        ca_file: certificates of authorities, in PEM; None: those of the system
        is_insecure: trust any certificate

    Raises:
        CommandFailed: something of this cannot be used
    """
    address = address_of(url, environment)
    if address.scheme == "http":
        if ca_file or is_insecure:
            raise CommandFailed("--ca-file and --insecure need https in the URL", EXIT_MISTAKE)
        return RemoteBroker(address)
    try:
        tls = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        why = "no certificates in it" if isinstance(error, ssl.SSLError) else error.strerror
        raise CommandFailed(f"--ca-file {ca_file}: {why}", EXIT_MISTAKE) from None
    if is_insecure:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return RemoteBroker(address, tls)


def address_of(url: str, environment: Mapping[str, str]) -> Address:
    """What a URL says, and who asks.

    Raises:
        CommandFailed: it is none, or nobody is named
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    # The text is not shown: it may have a password.
    if parts.scheme not in PORTS or not parts.hostname or parts.query or parts.fragment:
        text = "expected a URL such as http://user@host:15672"
        raise CommandFailed(text, EXIT_MISTAKE)
    user = unquote(parts.username) if parts.username else environment.get(USER, "")
    password = None if parts.password is None else unquote(parts.password)
    if password is None:
        password = environment.get(PASSWORD)
    if not user or password is None:
        user, password = _from_netrc(parts.hostname, user, environment)
    prefix = parts.path.rstrip("/").removesuffix("/api")
    port = port or PORTS[parts.scheme]
    return Address(parts.scheme, parts.hostname, port, prefix, user, password)


def _from_netrc(host: str, user: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """User and password for a host.

    Raises:
        CommandFailed: there are none
    """
    name = environment.get(NETRC)
    file = Path(name) if name else Path(os.path.expanduser("~/.netrc"))  # noqa: PTH111
    try:
        found = netrc.netrc(str(file)).authenticators(host) if file.exists() else None
    except netrc.NetrcParseError as error:
        raise CommandFailed(f"{file}: {error.msg}", EXIT_MISTAKE) from None
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror}", EXIT_MISTAKE) from None
    if not found or not found[2] or user not in {"", found[0]}:
        missing = f"no password for user {user!r}" if user else "no login"
        raise CommandFailed(f"{missing} at {host}: {PLACES}", EXIT_MISTAKE)
    return found[0], found[2]


def _reason(body: bytes) -> str:
    """The reason in an answer of the HTTP API; empty where there is none."""
    try:
        found = loads(body)
    except ValueError:
        return ""
    return str(found.get("reason", "")) if isinstance(found, dict) else ""
