"""TLS set up from files, each fault in one line; names of users in certificates."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

import pytest

from tools.certificates import openssl
from vouchmq.server.edge.tls import distinguished_name, server_context, user_name
from vouchmq.server.errors import SettingsError
from vouchmq.server.settings.settings import Settings


@pytest.fixture(scope="module")
def made(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates, and files that are none."""
    directory = tmp_path_factory.mktemp("certificates")
    for file in certificates.iterdir():
        shutil.copy(file, directory)
    locked = ["-passout", "pass:hush", "-aes128", "-out", str(directory / "locked.key")]
    openssl("ec", "-in", str(directory / "server.key"), *locked)
    (directory / "broken.pem").write_text(
        "-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n"
    )
    return directory


def settings(directory: Path, **changes: object) -> Settings:
    """Settings with TLS, `*_file` names within the directory."""
    chosen: dict[str, object] = {
        "tls_port": 5671,
        "tls_cert_file": "server.pem",
        "tls_key_file": "server.key",
        "tls_ca_file": "ca.pem",
        **changes,
    }
    for name, value in chosen.items():
        if name.endswith("_file") and value:
            chosen[name] = str(directory / str(value))
    return Settings(**chosen)  # type: ignore[arg-type]


def test_only_current_versions_without_compression_or_renegotiation(made: Path) -> None:
    context = server_context(settings(made))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    wanted = ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    assert context.options & wanted == wanted
    assert context.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize(
    ("is_needed", "mode"), [(False, ssl.CERT_OPTIONAL), (True, ssl.CERT_REQUIRED)]
)
def test_clients_are_asked_for_a_certificate(
    made: Path, is_needed: bool, mode: ssl.VerifyMode
) -> None:
    """TLS-02."""
    chosen = settings(made, tls_verify="verify_peer", tls_fail_if_no_peer_cert=is_needed)
    assert server_context(chosen).verify_mode == mode


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"tls_cert_file": ""}, "tls_cert_file: tls_port needs a certificate"),
        ({"tls_key_file": ""}, "tls_key_file: tls_port needs the key of tls_cert_file"),
        ({"tls_cert_file": "no.pem"}, "tls_cert_file: {}/no.pem: No such file or directory"),
        ({"tls_key_file": "no.key"}, "tls_key_file: {}/no.key: No such file or directory"),
        ({"tls_ca_file": "no.pem"}, "tls_ca_file: {}/no.pem: No such file or directory"),
        ({"tls_cert_file": "server.key"}, "tls_cert_file: {}/server.key: no certificate in PEM"),
        ({"tls_key_file": "server.pem"}, "tls_key_file: {}/server.pem: no private key in PEM"),
        ({"tls_ca_file": "ca.key"}, "tls_ca_file: {}/ca.key: no certificate in PEM"),
        (
            {"tls_key_file": "client.key"},
            "tls_key_file: {}/client.key: not the key of the certificate in {}/server.pem",
        ),
        ({"tls_key_file": "locked.key"}, "tls_key_file: {}/locked.key: the key has a passphrase"),
        (
            {"tls_verify": "verify_peer", "tls_ca_file": ""},
            "tls_ca_file: tls_verify = verify_peer needs certificate authorities",
        ),
        (
            {"tls_fail_if_no_peer_cert": True},
            "tls_fail_if_no_peer_cert: needs tls_verify = verify_peer",
        ),
    ],
)
def test_a_fault_is_told_in_one_line(made: Path, changes: dict[str, object], fault: str) -> None:
    with pytest.raises(SettingsError) as refused:
        server_context(settings(made, **changes))
    assert str(refused.value) == fault.replace("{}", str(made))


@pytest.mark.parametrize("name", ["tls_cert_file", "tls_ca_file"])
def test_what_only_looks_like_pem_is_told_with_its_setting(made: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=rf"{name}.*broken\.pem"):
        server_context(settings(made, **{name: "broken.pem"}))


SUBJECT = (
    (("countryName", "DE"),),
    (("organizationName", "Ham, Spam + Co"),),
    (("organizationalUnitName", "a"), ("userId", "b")),
    (("commonName", "guest"),),
)
NAMES = (("DNS", "one.test"), ("IP Address", "10.0.0.1"), ("DNS", "two.test"))


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("plain", "plain"),
        ("#first", "\\#first"),
        ("not#first", "not#first"),
        (" both ", "\\ both\\ "),
        (" ", "\\ "),
        ('a"b\\c<d>e;f', 'a\\"b\\\\c\\<d\\>e\\;f'),
        ("nul\0", "nul\\00"),
        ("größe", "größe"),
    ],
)
def test_a_value_is_escaped(text: str, written: str) -> None:
    """RFC 4514, 2.4."""
    assert distinguished_name(((("commonName", text),),)) == f"CN={written}"


def test_a_distinguished_name_is_written_from_its_end() -> None:
    """TLS-20."""
    assert distinguished_name(SUBJECT) == "CN=guest,OU=a+UID=b,O=Ham\\, Spam \\+ Co,C=DE"


@pytest.mark.parametrize(
    ("source", "san_type", "index", "name"),
    [
        ("common_name", "dns", 0, "guest"),
        ("subject_alternative_name", "dns", 0, "one.test"),
        ("subject_alternative_name", "dns", 1, "two.test"),
        ("subject_alternative_name", "dns", 2, ""),
        ("subject_alternative_name", "ip", 0, "10.0.0.1"),
        ("subject_alternative_name", "email", 0, ""),
        ("distinguished_name", "dns", 0, "CN=guest,OU=a+UID=b,O=Ham\\, Spam \\+ Co,C=DE"),
    ],
)
def test_the_user_name_comes_from_where_the_operator_says(
    source: str, san_type: str, index: int, name: str
) -> None:
    certificate = {"subject": SUBJECT, "subjectAltName": NAMES}
    assert user_name(certificate, source, san_type, index) == name


def test_a_certificate_without_names_names_nobody() -> None:
    for source in ("common_name", "subject_alternative_name", "distinguished_name"):
        assert user_name({"issuer": SUBJECT}, source) == ""
