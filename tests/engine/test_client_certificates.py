"""A log whose server takes only clients with a certificate, and monitoring with TLS."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pika
import pytest

from tests.engine.brokers import Brokers, status
from tests.engine.servers import MISSING, NatsServer, program, single_server, wait_until
from tests.integration.broker_process import BrokerProcess, run_command
from tests.integration.start_up import assert_one_clear_line, serve
from vouchmq.server.edge.replicated.log_tls import LogTls
from vouchmq.server.replication import monitoring
from vouchmq.server.replication.monitoring import MonitoringError

pytestmark = pytest.mark.skipif(program() is None, reason=MISSING)

REFUSED = "it takes only clients with a certificate that is valid"


@dataclass(frozen=True)
class Log:
    """A server with `verify: true`, and a directory with the files of its clients."""

    server: NatsServer
    files: Path

    def install(self, name: str) -> None:
        """Make one of the certificates that of the brokers; first its key, as a renewal may."""
        for ending in ("key", "pem"):
            new = self.files / "new"
            shutil.copy(self.files / f"{name}.{ending}", new)
            new.rename(self.files / f"mine.{ending}")

    @property
    def pair(self) -> tuple[Path, Path]:
        """The certificate of the brokers, and its key."""
        return self.files / "mine.pem", self.files / "mine.key"

    @property
    def flags(self) -> tuple[str, ...]:
        """How everything reaches it."""
        certificate, key = map(str, self.pair)
        return (*self.authority, "--ha-tls-cert-file", certificate, "--ha-tls-key-file", key)

    @property
    def authority(self) -> tuple[str, ...]:
        """The same without a certificate."""
        return ("--ha-tls-ca-file", str(self.files / "ca.pem"))

    @property
    def place(self) -> tuple[str, ...]:
        """Where it is."""
        return ("--ha-log", f"nats://127.0.0.1:{self.server.ports[0]}", "--ha-stream", "orders")


@pytest.fixture
def log(tmp_path: Path, certificates: Path) -> Iterator[Log]:
    """One server; what it has in place of two others is said to be unsafe."""
    files = tmp_path / "files"
    shutil.copytree(certificates, files)
    own = f'cert_file: "{files}/server.pem", key_file: "{files}/server.key"'
    server = single_server(
        tmp_path / "engine", settings=f'tls {{ {own}, ca_file: "{files}/ca.pem", verify: true }}'
    )
    server.trusting = ssl.create_default_context(cafile=files / "ca.pem")
    server.start()
    made = Log(server, files)
    made.install("client")
    try:
        wait_until(server.is_ready, "a server")
        yield made
    finally:
        server.kill()


def publish(url: str, body: bytes) -> None:
    """Publish a message, and wait until it is confirmed."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))


def is_refused(broker: BrokerProcess) -> bool:
    """Whether the server turns a broker away for its certificate."""
    return REFUSED in str(status(broker)["trouble"])


def bodies(url: str, count: int) -> list[bytes]:
    """What is in the queue."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        got = [channel.basic_get("q", auto_ack=True)[2] for _ in range(count + 1)]
        return [each for each in got if each is not None]


def test_brokers_show_their_certificate_and_a_renewed_one(tmp_path: Path, log: Log) -> None:
    brokers = Brokers(tmp_path, log.server, reach=log.flags)
    leader, standby = brokers.leader, brokers.standby
    try:
        brokers.start()
        publish(leader.url, b"one")
        # An open connection stays; the next one shows what is in the files then.
        log.install("expired")
        log.server.kill()
        log.server.start()
        for each in (leader, standby):
            each.wait_until(partial(is_refused, each))
        log.install("nobody")
        leader.wait_until(lambda: not status(leader)["trouble"])
        publish(leader.url, b"two")
        standby.wait_until(lambda: status(standby).get("is_complete"))
        leader.kill9()
        standby.wait_until_ready()
        assert bodies(standby.url, 2) == [b"one", b"two"]
    finally:
        brokers.kill()


@pytest.mark.parametrize("name", ["", "stranger", "expired"])
def test_nothing_is_made_without_a_certificate_that_counts(log: Log, name: str) -> None:
    if name:
        log.install(name)
    flags = log.flags if name else log.authority
    refused = run_command("ha", "create", "--replicas", "1", *log.place, *flags)
    assert refused.returncode == 1
    assert REFUSED in refused.stderr.strip().splitlines()[-1]
    log.install("client")
    made = run_command("ha", "create", "--replicas", "1", *log.place, *log.flags)
    assert made.returncode == 0, made.stderr


def test_a_log_of_a_directory_is_made_with_a_certificate(tmp_path: Path, log: Log) -> None:
    (tmp_path / "alone").mkdir()
    broker = BrokerProcess(tmp_path / "alone")
    broker.start()
    publish(broker.url, b"mine")
    assert broker.stop() == 0
    source = ("--from", str(broker.data_dir), "--replicas", "1")
    made = run_command("ha", "create", *source, *log.place, *log.flags)
    assert made.returncode == 0, made.stderr


def test_a_monitor_is_asked_with_the_same_files(tmp_path: Path, log: Log) -> None:
    made = run_command("ha", "create", "--replicas", "1", *log.place, *log.flags)
    assert made.returncode == 0, made.stderr
    data = ("--port", "0", "--data-dir", str(tmp_path / "data"))
    done = serve(*data, *log.place, *log.flags, "--ha-monitors", log.server.monitor)
    # It is seen: what it says of itself is right, and only replicas are missing.
    assert_one_clear_line(done, "has 1 of 3 replicas that it needs")
    other = LogTls(str(log.files / "other.pem"), *map(str, log.pair))
    with pytest.raises(MonitoringError, match="certificate verify failed"):
        monitoring.ask(log.server.monitor, other())


@pytest.mark.parametrize(
    ("certificate", "key", "words"),
    [
        ("client.pem", "", ("ha_tls_key_file",)),
        ("", "client.key", ("ha_tls_cert_file",)),
        ("no.pem", "client.key", ("ha_tls_cert_file", "No such file")),
        ("client.pem", "nobody.key", ("ha_tls_key_file", "not the key of the certificate")),
    ],
)
def test_a_pair_that_does_not_fit_is_one_line(
    tmp_path: Path, certificates: Path, certificate: str, key: str, words: tuple[str, ...]
) -> None:
    log = ("--ha-log", "nats://127.0.0.1:4", "--ha-monitors", "http://127.0.0.1:4")
    pair: list[str] = []
    for flag, name in (("--ha-tls-cert-file", certificate), ("--ha-tls-key-file", key)):
        pair += [flag, str(certificates / name)] if name else []
    data = str(tmp_path / "data")
    assert_one_clear_line(serve("--port", "0", "--data-dir", data, *log, *pair), *words)
    # Nothing was opened for that.
    assert not Path(data).exists()
    assert_one_clear_line(run_command("ha", "create", *log[:2], *pair), *words)


def test_an_authority_that_does_not_sign_the_server_is_the_one_that_is_blamed(log: Log) -> None:
    wrong = ("--ha-tls-ca-file", str(log.files / "client.pem"))
    done = run_command("ha", "create", "--replicas", "1", *log.place, *log.flags, *wrong)
    assert done.returncode == 1
    assert "its certificate is not valid: unable to get local issuer" in done.stderr
    assert "ha_tls_ca_file names the authorities that are trusted" in done.stderr
    assert REFUSED not in done.stderr
