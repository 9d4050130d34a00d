"""A broker with certificates, and clients' parameters for it."""

from __future__ import annotations

import shutil
import socket
import ssl
from pathlib import Path

import pika
import pika.exceptions

from tests.integration.broker_process import BrokerProcess, KeptPort

PATIENCE_S = 60.0


CERTIFIED = "CN=conformance,O=client"


CONFIGURATION = f"""
[[users]]
name = "guest"
password = "guest"

[[users]]
name = "{CERTIFIED}"
"""


class TlsBroker:
    """A broker process with TLS, on files of its own."""

    def __init__(self, directory: Path, certificates: Path, *flags: str) -> None:
        self.files = directory / "files"
        shutil.copytree(certificates, self.files)
        self._kept_port = KeptPort()
        self.port = self._kept_port.port
        self.ready_file = directory / "ready.json"
        configuration = directory / "vouchmq.toml"
        configuration.write_text(CONFIGURATION, encoding="utf-8")
        self.process = BrokerProcess(
            directory,
            flags=(
                *("--config", str(configuration), "--ready-file", str(self.ready_file)),
                *("--tls-port", str(self.port), "--tls-verify", "verify_peer"),
                *("--tls-cert-file", str(self.files / "server.pem")),
                *("--tls-key-file", str(self.files / "server.key")),
                *("--tls-ca-file", str(self.files / "ca.pem")),
                # The last word counts.
                *("--log-level", "info", *flags),
            ),
        )

    def context(self, certificate: str = "", authority: str = "ca") -> ssl.SSLContext:
        """A client's context, which checks the broker's name as well."""
        context = ssl.create_default_context(cafile=str(self.files / f"{authority}.pem"))
        if certificate:
            context.load_cert_chain(self.files / f"{certificate}.pem")
        return context

    def parameters(
        self, certificate: str = "", *, context: ssl.SSLContext | None = None
    ) -> pika.ConnectionParameters:
        """What pika needs; a certificate logs in by itself."""
        options = pika.SSLOptions(context or self.context(certificate), "localhost")
        if not certificate:
            return pika.ConnectionParameters("127.0.0.1", self.port, ssl_options=options)
        credentials = pika.credentials.ExternalCredentials()
        return pika.ConnectionParameters(
            "127.0.0.1", self.port, ssl_options=options, credentials=credentials
        )

    def secure_socket(self) -> ssl.SSLSocket:
        """A socket that has shaken hands."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        return self.context().wrap_socket(plain, server_hostname="localhost")
