"""Settings and files that an operator chose: durability, logins, certificates."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vouchmq.server.auth.authenticator import is_loopback
from vouchmq.server.cli.doctor.findings import Finding, Level
from vouchmq.server.edge.tls import client_context, server_context
from vouchmq.server.errors import StartupError
from vouchmq.server.settings.settings import default_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from vouchmq.server.settings.settings import Settings

SOON_DAYS: Final = 21
# Tags of DER.
UTC_TIME: Final = 0x17
VERSION: Final = 0xA0


def check_durability(settings: Settings, running: Mapping[str, str] | None) -> Iterator[Finding]:
    """Settings with which a confirm means less, of the broker that runs or of the next start."""
    if running is None:
        is_off = not settings.durability_fsync
    else:
        is_off = running.get("durability_fsync") == "off"
    if is_off:
        yield Finding(
            Level.ERROR,
            "durability",
            "durability_fsync is off: confirmed messages are lost when the power fails",
            "remove durability_fsync = off; it is for tests and benchmarks",
        )
    else:
        yield Finding(Level.OK, "durability", "confirms wait until messages are on disk")


def check_logins(settings: Settings) -> Iterator[Finding]:
    """Whether a first start makes a user who can log in from elsewhere with a known password."""
    is_first = not settings.data_dir.is_dir() or not any(settings.data_dir.iterdir())
    if settings.users or settings.load_definitions or not is_first:
        return
    has_default = settings.default_pass == default_of("default_pass")
    is_open = not all(map(_is_local, settings.host))
    name = settings.default_user
    if has_default and is_open and name not in settings.loopback_users:
        yield Finding(
            Level.ERROR,
            "logins",
            f"user {name!r} has the password that everybody knows, and may log in from everywhere",
            "set default_pass, or configure users",
        )
    elif has_default and is_open:
        text = f"only user {name!r} exists, who may log in only from this machine"
        yield Finding(Level.NOTE, "logins", text, "configure users for clients on other machines")


def _is_local(host: str) -> bool:
    return host == "localhost" or is_loopback(host)


def check_certificates(settings: Settings, now: datetime | None = None) -> Iterator[Finding]:
    """Whether the files of TLS can be used, and for how long: the broker's own, the shared log's.

    Args:
        settings: those of the next start
        now: instead of the time that it is
    """
    moment = now or datetime.now(UTC)
    if settings.tls_port:
        load = partial(server_context, settings)
        mend = "renew the certificate, then send SIGHUP"
        yield from _check_files("TLS", settings, "", load, mend, moment)
    if settings.ha_log and settings.ha_tls_cert_file:
        files = (settings.ha_tls_ca_file, settings.ha_tls_cert_file, settings.ha_tls_key_file)
        load = partial(client_context, *files, "ha_")
        mend = "renew the certificate; the next connection to the log uses it"
        yield from _check_files("TLS of the log", settings, "ha_", load, mend, moment)


def _check_files(
    name: str,
    settings: Settings,
    prefix: str,
    load: Callable[[], object],
    mend: str,
    now: datetime,
) -> Iterator[Finding]:
    try:
        load()
        file = Path(getattr(settings, f"{prefix}tls_cert_file")).expanduser()
        expires = expiry_of(file.read_text("ascii", "replace"))
    except (StartupError, OSError, ValueError) as error:
        files = ", ".join(f"{prefix}tls_{each}_file" for each in ("cert", "key"))
        yield Finding(
            *(Level.ERROR, name, str(error)),
            f"mend the files that {files} and {prefix}tls_ca_file name",
        )
        return
    left = expires - now
    text = f"the certificate is valid until {expires:%Y-%m-%d %H:%M} UTC"
    if left.total_seconds() <= 0:
        yield Finding(Level.ERROR, name, f"the certificate ended on {expires:%Y-%m-%d}", mend)
    elif left.days < SOON_DAYS:
        yield Finding(Level.WARNING, name, text, mend)
    else:
        yield Finding(Level.OK, name, text)


def expiry_of(pem: str) -> datetime:
    """Until when the first certificate of a file is valid.

    Raises:
        ValueError: there is none
    """
    begin = pem.find("-----BEGIN CERTIFICATE-----")
    end = pem.find("-----END CERTIFICATE-----", begin)
    if begin < 0 or end < 0:
        raise ValueError("no certificate")
    der = ssl.PEM_cert_to_DER_cert(pem[begin : end + len("-----END CERTIFICATE-----")])
    _, certificate, _ = _element(der, 0)
    _, inside, _ = _element(certificate, 0)
    # version, serial number, signature algorithm, issuer, then validity: from and until
    at = 0
    tag, _, after = _element(inside, at)
    for _ in range(4 if tag == VERSION else 3):
        _, _, at = _element(inside, at)
    _, validity, _ = _element(inside, at)
    _, _, after = _element(validity, 0)
    tag, text, _ = _element(validity, after)
    form = "%y%m%d%H%M%SZ" if tag == UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)


def _element(der: bytes, at: int) -> tuple[int, bytes, int]:
    """Tag and content of the element at an offset, and where the next one begins."""
    if at + 2 > len(der):
        raise ValueError("no certificate")
    tag, size = der[at], der[at + 1]
    at += 2
    if size & 0x80:
        count = size & 0x7F
        size = int.from_bytes(der[at : at + count], "big")
        at += count
    return tag, der[at : at + size], at + size
