"""AMQP over TLS with clients that people use: logins, certificates that change, and the end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import aio_pika
import pamqp.commands as amqp
import pika
import pika.exceptions
import pytest

from tests.integration.broker_process import KeptPort
from tests.integration.raw_client import PROTOCOL_HEADER, method
from tests.integration.start_up import assert_one_clear_line, serve
from tests.integration.tls_broker import CERTIFIED, PATIENCE_S, TlsBroker


@pytest.fixture(autouse=True)
def _ours_only(referee_url: str | None) -> None:
    if referee_url is not None:
        pytest.skip("VouchMQ's own settings")


@pytest.fixture
def broker(tmp_path: Path, certificates: Path) -> Iterator[TlsBroker]:
    """One that ends well."""
    broker = TlsBroker(tmp_path, certificates)
    broker.process.start()
    try:
        yield broker
        assert broker.process.stop() == 0, broker.process.output()
        assert broker.process.complaints() == []
    finally:
        broker.process.kill9()


def goes_there_and_back(connection: pika.BlockingConnection, size: int) -> None:
    """A confirmed message of that size comes back whole."""
    body = os.urandom(size)
    channel = connection.channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, body)
    _, _, got = channel.basic_get(queue, auto_ack=True)
    assert got == body


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_pika_by_password(broker: TlsBroker, version: ssl.TLSVersion) -> None:
    """TLS-01."""
    context = broker.context()
    context.minimum_version = context.maximum_version = version
    with pika.BlockingConnection(broker.parameters(context=context)) as connection:
        goes_there_and_back(connection, 2_000_000)


def test_pika_by_certificate(broker: TlsBroker) -> None:
    """CONN-18: the user that PUB-06 knows is the one of the certificate."""
    with pika.BlockingConnection(broker.parameters("client")) as connection:
        goes_there_and_back(connection, 10)
        channel = connection.channel()
        channel.basic_publish("", "nowhere", b"", pika.BasicProperties(user_id=CERTIFIED))
        channel.basic_publish("", "nowhere", b"", pika.BasicProperties(user_id="guest"))
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="user_id"):
            channel.queue_declare("", exclusive=True)
    broker.process.wait_for_log("connection.opened", CERTIFIED)


def test_a_certificate_of_no_user_is_refused(broker: TlsBroker) -> None:
    """TLS-20, CONN-22."""
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="ACCESS_REFUSED"):
        pika.BlockingConnection(broker.parameters("nobody"))
    broker.process.wait_for_log("login.refused", "no user 'CN=nobody'")


def test_a_certificate_of_another_authority_is_no_handshake(broker: TlsBroker) -> None:
    """TLS-02."""
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(broker.parameters("stranger"))
    broker.process.wait_for_log("tls.handshake_failed", "certificate verify failed")


def test_aio_pika_by_certificate(broker: TlsBroker) -> None:
    """CONN-18."""

    async def talk() -> list[int]:
        url = f"amqps://localhost:{broker.port}/?auth=EXTERNAL"
        connection = await aio_pika.connect(url, ssl_context=broker.context("client"))
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(exclusive=True)
            sizes = []
            for size in (0, 10, 700_000):
                await channel.default_exchange.publish(
                    aio_pika.Message(bytes(size), user_id=CERTIFIED), routing_key=queue.name
                )
            async with queue.iterator(timeout=PATIENCE_S) as messages:
                async for message in messages:
                    await message.ack()
                    sizes.append(len(message.body))
                    if len(sizes) == 3:
                        return sizes
        raise AssertionError("unreachable")

    assert asyncio.run(talk()) == [0, 10, 700_000]


def test_many_small_messages_and_a_slow_reader(broker: TlsBroker) -> None:
    """More than fits into sockets and buffers, in both directions."""
    with pika.BlockingConnection(broker.parameters()) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        for number in range(20_000):
            channel.basic_publish("", queue, number.to_bytes(4, "big") * 25)
        got = []
        for got_it, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=PATIENCE_S):
            assert got_it is not None
            got.append(int.from_bytes(body[:4], "big"))
            if len(got) == 20_000:
                break
        channel.cancel()
    assert got == list(range(20_000))


def test_the_last_frame_arrives_though_the_client_goes_on_talking(broker: TlsBroker) -> None:
    """CONN-07: close-notify and the end follow the reason, and no reset."""
    with broker.secure_socket() as secure:
        secure.sendall(PROTOCOL_HEADER)
        assert secure.recv(1) == b"\x01"
        # No frame type: 501, and nothing is read any more.
        secure.sendall(b"\x09" + bytes(30_000))
        heard = bytearray()
        while octets := secure.recv(65536):
            heard += octets
        assert b"FRAME_ERROR" in heard


def test_plain_amqp_on_the_port_is_logged_as_such(broker: TlsBroker) -> None:
    """TLS-03."""
    address = ("127.0.0.1", broker.port)
    with socket.create_connection(address, timeout=PATIENCE_S) as plain:
        plain.sendall(PROTOCOL_HEADER)
        assert plain.recv(100) == b""
    broker.process.wait_for_log("tls.handshake_failed", "plain AMQP on the TLS port")


def test_tls_on_the_plain_port_is_logged_as_such(broker: TlsBroker) -> None:
    """CONN-05."""
    address = ("127.0.0.1", broker.process.port)
    with (
        socket.create_connection(address, timeout=PATIENCE_S) as plain,
        pytest.raises(OSError, match="wrong version number"),
    ):
        broker.context().wrap_socket(plain, server_hostname="localhost")
    broker.process.wait_for_log("connection.refused", "TLS handshake on the plain AMQP port")


def test_certificates_are_read_again_on_sighup(broker: TlsBroker) -> None:
    """TLS-04: for new connections; what cannot be read changes nothing."""
    with pika.BlockingConnection(broker.parameters()) as first:
        (broker.files / "server.pem").write_text("nothing\n")
        os.kill(broker.process.pid, signal.SIGHUP)
        broker.process.wait_for_log("tls.reload_failed", "server.pem: no certificate in PEM")
        broker.process.forgiven = ("tls.reload_failed",)
        with pika.BlockingConnection(broker.parameters()) as second:
            goes_there_and_back(second, 10)
        for ending in ("pem", "key"):
            shutil.copy(broker.files / f"other.{ending}", broker.files / f"server.{ending}")
        os.kill(broker.process.pid, signal.SIGHUP)
        broker.process.wait_for_log("tls.reloaded")
        with pytest.raises(ssl.SSLCertVerificationError):
            pika.BlockingConnection(broker.parameters())
        context = broker.context(authority="other")
        context.check_hostname = False
        with pika.BlockingConnection(broker.parameters(context=context)) as third:
            goes_there_and_back(third, 10)
        goes_there_and_back(first, 10)


def test_clients_are_told_when_the_broker_ends(broker: TlsBroker) -> None:
    """CONN-57."""
    with pika.BlockingConnection(broker.parameters()) as connection:
        os.kill(broker.process.pid, signal.SIGTERM)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
            connection.process_data_events(time_limit=PATIENCE_S)
        assert caught.value.reply_code == 320
    assert broker.process.wait() == 0


def test_the_ready_line_and_the_ready_file_tell_the_port(broker: TlsBroker) -> None:
    lines = [line for line in broker.process.output().splitlines() if " ready on " in line]
    assert lines == [
        f"VouchMQ TLS ready on 127.0.0.1:{broker.port}",
        f"VouchMQ ready on 127.0.0.1:{broker.process.port}",
    ]
    facts = json.loads(broker.ready_file.read_text(encoding="utf-8"))
    assert (facts["port"], facts["tls_port"]) == (broker.process.port, broker.port)


def test_mechanisms_are_those_that_the_operator_allows(tmp_path: Path, certificates: Path) -> None:
    """CONN-10: without a certificate nobody gets in here."""
    broker = TlsBroker(tmp_path, certificates, "--auth-mechanisms", "EXTERNAL")
    broker.process.start()
    try:
        with pika.BlockingConnection(broker.parameters("client")) as connection:
            goes_there_and_back(connection, 10)
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            pika.BlockingConnection(broker.parameters())
        with socket.create_connection(
            ("127.0.0.1", broker.process.port), timeout=PATIENCE_S
        ) as plain:
            plain.sendall(PROTOCOL_HEADER)
            assert plain.recv(1) == b"\x01"
            plain.sendall(
                method(
                    0,
                    amqp.Connection.StartOk(
                        client_properties={"capabilities": {"authentication_failure_close": True}},
                        mechanism="PLAIN",
                        response="\0guest\0guest",
                        locale="en_US",
                    ),
                )
            )
            heard = bytearray()
            while octets := plain.recv(65536):
                heard += octets
            assert b"COMMAND_INVALID - unknown authentication mechanism 'PLAIN'" in heard
        assert broker.process.stop() == 0
    finally:
        broker.process.kill9()


def test_files_that_do_not_fit_are_one_line(tmp_path: Path, certificates: Path) -> None:
    data = str(tmp_path / "data")
    certificate, other = str(certificates / "server.pem"), str(certificates / "other.key")
    kept = KeptPort()
    flags = ("--port", "0", "--data-dir", data, "--tls-port", str(kept.port))
    assert_one_clear_line(serve(*flags), "tls_cert_file", "tls_port needs a certificate")
    named = (*flags, "--tls-cert-file", certificate, "--tls-key-file")
    assert_one_clear_line(serve(*named, other), "tls_key_file", other, certificate)
    # Nothing was opened for that.
    assert not Path(data).exists()


def test_a_port_that_is_taken_is_one_line(tmp_path: Path, certificates: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        files = [
            *("--tls-cert-file", str(certificates / "server.pem")),
            *("--tls-key-file", str(certificates / "server.key")),
        ]
        data = ("--port", "0", "--data-dir", str(tmp_path / "data"), "--tls-port", port)
        assert_one_clear_line(serve(*data, *files), port, "choose another --tls-port")
