"""TLS as the operator has set it up: files to a context, a client's certificate to a user name.

A fault of the set-up is told in one line that names the setting, before any client can meet it.
Certificates are verified by OpenSSL; what is read of one here has passed. Must not know sockets.

Spec: TLS-01, TLS-02, TLS-20
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vouchmq.server.errors import SettingsError

if TYPE_CHECKING:
    from vouchmq.server.settings.settings import Settings

PROTOCOLS: Final = ("amqp",)
# No tickets: who comes again later shows its certificate again.
_OPTIONS: Final = (
    ssl.OP_NO_COMPRESSION
    | ssl.OP_NO_RENEGOTIATION
    | ssl.OP_CIPHER_SERVER_PREFERENCE
    | ssl.OP_NO_TICKET
)
# OpenSSL's names for the parts of a distinguished name, and those that are printed (RFC 4514; the
# last ones as RabbitMQ prints them, whose users are named by what it makes of their certificate).
_SHORT: Final[Mapping[str, str]] = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
    "surname": "SN",
    "givenName": "GIVENNAME",
    "initials": "INITIALS",
    "generationQualifier": "GENERATIONQUALIFIER",
    "title": "TITLE",
    "serialNumber": "SERIALNUMBER",
    "pseudonym": "PSEUDONYM",
    "emailAddress": "EMAILADDRESS",
}
_ALTERNATIVE: Final[Mapping[str, str]] = {
    "dns": "DNS",
    "ip": "IP Address",
    "email": "email",
    "uri": "URI",
}
_SPECIAL: Final = frozenset(',+"\\<>;')

# As `SSLSocket.getpeercert` gives it.
Certificate = Mapping[str, Any]
Name = Iterable[Iterable[tuple[str, str]]]


def server_context(settings: Settings) -> ssl.SSLContext:
    """A context for connections from now on; reads the files.

    Raises:
        SettingsError: a file is missing or is not what it should be, or settings contradict

    Spec: TLS-01, TLS-02
    """
    _require_own(settings.tls_cert_file, settings.tls_key_file, "tls_port")
    _require_authorities(settings)
    context = _own_context(settings.tls_cert_file, settings.tls_key_file)
    context.set_alpn_protocols(list(PROTOCOLS))
    if settings.tls_ca_file:
        _load_authorities(context, settings.tls_ca_file)
    if settings.tls_verify == "verify_peer":
        is_needed = settings.tls_fail_if_no_peer_cert
        context.verify_mode = ssl.CERT_REQUIRED if is_needed else ssl.CERT_OPTIONAL
    return context


def https_context(cert_file: str, key_file: str) -> ssl.SSLContext:
    """A context for HTTP, whose clients log in by password; reads the files.

    Raises:
        SettingsError: a file is missing or is not what it should be
    """
    _require_own(cert_file, key_file, "management_tls")
    context = _own_context(cert_file, key_file)
    context.set_alpn_protocols(["http/1.1"])
    return context


def client_context(ca_file: str, cert_file: str, key_file: str, prefix: str = "") -> ssl.SSLContext:
    """A context for connections to other servers, whose names are checked; reads the files.

    Args:
        ca_file: authorities that count, in PEM; "" for those of the machine
        cert_file: shown to servers that ask for a certificate; "" for none
        key_file: its key
        prefix: what the names of the settings begin with, before `tls_`

    Raises:
        SettingsError: a file is missing or is not what it should be, or one of the pair is not set
    """
    setting = f"{prefix}tls_ca_file"
    if ca_file:
        _read(setting, ca_file, "-----BEGIN CERTIFICATE-----", "certificate")
    authorities = str(Path(ca_file).expanduser()) if ca_file else None
    try:
        context = ssl.create_default_context(cafile=authorities)
    except ssl.SSLError as error:
        why = error.reason or "not readable as PEM"
        raise SettingsError(f"{setting}: {ca_file}: {why}") from error
    if key_file and not cert_file:
        raise SettingsError(f"{prefix}tls_cert_file: {prefix}tls_key_file needs its certificate")
    if cert_file and not key_file:
        raise SettingsError(f"{prefix}tls_key_file: {prefix}tls_cert_file needs its key")
    if cert_file:
        _load_own(context, cert_file, key_file, prefix)
    return context


def _own_context(cert_file: str, key_file: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= _OPTIONS
    context.num_tickets = 0
    _load_own(context, cert_file, key_file)
    return context


def _require_own(cert_file: str, key_file: str, setting: str) -> None:
    if not cert_file:
        raise SettingsError(f"tls_cert_file: {setting} needs a certificate")
    if not key_file:
        raise SettingsError(f"tls_key_file: {setting} needs the key of tls_cert_file")


def _require_authorities(settings: Settings) -> None:
    verifies = settings.tls_verify == "verify_peer"
    if verifies and not settings.tls_ca_file:
        raise SettingsError("tls_ca_file: tls_verify = verify_peer needs certificate authorities")
    if settings.tls_fail_if_no_peer_cert and not verifies:
        raise SettingsError("tls_fail_if_no_peer_cert: needs tls_verify = verify_peer")


def _read(setting: str, path: str, mark: str, what: str) -> None:
    """See that a file is there and holds what it should.

    Raises:
        SettingsError: it is not, or does not
    """
    try:
        content = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise SettingsError(f"{setting}: {path}: {error.strerror}") from error
    if mark.encode() not in content:
        raise SettingsError(f"{setting}: {path}: no {what} in PEM")


def _load_own(context: ssl.SSLContext, cert_file: str, key_file: str, prefix: str = "") -> None:
    cert_setting, key_setting = f"{prefix}tls_cert_file", f"{prefix}tls_key_file"
    _read(cert_setting, cert_file, "-----BEGIN CERTIFICATE-----", "certificate")
    _read(key_setting, key_file, "PRIVATE KEY-----", "private key")

    def passphrase() -> str:
        # Without this OpenSSL would ask at the terminal, which a service has not got.
        raise SettingsError(f"{key_setting}: {key_file}: the key has a passphrase")

    certificate, key = (str(Path(each).expanduser()) for each in (cert_file, key_file))
    try:
        context.load_cert_chain(certificate, key, password=passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SettingsError(
                f"{key_setting}: {key_file}: not the key of the certificate in {cert_file}"
            ) from error
        why = error.reason or "not readable as PEM"
        raise SettingsError(
            f"{cert_setting}, {key_setting}: {cert_file}, {key_file}: {why}"
        ) from error


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    _read("tls_ca_file", path, "-----BEGIN CERTIFICATE-----", "certificate")
    try:
        context.load_verify_locations(str(Path(path).expanduser()))
    except ssl.SSLError as error:
        why = error.reason or "not readable as PEM"
        raise SettingsError(f"tls_ca_file: {path}: {why}") from error


def user_name(
    certificate: Certificate, source: str, san_type: str = "dns", san_index: int = 0
) -> str:
    """The user name in a client's certificate; "" when it holds none of that kind.

    Args:
        certificate: one that has been verified
        source: a choice of `tls_login_from`
        san_type: a choice of `tls_san_type`
        san_index: which name of that type, from 0

    Spec: TLS-20
    """
    if source == "subject_alternative_name":
        kind = _ALTERNATIVE[san_type]
        names = [name for each, name in certificate.get("subjectAltName", ()) if each == kind]
        return names[san_index] if san_index < len(names) else ""
    subject = certificate.get("subject", ())
    if source == "common_name":
        # Several are rare, and RabbitMQ joins them.
        return ",".join(text for part in subject for kind, text in part if kind == "commonName")
    return distinguished_name(subject)


def distinguished_name(subject: Name) -> str:
    """A subject in the form of RFC 4514: the most special part first.

    Spec: TLS-20
    """
    parts = [
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(text)}" for kind, text in part)
        for part in subject
    ]
    return ",".join(reversed(parts))


def _escaped(text: str) -> str:
    """A value with a backslash before what would mean something else (RFC 4514, 2.4)."""
    written = []
    for index, each in enumerate(text):
        is_first, is_last = index == 0, index == len(text) - 1
        is_edge = (is_first and each in " #") or (is_last and each == " ")
        written.append("\\" + each if each in _SPECIAL or is_edge else each)
    return "".join(written).replace("\0", "\\00")
