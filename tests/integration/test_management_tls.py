"""The HTTP API and the Prometheus endpoint over TLS, with the broker's certificate."""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import signal
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration.management import ManagedBroker
from tests.integration.start_up import assert_one_clear_line, serve
from tests.waiting import LIMIT_S
from tools.certificates import make
from vouchmq.management.web.app import PAGE_HEADER, PAGE_NAME


@pytest.fixture(autouse=True)
def _ours_only(referee_url: str | None) -> None:
    if referee_url is not None:
        pytest.skip("VouchMQ's own settings")


class SecureBroker(ManagedBroker):
    """One whose management process has a certificate, in files of its own."""

    def __init__(self, directory: Path, certificates: Path) -> None:
        self.files = directory / "files"
        shutil.copytree(certificates, self.files)
        super().__init__(
            directory,
            *("--management-tls", "on", "--log-level", "info"),
            *("--tls-cert-file", str(self.files / "server.pem")),
            *("--tls-key-file", str(self.files / "server.key")),
        )

    def fetch(
        self,
        path: str,
        *,
        port: int = 0,
        method: str = "GET",
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """An answer over HTTPS, from a server that has the certificate of our authority."""
        context = ssl.create_default_context(cafile=str(self.files / "ca.pem"))
        connection = http.client.HTTPSConnection(
            "127.0.0.1", port or self.port, context=context, timeout=LIMIT_S
        )
        login = base64.b64encode(b"guest:guest").decode()
        sent = {"authorization": f"Basic {login}", **(headers or {})}
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    def rows(self, path: str) -> Any:
        """What the API tells."""
        answer, body = self.fetch(f"/api{path}")
        assert answer.status in {200, 503}, body
        return json.loads(body)


@pytest.fixture
def broker(tmp_path: Path, certificates: Path) -> Iterator[SecureBroker]:
    """One that ends well."""
    broker = SecureBroker(tmp_path, certificates)
    try:
        yield broker
        assert broker.process.stop() == 0, broker.process.output()
    finally:
        broker.process.kill9()


def test_both_ports_speak_https_and_nothing_else(broker: SecureBroker) -> None:
    assert f"ready on https://127.0.0.1:{broker.port}" in broker.process.output()
    assert broker.rows("/whoami")["name"] == "guest"
    answer, body = broker.fetch("/metrics", port=broker.metrics_port)
    assert answer.status == 200
    assert b"rabbitmq_connections" in body
    for port in (broker.port, broker.metrics_port):
        plain = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            plain.request("GET", "/metrics")
            plain.getresponse()
        plain.close()


def test_listeners_and_health_checks_know_it(broker: SecureBroker) -> None:
    [listener] = [
        each for each in broker.rows("/overview")["listeners"] if each["protocol"] != "amqp"
    ]
    assert (listener["protocol"], listener["port"]) == ("https", broker.port)
    assert broker.rows("/health/checks/protocol-listener/https")["status"] == "ok"
    # The certificate is valid for thirty days.
    assert broker.rows("/health/checks/certificate-expiration/1/weeks")["status"] == "ok"
    soon = broker.rows("/health/checks/certificate-expiration/2/months")
    assert soon["status"] == "failed"
    assert soon["expired"][0]["port"] == broker.port


def test_the_cookie_of_a_session_goes_over_https_only(broker: SecureBroker) -> None:
    login = json.dumps({"username": "guest", "password": "guest"})
    answer, body = broker.fetch(
        "/session", method="POST", body=login, headers={PAGE_HEADER: PAGE_NAME}
    )
    assert answer.status == 200, body
    assert "Secure" in (answer.headers["set-cookie"] or "")


def test_a_new_certificate_is_shown_after_sighup(broker: SecureBroker) -> None:
    first = ssl.get_server_certificate(("127.0.0.1", broker.port))
    make(broker.files)
    os.kill(broker.process.pid, signal.SIGHUP)
    broker.process.wait_for_log("tls.reloaded")
    assert ssl.get_server_certificate(("127.0.0.1", broker.port)) != first
    assert broker.rows("/whoami")["name"] == "guest"
    (broker.files / "server.pem").write_text("nothing", encoding="utf-8")
    os.kill(broker.process.pid, signal.SIGHUP)
    broker.process.wait_for_log("tls.reload_failed")
    assert broker.rows("/whoami")["name"] == "guest"


def test_without_a_certificate_the_broker_does_not_start(tmp_path: Path) -> None:
    flags = ("--management", "on", "--management-tls", "on")
    done = serve("--data-dir", str(tmp_path / "d"), "--port", "0", *flags)
    assert_one_clear_line(done, "tls_cert_file: management_tls needs a certificate")
