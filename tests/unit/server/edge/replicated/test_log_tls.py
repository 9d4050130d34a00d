"""TLS to the servers of the log: each fault in one line; renewed files are used."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from tools.certificates import openssl
from vouchmq.server.edge.replicated.engine import engine_of
from vouchmq.server.edge.replicated.log_tls import LogTls
from vouchmq.server.errors import SettingsError
from vouchmq.server.settings.settings import Settings

SETTINGS = Settings(ha_log="nats://a:4222", ha_monitors=("https://a:8222",))


@pytest.fixture
def made(certificates: Path, tmp_path: Path) -> Path:
    """Certificates of this test's own, and a key with a passphrase."""
    for file in certificates.iterdir():
        shutil.copy(file, tmp_path)
    locked = ["-passout", "pass:hush", "-aes128", "-out", str(tmp_path / "locked.key")]
    openssl("ec", "-in", str(tmp_path / "client.key"), *locked)
    return tmp_path


@pytest.fixture
def events() -> Iterator[list[structlog.typing.EventDict]]:
    """What is logged."""
    with capture_logs() as logged:
        yield logged


def files(directory: Path, certificate: str = "client.pem", key: str = "client.key") -> list[str]:
    """Paths of the authority, of a certificate and of its key."""
    return [str(directory / each) for each in ("ca.pem", certificate, key)]


def replace_file(directory: Path, name: str, source: str) -> None:
    """As programs do that renew certificates: at once, under the same name."""
    (directory / "new").write_bytes((directory / source).read_bytes())
    (directory / "new").rename(directory / name)


@pytest.mark.parametrize(
    ("certificate", "key", "fault"),
    [
        ("no.pem", "client.key", "ha_tls_cert_file: {}/no.pem: No such file or directory"),
        ("client.pem", "no.key", "ha_tls_key_file: {}/no.key: No such file or directory"),
        ("client.pem", ".", "ha_tls_key_file: {}: Is a directory"),
        ("client.key", "client.key", "ha_tls_cert_file: {}/client.key: no certificate in PEM"),
        ("client.pem", "ca.pem", "ha_tls_key_file: {}/ca.pem: no private key in PEM"),
        (
            "client.pem",
            "nobody.key",
            "ha_tls_key_file: {}/nobody.key: not the key of the certificate in {}/client.pem",
        ),
        ("client.pem", "locked.key", "ha_tls_key_file: {}/locked.key: the key has a passphrase"),
    ],
)
def test_a_pair_that_cannot_be_used_is_refused_in_one_line(
    made: Path, certificate: str, key: str, fault: str
) -> None:
    authority, *pair = files(made, certificate, key)
    chosen = replace(
        SETTINGS, ha_tls_ca_file=authority, ha_tls_cert_file=pair[0], ha_tls_key_file=pair[1]
    )
    with pytest.raises(SettingsError) as refused:
        engine_of(chosen)
    assert str(refused.value) == fault.replace("{}", str(made))


def test_an_authority_that_only_looks_like_pem_is_refused(made: Path) -> None:
    broken = made / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n")
    with pytest.raises(SettingsError, match=r"ha_tls_ca_file: .*broken\.pem: "):
        LogTls(str(broken), "", "")


def test_servers_must_have_a_valid_certificate_with_their_name(made: Path) -> None:
    context = LogTls(*files(made))()
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1


def test_a_certificate_is_shown_on_all_connections_and_to_none_without_tls(made: Path) -> None:
    _, certificate, key = files(made)
    engine = engine_of(replace(SETTINGS, ha_tls_cert_file=certificate, ha_tls_key_file=key))
    assert engine.options.tls is not None
    assert engine_of(SETTINGS).options.tls is None


def test_files_are_read_again_only_when_they_have_changed(
    made: Path, events: list[structlog.typing.EventDict]
) -> None:
    tls = LogTls(*files(made))
    first = tls()
    assert tls() is first
    for name, source in (("client.pem", "nobody.pem"), ("client.key", "nobody.key")):
        replace_file(made, name, source)
    assert tls() is not first
    assert [each["event"] for each in events] == ["replication.tls_reloaded"]


def test_half_of_a_new_pair_is_said_once_and_leaves_the_old_one(
    made: Path, events: list[structlog.typing.EventDict]
) -> None:
    tls = LogTls(*files(made))
    first = tls()
    replace_file(made, "client.pem", "nobody.pem")
    assert tls() is first
    assert tls() is first
    (failed,) = events
    assert failed["event"] == "replication.tls_reload_failed"
    assert "not the key of the certificate" in failed["reason"]
    replace_file(made, "client.key", "nobody.key")
    assert tls() is not first


def test_files_that_are_gone_leave_the_old_ones(
    made: Path, events: list[structlog.typing.EventDict]
) -> None:
    tls = LogTls(*files(made))
    first = tls()
    (made / "ca.pem").unlink()
    assert tls() is first
    assert [each["event"] for each in events] == ["replication.tls_reload_failed"]
