"""Section TLS: the listener, certificates of clients, and EXTERNAL.

Needs a broker that knows the certificates of tools/certificates.py and asks clients for theirs
(verify_peer), without insisting (fail_if_no_peer_cert off).
"""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import replace
from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Connection
from vouchmq.conformance.events import EndedError, RefusedError, SilenceError
from vouchmq.conformance.expect import MismatchError, SkipError, check, equal, within
from vouchmq.conformance.preparation import need_users
from vouchmq.conformance.stage import Stage

CERTIFIED: Final = "CN=conformance,O=client"
HANDSHAKE_S: Final = 5.0
PATIENCE_S: Final = 15.0


def _context(stage: Stage, certificate: str = "") -> ssl.SSLContext:
    """A client's context, with that certificate if one is named."""
    files = stage.tls().files
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The suite is for brokers anywhere, their certificate may name another host.
    context.check_hostname = False
    context.load_verify_locations(files / "ca.pem")
    if certificate:
        context.load_cert_chain(files / f"{certificate}.pem")
    return context


def _dial(stage: Stage, context: ssl.SSLContext) -> Connection:
    """A connection over TLS that is not open yet."""
    target = replace(stage.target, port=stage.tls().port)
    connection = Connection(target, tls=context)
    stage.connections.append(connection)
    return connection


def _works(stage: Stage, context: ssl.SSLContext, size: int = 10) -> None:
    """Fail unless a message of that size goes there and back."""
    channel = _dial(stage, context).open().channel()
    queue = stage.queue(channel, exclusive=True)
    channel.publish("", queue, b"x" * size)
    channel.holds(queue, 1)
    equal(len(channel.get(queue).body), size, "octets that came back")


def _version(version: ssl.TLSVersion, stage: Stage) -> None:
    context = _context(stage)
    context.minimum_version = context.maximum_version = version
    _works(stage, context)


for _version_is in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
    case("TLS-01", says=f"AMQP over {_version_is.name}")(partial(_version, _version_is))


@case(
    "TLS-01",
    says="TLS 1.1 is refused",
    referee_reason="C-17: takes it, unless ssl_options.versions says otherwise",
)
def old_version(stage: Stage) -> None:
    context = _context(stage)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    try:
        _dial(stage, context)
    except ssl.SSLError as error:
        if "NO_PROTOCOLS" in str(error.reason):
            raise SkipError("this machine's TLS cannot speak 1.1") from None
    except OSError:
        pass
    else:
        raise MismatchError("the handshake succeeded")


@case("TLS-01", says="messages larger than frames and TLS records come back whole")
def large(stage: Stage) -> None:
    _works(stage, _context(stage), 3_000_000)


@case("TLS-01", says="no compression; the protocol amqp may be asked for")
def negotiated(stage: Stage) -> None:
    context = _context(stage)
    context.set_alpn_protocols(["amqp"])
    address = (stage.target.host, stage.tls().port)
    with (
        socket.create_connection(address, timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain) as secure,
    ):
        equal(secure.compression(), None, "compression")
        check(secure.selected_alpn_protocol() in (None, "amqp"), "another protocol was selected")
        secure.sendall(b"AMQP\x00\x00\x09\x01")
        equal(secure.recv(1), b"\x01", "first octet of the answer")


@case("TLS-02", says="a client without a certificate is let in, if it need not have one")
def without_certificate(stage: Stage) -> None:
    _works(stage, _context(stage))


@case("TLS-02", says="a client with a certificate of the authority is let in")
def with_certificate(stage: Stage) -> None:
    _works(stage, _context(stage, "client"))


def _stranger(version: ssl.TLSVersion, stage: Stage) -> None:
    context = _context(stage, "stranger")
    context.minimum_version = context.maximum_version = version
    try:
        # With 1.3 the client is through before the broker has looked at its certificate.
        _dial(stage, context).wait(0, "connection.start")
    except (OSError, EndedError):
        return
    except SilenceError:
        raise MismatchError("the connection is still open") from None
    raise MismatchError("a certificate of another authority was taken")


for _version_is in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
    case("TLS-02", says=f"{_version_is.name}: a certificate of another authority aborts it")(
        partial(_stranger, _version_is)
    )


@case("TLS-03", says="plain AMQP on the TLS port is not answered with connection.start")
def plain_on_tls(stage: Stage) -> None:
    target = replace(stage.target, port=stage.tls().port)
    connection = Connection(target)
    stage.connections.append(connection)
    octets = connection.read_octets(1 << 10)
    check(b"AMQP" not in octets and octets[:1] != b"\x01", f"answered with {octets[:20]!r}")


@case("TLS-03", says="who begins no handshake is hung up on after five seconds", slow=True)
def silent(stage: Stage) -> None:
    address = (stage.target.host, stage.tls().port)
    began = time.monotonic()
    with socket.create_connection(address, timeout=PATIENCE_S) as plain:
        try:
            plain.recv(1)
        except TimeoutError:
            raise MismatchError(f"still open after {PATIENCE_S} s") from None
        except OSError:
            pass
    within(time.monotonic() - began, HANDSHAKE_S + 0.5 + stage.slack_s, "the end")


def _offered(connection: Connection) -> list[str]:
    return connection.wait(0, "connection.start").text("mechanisms").split()


@case("TLS-20", says="EXTERNAL is offered with a certificate, and never without TLS")
def offered(stage: Stage) -> None:
    check("EXTERNAL" in _offered(_dial(stage, _context(stage, "client"))), "not offered with one")
    check("EXTERNAL" not in _offered(stage.dial()), "offered without TLS")


@case(
    "TLS-20",
    says="EXTERNAL is not offered without a certificate",
    referee_reason="C-18: offers it, and refuses the login",
)
def not_offered(stage: Stage) -> None:
    check("EXTERNAL" not in _offered(_dial(stage, _context(stage))), "offered without one")


@case("CONN-18", says="EXTERNAL takes the user from the certificate, whatever is sent")
def external(stage: Stage) -> None:
    need_users(stage)
    for response in (b"", b"somebody else"):
        connection = _dial(stage, _context(stage, "client"))
        connection.wait(0, "connection.start")
        connection.start_ok(response, mechanism="EXTERNAL")
        connection.wait(0, "connection.tune")
        connection.tune_ok()
        connection.call("connection.open", vhost="/")
        channel = connection.channel()
        queue = stage.queue(channel, exclusive=True)
        channel.publish("", queue, "x", user_id=CERTIFIED)
        channel.holds(queue, 1)
        equal(channel.get(queue).properties["user_id"], CERTIFIED, "user")
        connection.close()


@case("TLS-20", says="a certificate of a user that does not exist is refused as CONN-22 says")
def unknown_user(stage: Stage) -> None:
    connection = _dial(stage, _context(stage, "nobody"))
    connection.wait(0, "connection.start")
    text = (
        "ACCESS_REFUSED - Login was refused using authentication mechanism EXTERNAL. "
        "For details see the broker logfile."
    )
    with connection.hard(403, text):
        connection.start_ok(b"", mechanism="EXTERNAL")


@case("TLS-20", says="PLAIN works over TLS with a certificate, too")
def plain_with_certificate(stage: Stage) -> None:
    try:
        _works(stage, _context(stage, "client"))
    except RefusedError as refused:
        raise MismatchError(str(refused)) from None
