"""Section CONN, first half: protocol header, start, authentication."""

from __future__ import annotations

import struct
import time
from functools import partial
from typing import Final

from vouchmq.conformance import wire
from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel, Connection
from vouchmq.conformance.expect import MismatchError, Starting, check, equal, within
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import PROTOCOL_HEADER, Typed

HANDSHAKE_TIMEOUT_S: Final = 10.0
AUTH_FAILURE_DELAY_S: Final = 3.0
GRACE_S: Final = 4.0
PROMPT_S: Final = 1.5

CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)

FOREIGN: Final = (
    ("AMQP 0-8", b"AMQP\x01\x01\x08\x00"),
    ("AMQP 0-10", b"AMQP\x01\x01\x00\x0a"),
    ("AMQP 1.0", b"AMQP\x00\x01\x00\x00"),
    ("AMQP 1.0 over TLS", b"AMQP\x02\x01\x00\x00"),
    ("AMQP 1.0 over SASL", b"AMQP\x03\x01\x00\x00"),
    ("HTTP", b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n"),
    ("TLS", bytes.fromhex("16030100fe010000fa0303") + bytes(40)),
    ("junk", b"\x00\xff\xfe\x01junk...."),
)


def properties_of(start: wire.Table) -> dict[str, object]:
    """Server properties in plain values."""
    table = wire.plain(Typed("F", start))
    if not isinstance(table, dict):
        raise MismatchError("server-properties is not a table")
    return table


@case("CONN-01", says="the header AMQP 0 0 9 1 is answered with connection.start")
def header_is_answered(stage: Stage) -> None:
    equal(stage.dial().wait(0, "connection.start").ids, (10, 10), "ids")


@case("CONN-02", says="the 0-9 header is taken as 0-9-1")
def old_header_is_taken(stage: Stage) -> None:
    stage.dial(greet=b"AMQP\x01\x01\x00\x09").open().channel()


def _foreign(octets: bytes, stage: Stage) -> None:
    connection = stage.dial(greet=octets)
    equal(connection.read_octets(8), PROTOCOL_HEADER, "answer")
    equal(connection.read_octets(1, timeout_s=3), b"", "octets after the answer")


for _who, _octets in FOREIGN:
    case("CONN-03", says=f"{_who} is answered with AMQP 0 0 9 1 and hung up on", mark="≠")(
        partial(_foreign, _octets)
    )


@case("CONN-03", says="nothing that follows a bad header is interpreted", mark="≠")
def bad_header_ends_it(stage: Stage) -> None:
    _foreign(b"AMQP\x00\x00\x09\x02" + PROTOCOL_HEADER, stage)


@case("CONN-04", says="the header may come octet by octet")
def header_in_pieces(stage: Stage) -> None:
    connection = stage.dial(greet=b"")
    for at in range(8):
        connection.send(PROTOCOL_HEADER[at : at + 1])
        time.sleep(0.02)
    connection.wait(0, "connection.start")


def _silent_end(connection: Connection, begin: float, least_s: float) -> None:
    lasted = connection.wait_end(least_s + GRACE_S) - begin
    check(lasted > least_s - 1, f"closed after {lasted:.1f} s, wanted {least_s} s")
    inbox = connection.inbox(0)
    check(not inbox, f"a method came before the end: {[event.name for event in inbox]}")


@case(
    "CONN-04", says="a client that sends nothing is hung up on at the handshake timeout", slow=True
)
def silence_ends(stage: Stage) -> None:
    begin = time.monotonic()
    _silent_end(stage.dial(greet=b""), begin, HANDSHAKE_TIMEOUT_S)


@case("CONN-04", says="a client stuck in the header is hung up on without an answer", slow=True)
def half_a_header_ends(stage: Stage) -> None:
    begin = time.monotonic()
    _silent_end(stage.dial(greet=PROTOCOL_HEADER[:5]), begin, HANDSHAKE_TIMEOUT_S)


@case("CONN-06", says="the handshake timeout covers the wait for start-ok", slow=True)
def handshake_timeout_at_start(stage: Stage) -> None:
    begin = time.monotonic()
    connection = stage.dial()
    connection.wait(0, "connection.start")
    _silent_end(connection, begin, HANDSHAKE_TIMEOUT_S)


@case("CONN-06", says="the handshake timeout covers the wait for open", slow=True)
def handshake_timeout_at_open(stage: Stage) -> None:
    begin = time.monotonic()
    connection = stage.dial()
    connection.wait(0, "connection.start")
    connection.start_ok()
    connection.wait(0, "connection.tune")
    connection.tune_ok()
    _silent_end(connection, begin, HANDSHAKE_TIMEOUT_S)


@case("CONN-07", says="unread input does not destroy the last frame", mark="≠")
def last_frame_arrives(stage: Stage) -> None:
    connection = stage.connect()
    connection.send(b"\x01\x00\x01\x00\x00\x00\x04junk\x00" + bytes(30000))
    time.sleep(0.5)
    with connection.hard(501, Starting("FRAME_ERROR - ")):
        connection.listen(0.1)
    connection.half_close()
    connection.wait_end(5)
    equal(connection.end, "closed", "how TCP ended")


@case("CONN-10", says="start offers version 0.9, locale en_US, PLAIN and AMQPLAIN")
def start_fields(stage: Stage) -> None:
    start = stage.dial().wait(0, "connection.start")
    equal((start.number("version_major"), start.number("version_minor")), (0, 9), "version")
    equal(start.text("locales"), "en_US", "locales")
    mechanisms = start.text("mechanisms").split(" ")
    check({"PLAIN", "AMQPLAIN"} <= set(mechanisms), f"mechanisms are {mechanisms}")


@case("CONN-11", says="server-properties name the product in longstrs")
def server_properties(stage: Stage) -> None:
    table = stage.dial().wait(0, "connection.start").arguments["server_properties"]
    if not isinstance(table, dict):
        raise MismatchError("server-properties is not a table")
    for key in ("product", "version", "platform", "cluster_name", "copyright", "information"):
        value = table.get(key)
        check(isinstance(value, Typed) and value.kind == "S", f"{key} is {value!r}")
    check(bool(table["product"]), "product is empty")


@case("CONN-12", says="all standard capabilities are offered as boolean true")
def capabilities(stage: Stage) -> None:
    table = stage.dial().wait(0, "connection.start").arguments["server_properties"]
    offered = table.get("capabilities") if isinstance(table, dict) else None
    if not isinstance(offered, Typed) or not isinstance(offered.value, dict):
        raise MismatchError(f"capabilities is {offered!r}")
    for name in CAPABILITIES:
        equal(offered.value.get(name), Typed("t", True), name)


@case("CONN-14", says="a mistyped or missing capabilities table counts as empty")
def odd_capabilities(stage: Stage) -> None:
    for properties in ({}, {"capabilities": "all of them"}, {"capabilities": {"basic.nack": 7}}):
        stage.connect(client_properties=properties).channel()


@case("CONN-14", says="the locale of start-ok is ignored")
def odd_locale(stage: Stage) -> None:
    connection = stage.dial()
    connection.wait(0, "connection.start")
    connection.start_ok(locale="tlh_KX")
    connection.wait(0, "connection.tune")


def _log_in(stage: Stage, response: bytes, mechanism: str = "PLAIN") -> Connection:
    connection = stage.dial()
    connection.wait(0, "connection.start")
    connection.start_ok(response, mechanism=mechanism)
    return connection


def amqplain(entries: wire.Table) -> bytes:
    """An AMQPLAIN response: a table body without its length."""
    return wire.encode_table(entries)[4:]


@case("CONN-16", says="PLAIN: NUL user NUL password logs in")
def plain_logs_in(stage: Stage) -> None:
    _log_in(stage, stage.target.plain()).wait(0, "connection.tune")


@case("CONN-17", says="AMQPLAIN: a table with LOGIN and PASSWORD logs in, other keys are ignored")
def amqplain_logs_in(stage: Stage) -> None:
    user, password = stage.target.user, stage.target.password
    for response in (
        amqplain({"LOGIN": user, "PASSWORD": password}),
        amqplain({"EXTRA": 1, "PASSWORD": password, "LOGIN": user}),
    ):
        _log_in(stage, response, "AMQPLAIN").wait(0, "connection.tune")


@case("CONN-20", says="connection.secure is never sent")
def no_challenge(stage: Stage) -> None:
    connection = _log_in(stage, stage.target.plain())
    connection.wait(0, "connection.tune")
    check(not connection.inbox(0), f"{[event.name for event in connection.inbox(0)]}")


REFUSED: Final = (
    "ACCESS_REFUSED - Login was refused using authentication mechanism {}. "
    "For details see the broker logfile."
)


def _refused(stage: Stage, user: bytes, password: bytes) -> None:
    connection = _log_in(stage, b"\0" + user + b"\0" + password)
    with connection.hard(403, REFUSED.format("PLAIN")):
        connection.wait(0, "connection.tune")


@case("CONN-21", says="an empty password never logs in with PLAIN", slow=True)
def empty_password(stage: Stage) -> None:
    _refused(stage, stage.target.user.encode(), b"")


@case("CONN-21", says="an empty password never logs in with AMQPLAIN", slow=True)
def empty_password_amqplain(stage: Stage) -> None:
    response = amqplain({"LOGIN": stage.target.user, "PASSWORD": ""})
    connection = _log_in(stage, response, "AMQPLAIN")
    with connection.hard(403, REFUSED.format("AMQPLAIN")):
        connection.wait(0, "connection.tune")


@case("CONN-22", says="a wrong password is refused with 403, ids 0,0", slow=True)
def wrong_password(stage: Stage) -> None:
    _refused(stage, stage.target.user.encode(), b"not " + stage.target.password.encode())


@case("CONN-22", says="an unknown user looks the same as a wrong password", slow=True)
def unknown_user(stage: Stage) -> None:
    _refused(stage, b"nobody-at-all", b"x")
    _refused(stage, b"", b"")


@case(
    "CONN-23",
    says="with the capability the refusal comes at once, then close-ok ends TCP",
    slow=True,
)
def refusal_at_once(stage: Stage) -> None:
    begin = time.monotonic()
    connection = _log_in(stage, b"\0nobody-at-all\0x")
    with connection.hard(403, None):
        connection.wait(0, "connection.tune")
    within(time.monotonic() - begin, PROMPT_S, "the refusal")
    connection.send_method(0, "connection.close_ok")
    connection.wait_end()


@case(
    "CONN-23",
    says="with the capability TCP ends after the delay if close-ok does not come",
    slow=True,
)
def refusal_without_close_ok(stage: Stage) -> None:
    connection = _log_in(stage, b"\0nobody-at-all\0x")
    with connection.hard(403, None):
        connection.wait(0, "connection.tune")
    connection.wait_end(AUTH_FAILURE_DELAY_S + GRACE_S)


def _silently_refused(
    stage: Stage, mechanism: str, response: bytes, properties: wire.Table
) -> None:
    connection = stage.dial()
    connection.wait(0, "connection.start")
    begin = time.monotonic()
    connection.start_ok(response, mechanism=mechanism, client_properties=properties)
    _silent_end(connection, begin, AUTH_FAILURE_DELAY_S)


@case("CONN-23", says="without the capability nothing is sent, TCP ends after 3 s", slow=True)
def silent_refusal(stage: Stage) -> None:
    _silently_refused(stage, "PLAIN", b"\0nobody-at-all\0x", {})


@case("CONN-24", says="an unknown mechanism: silence and 3 s without the capability", slow=True)
def silent_unknown_mechanism(stage: Stage) -> None:
    _silently_refused(stage, "ROT13", b"", {"capabilities": {}})


@case("CONN-24", says="an unknown mechanism is 503 with the capability", mark="≠", slow=True)
def unknown_mechanism(stage: Stage) -> None:
    connection = _log_in(stage, stage.target.plain(), "ROT13")
    text = "COMMAND_INVALID - unknown authentication mechanism 'ROT13'"
    with connection.hard(503, text, "connection.start_ok"):
        connection.wait(0, "connection.tune")


def _malformed(mechanism: str, response: bytes, stage: Stage) -> None:
    connection = _log_in(stage, response, mechanism)
    with connection.hard(502, Starting("SYNTAX_ERROR - "), "connection.start_ok"):
        connection.wait(0, "connection.tune")


for _what, _mechanism, _response in (
    ("PLAIN without the first NUL", "PLAIN", b"guest\0guest"),
    ("PLAIN with one NUL", "PLAIN", b"\0guest"),
    ("PLAIN with a third NUL", "PLAIN", b"\0guest\0guest\0"),
    ("PLAIN with an authorization id", "PLAIN", b"guest\0guest\0guest"),
    ("an empty PLAIN response", "PLAIN", b""),
    ("AMQPLAIN that is no table", "AMQPLAIN", b"\x05LOGIN"),
    ("AMQPLAIN without PASSWORD", "AMQPLAIN", amqplain({"LOGIN": "guest"})),
    ("AMQPLAIN without LOGIN", "AMQPLAIN", amqplain({"PASSWORD": "guest"})),
    ("AMQPLAIN with a number as LOGIN", "AMQPLAIN", amqplain({"LOGIN": 1, "PASSWORD": "guest"})),
    ("AMQPLAIN with a length before it", "AMQPLAIN", struct.pack(">I", 0)),
):
    _rule = "CONN-16" if _mechanism == "PLAIN" else "CONN-17"
    case(_rule, says=f"{_what} is malformed: 502", mark="≠", slow=True)(
        partial(_malformed, _mechanism, _response)
    )


@case("CONN-70", says="update-secret with the right secret is answered, channels go on")
def update_secret(stage: Stage) -> None:
    connection = stage.connect()
    channel: Channel = connection.channel()
    queue = stage.queue(channel)
    connection.call("connection.update_secret", new_secret=stage.target.password, reason="rotation")
    channel.publish("", queue, "after")
    channel.holds(queue, 1)


@case("CONN-71", says="update-secret with another secret is accepted, channels go on")
def update_secret_to_another(stage: Stage) -> None:
    connection = stage.connect()
    channel: Channel = connection.channel()
    queue = stage.queue(channel)
    other = "not " + stage.target.password
    connection.call("connection.update_secret", new_secret=other, reason="rotation")
    channel.publish("", queue, "after")
    channel.holds(queue, 1)


@case("CONN-41", says="a vhost that does not exist is 530, ids 10,40")
def missing_vhost(stage: Stage) -> None:
    for name in ("no-such-vhost", "", "//"):
        connection = stage.dial()
        connection.wait(0, "connection.start")
        connection.start_ok()
        connection.wait(0, "connection.tune")
        connection.tune_ok()
        with connection.hard(530, f"NOT_ALLOWED - vhost {name} not found", "connection.open"):
            connection.call("connection.open", vhost=name)


@case("CONN-46", says="open-ok has an empty known-hosts; capabilities and insist are ignored")
def open_ok(stage: Stage) -> None:
    connection = stage.dial()
    connection.wait(0, "connection.start")
    connection.start_ok()
    connection.wait(0, "connection.tune")
    connection.tune_ok()
    reply = connection.call(
        "connection.open", vhost=stage.target.vhost, capabilities="anything", insist=True
    )
    equal(reply.text("known_hosts"), "", "known-hosts")
