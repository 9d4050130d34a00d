"""A tunnel between a client's TLS and an edge, in memory: handshakes, octets, ends."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from tests.unit.server.edge.sockets import Echo, Loop, Socket, admission_of
from vouchmq.server.connection.connection import Connection
from vouchmq.server.edge.listener import (
    LAST_WORDS_LIMIT_S,
    LINGER_OCTETS,
    LINGER_S,
    RECEIVE_OCTETS,
    Listener,
    SocketProtocol,
)
from vouchmq.server.edge.tls import server_context, user_name
from vouchmq.server.edge.tls_protocol import HANDSHAKE_S, TlsListener, TlsProtocol
from vouchmq.server.settings.settings import Settings


class Wire:
    """A tunnel and a client of it."""

    def __init__(
        self,
        certificates: Path,
        certificate: str = "",
        *,
        version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
        piece_octets: int = 1 << 20,
        descriptors: int = 1000,
        is_needed: bool = False,
        at_once: int = 1000,
    ) -> None:
        self.piece_octets = piece_octets
        self.loop = Loop()
        self.connections: list[Echo] = []
        self.listener = Listener(
            cast("asyncio.AbstractEventLoop", self.loop),
            self._connect,
            65536,
            descriptors,
            look=lambda: None,
            is_short=lambda: False,
            admission=admission_of(self.loop, at_once=at_once),
        )
        settings = Settings(
            tls_port=5671,
            tls_cert_file=str(certificates / "server.pem"),
            tls_key_file=str(certificates / "server.key"),
            tls_ca_file=str(certificates / "ca.pem"),
            tls_verify="verify_peer",
            tls_fail_if_no_peer_cert=is_needed,
        )
        self.tls = TlsListener(
            self.listener,
            server_context(settings),
            lambda certificate: user_name(certificate, "distinguished_name"),
        )
        context = self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(certificates / "ca.pem")
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["amqp"])
        if certificate:
            context.load_cert_chain(certificates / f"{certificate}.pem")
        self.dial()

    def dial(self) -> None:
        """A new socket with a tunnel at its end."""
        self.socket, self.tls_protocol = Socket(), TlsProtocol(self.tls)
        self.tls_protocol.connection_made(cast("asyncio.Transport", self.socket))
        self._to_client, self._from_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = self._context.wrap_bio(
            self._to_client, self._from_client, server_hostname="localhost"
        )

    def _connect(self, edge: SocketProtocol, peer: str) -> Connection:
        assert peer == "10.0.0.9"
        self.connections.append(Echo(edge))
        return cast("Connection", self.connections[-1])

    @property
    def connection(self) -> Echo:
        return self.connections[0]

    def hand_in(self, octets: bytes) -> None:
        """Octets from the client's socket, cut as agreed."""
        step = min(self.piece_octets, RECEIVE_OCTETS)
        for at in range(0, len(octets), step):
            piece = octets[at : at + step]
            self.tls_protocol.get_buffer(-1)[: len(piece)] = piece
            self.tls_protocol.buffer_updated(len(piece))

    def said(self) -> bytes:
        """What the client has written since."""
        return self._from_client.read()

    def exchange(self) -> None:
        """Everything that was written on either side goes to the other."""
        self.hand_in(self.said())
        self._to_client.write(bytes(self.socket.written))
        self.socket.written.clear()

    def shake_hands(self) -> Wire:
        for _ in range(4):
            try:
                self.client.do_handshake()
            except ssl.SSLWantReadError:
                self.exchange()
            else:
                self.exchange()
                return self
        raise AssertionError("no end of the handshake")

    def say(self, octets: bytes) -> bytes:
        """Send; returns all that the broker answers."""
        self.client.write(octets)
        self.exchange()
        heard = bytearray()
        try:
            while piece := self.client.read(1 << 20):
                heard += piece
        except ssl.SSLWantReadError:
            pass
        return bytes(heard)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("piece_octets", [1, 1000, 1 << 20])
def test_octets_come_through_however_they_are_cut(
    certificates: Path, version: ssl.TLSVersion, piece_octets: int
) -> None:
    """TLS-01."""
    wire = Wire(certificates, version=version, piece_octets=piece_octets).shake_hands()
    assert wire.client.selected_alpn_protocol() == "amqp"
    assert wire.client.compression() is None
    assert wire.say(b"one") == b"one"
    assert wire.say(b"two" * 20) == b"two" * 20
    assert bytes(wire.connection.heard) == b"one" + b"two" * 20


def test_more_than_a_record_comes_through(certificates: Path) -> None:
    wire = Wire(certificates).shake_hands()
    octets = bytes(range(256)) * 2000
    view, heard = memoryview(octets), bytearray()
    while view:
        sent = wire.client.write(view)
        view = view[sent:]
        wire.exchange()
        heard += wire.client.read(1 << 20)
    while len(heard) < len(octets):
        heard += wire.client.read(1 << 20)
    assert bytes(heard) == octets
    assert bytes(wire.connection.heard) == octets


@pytest.mark.parametrize(
    ("certificate", "name"), [("", None), ("client", "CN=conformance,O=client")]
)
def test_the_edge_knows_whom_the_certificate_names(
    certificates: Path, certificate: str, name: str | None
) -> None:
    """TLS-20."""
    wire = Wire(certificates, certificate).shake_hands()
    assert wire.connection.edge.certified == name


def test_nobody_is_made_a_connection_before_the_handshake_is_done(certificates: Path) -> None:
    wire = Wire(certificates)
    assert not wire.connections
    assert wire.tls_protocol in wire.listener.greeted
    wire.shake_hands()
    assert len(wire.connections) == 1
    assert not wire.listener.greeted
    assert not wire.loop.pending()


def reasons(captured: Iterable[Mapping[str, object]]) -> list[object]:
    return [each["reason"] for each in captured if each["event"] == "tls.handshake_failed"]


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        (b"AMQP\x00\x00\x09\x01", "plain AMQP on the TLS port"),
        (b"GET / HTTP/1.1\r\n\r\n", "plain HTTP on the TLS port"),
        (b"\x00", "no TLS handshake"),
    ],
)
def test_who_begins_no_handshake_is_told_by_the_log(
    certificates: Path, octets: bytes, reason: str
) -> None:
    """TLS-03."""
    wire = Wire(certificates)
    with capture_logs() as captured:
        wire.hand_in(octets)
        wire.tls_protocol.connection_lost(None)
    assert reasons(captured) == [reason]
    assert captured[0]["connection"] == "10.0.0.9:4000 -> 10.0.0.1:5671"
    assert wire.socket.has_eof
    assert not wire.socket.written
    assert not wire.listener.greeted
    assert not wire.connections


def test_a_certificate_of_another_authority_is_refused_with_an_alert(certificates: Path) -> None:
    """TLS-02."""
    wire = Wire(certificates, "stranger", version=ssl.TLSVersion.TLSv1_2)
    with capture_logs() as captured, pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
        wire.shake_hands()
    (reason,) = reasons(captured)
    assert str(reason).startswith("certificate verify failed: ")
    # The alert has to arrive: what the client still says is swallowed for a while.
    assert wire.socket.has_eof
    assert not wire.socket.is_closed
    wire.hand_in(b"x" * LINGER_OCTETS)
    assert not wire.socket.is_closed
    wire.hand_in(b"x")
    assert wire.socket.is_aborted


def test_who_has_been_refused_is_not_waited_for(certificates: Path) -> None:
    wire = Wire(certificates)
    wire.hand_in(b"AMQP")
    (timer,) = wire.loop.pending()
    assert timer.delay_s == LINGER_S
    assert timer.callback is not None
    with capture_logs() as captured:
        timer.callback()
    assert wire.socket.is_aborted
    assert not captured


def test_a_missing_certificate_is_refused_where_one_is_needed(certificates: Path) -> None:
    wire = Wire(certificates, version=ssl.TLSVersion.TLSv1_2, is_needed=True)
    with capture_logs() as captured, pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"):
        wire.shake_hands()
    assert reasons(captured) == ["peer did not return a certificate"]


def test_who_says_nothing_is_hung_up_on(certificates: Path) -> None:
    """TLS-03."""
    wire = Wire(certificates)
    (timer,) = wire.loop.pending()
    assert timer.delay_s == HANDSHAKE_S == 5.0
    assert timer.callback is not None
    with capture_logs() as captured:
        timer.callback()
        wire.tls_protocol.connection_lost(None)
    assert reasons(captured) == ["no handshake within 5 s"]
    assert wire.socket.is_aborted


def test_who_hangs_up_within_the_handshake_is_told_by_the_log(certificates: Path) -> None:
    wire = Wire(certificates)
    with pytest.raises(ssl.SSLWantReadError):
        wire.client.do_handshake()
    wire.exchange()
    with capture_logs() as captured:
        wire.tls_protocol.connection_lost(None)
    assert reasons(captured) == ["the client hung up"]
    assert not wire.listener.greeted


def test_who_only_looks_whether_somebody_listens_is_not_told(certificates: Path) -> None:
    wire = Wire(certificates)
    with capture_logs() as captured:
        wire.tls_protocol.connection_lost(None)
    assert not captured
    assert not wire.loop.pending()


def test_too_many_connections_are_turned_away_at_once(certificates: Path) -> None:
    """LIMIT-22: those who shake hands count as well."""
    wire = Wire(certificates, descriptors=1)
    assert wire.tls_protocol in wire.listener.greeted
    second = Socket()
    with capture_logs() as captured:
        TlsProtocol(wire.tls).connection_made(cast("asyncio.Transport", second))
    assert second.is_aborted
    assert captured[0]["event"] == "connection.refused"


def test_a_new_context_counts_for_new_connections(certificates: Path) -> None:
    """TLS-04."""
    wire = Wire(certificates).shake_hands()
    settings = Settings(
        tls_port=5671,
        tls_cert_file=str(certificates / "other.pem"),
        tls_key_file=str(certificates / "other.key"),
    )
    wire.tls.context = server_context(settings)
    assert wire.say(b"still there") == b"still there"
    wire.dial()
    with pytest.raises(ssl.SSLCertVerificationError):
        wire.shake_hands()


def test_the_last_words_are_followed_by_close_notify_and_the_end(certificates: Path) -> None:
    """CONN-07: no reset while the client may still be talking."""
    wire = Wire(certificates).shake_hands()
    edge = wire.connection.edge
    edge.write(b"last words")
    edge.finish()
    assert wire.socket.has_eof
    assert not wire.socket.is_closed
    wire.client.write(b"what nobody reads")
    wire.exchange()
    assert wire.client.read(100) == b"last words"
    assert wire.client.read(100) == b""
    assert not wire.connection.heard
    (timer,) = wire.loop.pending()
    assert timer.callback is not None
    timer.callback()
    assert wire.socket.is_aborted


def test_a_flood_after_the_last_words_ends_it(certificates: Path) -> None:
    wire = Wire(certificates).shake_hands()
    wire.connection.edge.finish()
    wire.hand_in(b"x" * (LINGER_OCTETS + 1))
    assert wire.socket.is_aborted


def next_look(wire: Wire, after_s: float) -> None:
    """Let the time of an edge's next look at its client come."""
    (timer,) = wire.loop.pending()
    assert timer.callback is not None
    wire.loop.now += after_s
    due, timer.callback = timer.callback, None
    due()


def test_what_stood_behind_a_close_of_the_client_is_taken(certificates: Path) -> None:
    """CONN-07: however much it is, until nothing came for a second."""
    wire = Wire(certificates).shake_hands()
    wire.connection.edge.finish(is_orderly=True)
    for _ in range(2):
        wire.hand_in(b"x" * (LINGER_OCTETS + 1))
        next_look(wire, LINGER_S)
        assert not wire.socket.is_closed
    next_look(wire, LINGER_S)
    assert wire.socket.is_aborted


def test_what_stood_behind_a_close_is_not_taken_for_ever(certificates: Path) -> None:
    wire = Wire(certificates).shake_hands()
    wire.connection.edge.finish(is_orderly=True)
    wire.hand_in(b"x")
    next_look(wire, LAST_WORDS_LIMIT_S - 1)
    assert not wire.socket.is_closed
    wire.hand_in(b"x")
    next_look(wire, 1)
    assert wire.socket.is_aborted


def test_close_notify_of_the_client_is_the_end(certificates: Path) -> None:
    wire = Wire(certificates).shake_hands()
    wire.client.write(b"bye")
    with pytest.raises(ssl.SSLWantReadError):
        wire.client.unwrap()
    wire.exchange()
    assert bytes(wire.connection.heard) == b"bye"
    assert wire.client.read(100) == b"bye"
    wire.client.unwrap()
    assert wire.socket.is_closed
    wire.tls_protocol.connection_lost(None)
    assert wire.connection.lost_by == ["closed by the client"]
    assert not wire.listener.edges


def test_a_broken_record_ends_it_and_is_told_by_the_log(certificates: Path) -> None:
    wire = Wire(certificates).shake_hands()
    with capture_logs() as captured:
        wire.hand_in(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert len(reasons(captured)) == 1
    assert wire.socket.is_closed
    assert not wire.connection.heard
    # Deliveries may be on their way yet.
    wire.connection.edge.write(b"nobody hears this")


def test_an_answer_to_octets_in_front_of_a_broken_record_breaks_nothing_else(
    certificates: Path,
) -> None:
    wire = Wire(certificates).shake_hands()
    wire.client.write(b"hello")
    with capture_logs():
        wire.hand_in(wire.said() + b"\x17\x03\x03\x00\x20" + bytes(32))
    assert bytes(wire.connection.heard) == b"hello"
    assert wire.socket.is_closed


def test_pauses_of_the_edge_reach_the_socket_and_the_other_way_round(certificates: Path) -> None:
    wire = Wire(certificates).shake_hands()
    edge = wire.connection.edge
    edge.pause(1)
    was_paused = wire.socket.is_paused
    edge.resume(1)
    assert (was_paused, wire.socket.is_paused) == (True, False)
    held: list[str] = []
    wire.connection.outbox = HeldOutbox(held)  # type: ignore[attr-defined]
    wire.tls_protocol.pause_writing()
    wire.tls_protocol.resume_writing()
    assert held == ["hold", "release"]


class HeldOutbox:
    """Notes what it is told."""

    def __init__(self, told: list[str]) -> None:
        self._told = told

    def hold(self) -> None:
        self._told.append("hold")

    def release(self) -> None:
        self._told.append("release")


def test_a_client_that_is_held_back_shakes_hands_when_it_has_its_turn(certificates: Path) -> None:
    """TLS-03: the time of the handshake begins with its turn."""
    wire = Wire(certificates, at_once=0)
    with pytest.raises(ssl.SSLWantReadError):
        wire.client.do_handshake()
    wire.hand_in(wire.said())
    (timer,) = wire.loop.pending()
    assert timer.callback is not None
    timer.callback()
    assert not wire.socket.is_aborted
    assert wire.socket.written == b""
    while wire.loop.soon:
        wire.loop.soon.pop(0)()
    assert wire.socket.written.startswith(b"\x16\x03")
    assert not wire.socket.is_paused
    assert wire.shake_hands().say(b"hello") == b"hello"


def test_a_client_that_is_held_back_and_silent_is_dropped_in_time(certificates: Path) -> None:
    """TLS-03."""
    wire = Wire(certificates, at_once=0)
    (timer,) = wire.loop.pending()
    assert timer.callback is not None
    timer.callback()
    assert wire.socket.is_aborted
