"""Where a broker is and how one logs in there: amqp:// and amqps:// URLs, several at once.

Knows no socket. A URL is never shown as it was given, because a password may be in it.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

PORT: Final = 5672
TLS_PORT: Final = 5671

# A comma may stand in a password too; one before another URL does not.
_BETWEEN: Final = re.compile(r"\s*,\s*(?=amqps?://)")
_TLS_PARAMETERS: Final = frozenset(
    {"cafile", "capath", "cadata", "certfile", "keyfile", "no_verify_ssl"}
)
# The other clients' parameters that speak of things this one takes as arguments.
_PARAMETERS: Final = frozenset({"heartbeat", "name", "timeout"})


@dataclass(frozen=True, slots=True)
class Target:
    """One broker to try: where, as whom, into which virtual host."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    vhost: str
    has_tls: bool
    heartbeat_s: int | None
    name: str
    timeout_s: float | None
    tls: dict[str, str] = field(repr=False)

    def __str__(self) -> str:
        """The URL without its password."""
        scheme = "amqps" if self.has_tls else "amqp"
        host = f"[{self.host}]" if ":" in self.host else self.host
        vhost = "" if self.vhost == "/" else self.vhost
        return f"{scheme}://{self.user}@{host}:{self.port}/{vhost}"

    def tls_context(self) -> ssl.SSLContext:
        """The TLS settings of the URL; certificates of the system when it names none.

        Raises:
            ValueError: a file is missing or no certificate; the text names the parameter
        """
        tls = self.tls
        try:
            context = ssl.create_default_context(
                cafile=tls.get("cafile"), capath=tls.get("capath"), cadata=tls.get("cadata")
            )
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"{self}: cafile, capath or cadata: {error}") from None
        if tls.get("no_verify_ssl", "0") not in ("0", "false", "False"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        certificate = tls.get("certfile")
        if certificate is not None:
            try:
                context.load_cert_chain(certificate, tls.get("keyfile"))
            except (OSError, ssl.SSLError) as error:
                raise ValueError(f"{self}: certfile or keyfile: {error}") from None
        return context


def targets(url: str) -> list[Target]:
    """The brokers of one or several URLs separated by commas, in their order.

    Raises:
        ValueError: one of them is no amqp:// or amqps:// URL; the text says which by its place
    """
    parts = _BETWEEN.split(url.strip())
    found: list[Target] = []
    for place, part in enumerate(parts, 1):
        where = "url" if len(parts) == 1 else f"url {place} of {len(parts)}"
        found.append(_target(part, where))
    return found


def _target(url: str, where: str) -> Target:
    # Nothing that the parser says is passed on: it quotes what it could not read.
    try:
        split = urlsplit(url)
        port = split.port
        host = split.hostname
    except ValueError:
        raise ValueError(f"{where}: host or port cannot be read") from None
    if split.scheme not in ("amqp", "amqps"):
        raise ValueError(f"{where}: must begin with amqp:// or amqps://")
    if not host:
        raise ValueError(f"{where}: names no host")
    if split.fragment:
        raise ValueError(f"{where}: has a '#'; write it as %23")
    has_tls = split.scheme == "amqps"
    parameters = _parameters(split.query, where)
    tls = {name: value for name, value in parameters.items() if name in _TLS_PARAMETERS}
    if tls and not has_tls:
        raise ValueError(f"{where}: {min(tls)} applies only to amqps://")
    heartbeat = _number(parameters, "heartbeat", where)
    return Target(
        host=host,
        port=port or (TLS_PORT if has_tls else PORT),
        user=unquote(split.username) if split.username is not None else "guest",
        password=unquote(split.password) if split.password is not None else "guest",
        # As aio-pika has it: no path and a bare slash both mean the virtual host "/".
        vhost=unquote(split.path[1:]) or "/",
        has_tls=has_tls,
        heartbeat_s=None if heartbeat is None else int(heartbeat),
        name=parameters.get("name", ""),
        timeout_s=_number(parameters, "timeout", where),
        tls=tls,
    )


def _parameters(query: str, where: str) -> dict[str, str]:
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(parameters.keys() - _TLS_PARAMETERS - _PARAMETERS)
    if unknown:
        known = ", ".join(sorted(_TLS_PARAMETERS | _PARAMETERS))
        raise ValueError(f"{where}: no parameter {unknown[0]!r}; there are {known}")
    return parameters


def _number(parameters: dict[str, str], name: str, where: str) -> float | None:
    if name not in parameters:
        return None
    text = parameters[name]
    if not re.fullmatch(r"\d{1,5}(\.\d+)?", text):
        raise ValueError(f"{where}: {name} must be a number of seconds from 0")
    return float(text)
