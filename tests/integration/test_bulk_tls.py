"""The bulk client over TLS: what the URL says about certificates, and plenty of bytes both ways."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.tls_broker import TlsBroker
from tests.waiting import LIMIT_S
from vouchmq.kit.bulk import BulkClosed, BulkConnection

NONE = b"\x00\x00"


@pytest.fixture(scope="module")
def tls(referee_url: str | None, certificates: Path, module_path: Path) -> Iterator[TlsBroker]:
    """A broker that speaks TLS."""
    if referee_url is not None:
        pytest.skip("VouchMQ's own settings")
    made = TlsBroker(module_path, certificates)
    made.process.start()
    try:
        yield made
        assert made.process.stop() == 0
        assert made.process.complaints() == []
    finally:
        made.process.kill9()


def url(tls: TlsBroker, parameters: str) -> str:
    return f"amqps://guest:guest@localhost:{tls.port}/%2F?{parameters}"


@pytest.mark.parametrize("parameters", ["cafile={files}/ca.pem", "no_verify_ssl=1"])
def test_bytes_go_both_ways_at_once(tls: TlsBroker, parameters: str) -> None:
    with BulkConnection.open(url(tls, parameters.format(files=tls.files))) as connection:
        consumer, publisher = connection.channel(), connection.channel()
        queue = consumer.declare("", exclusive=True, durable=False).queue
        consumer.consume(queue, no_ack=True)
        publisher.confirm_select()
        rows = [("", queue, NONE, bytes([number % 256]) * 40_000) for number in range(400)]
        assert publisher.publish_many(rows, mandatory=True).confirmed == 400
        taken = consumer.wait(400, LIMIT_S)
        assert [each[5] for each in taken] == [row[3] for row in rows]


def test_a_clients_certificate_is_shown(tls: TlsBroker) -> None:
    shown = f"cafile={tls.files}/ca.pem&certfile={tls.files}/client.pem"
    key = tls.files / "client.key"
    if key.exists():
        shown += f"&keyfile={key}"
    with BulkConnection.open(url(tls, shown)) as connection:
        connection.channel().fence()


def test_a_broker_that_is_not_trusted_is_refused(tls: TlsBroker) -> None:
    with pytest.raises(BulkClosed, match=r"TLS: .*verify failed") as caught:
        BulkConnection.open(url(tls, ""))
    assert "guest:guest" not in str(caught.value)


def test_a_port_without_tls_is_told(tls: TlsBroker) -> None:
    plain = f"amqps://guest:guest@localhost:{tls.process.port}/%2F?no_verify_ssl=1"
    with pytest.raises(BulkClosed, match="TLS: "):
        BulkConnection.open(plain, connect_timeout_s=3)
