"""URLs of brokers: what stands in them, several at once, and no password in any text."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from vouchmq.kit.bulk.url import Target, targets


def one(url: str) -> Target:
    (target,) = targets(url)
    return target


@pytest.mark.parametrize(
    ("url", "vhost"),
    [
        ("amqp://h", "/"),
        ("amqp://h/", "/"),
        ("amqp://h/%2F", "/"),
        ("amqp://h//", "/"),
        ("amqp://h/shop", "shop"),
        ("amqp://h/a%2Fb%20c", "a/b c"),
        ("amqp://h/заказы", "заказы"),
    ],
)
def test_the_virtual_host_is_decoded(url: str, vhost: str) -> None:
    assert one(url).vhost == vhost


def test_what_is_not_said_is_what_everybody_takes() -> None:
    plain, secure = targets("amqp://h, amqps://h")
    assert (plain.user, plain.password, plain.port) == ("guest", "guest", 5672)
    assert (secure.port, secure.has_tls) == (5671, True)


def test_user_and_password_are_decoded_and_the_password_hidden() -> None:
    target = one("amqp://us%40er:pa%2Fss,w%3Ard@h:1234/v")
    assert (target.user, target.password) == ("us@er", "pa/ss,w:rd")
    assert "pa/ss" not in str(target) + repr(target)
    assert str(target) == "amqp://us@er@h:1234/v"


def test_a_comma_in_a_password_does_not_end_the_url() -> None:
    found = targets("amqp://u:a,b@h1/v,amqp://u:c@h2")
    assert [(each.host, each.password) for each in found] == [("h1", "a,b"), ("h2", "c")]


def test_parameters_of_other_clients_are_understood() -> None:
    target = one("amqp://[::1]:7/v?heartbeat=12&name=etl&timeout=2.5")
    assert (target.host, target.heartbeat_s, target.name, target.timeout_s) == (
        "::1",
        12,
        "etl",
        2.5,
    )
    assert str(target) == "amqp://guest@[::1]:7/v"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://u:geheim@h/", "url: must begin with amqp:// or amqps://"),
        ("", "url: must begin with"),
        ("amqp://u:geheim@h:port/", "url: host or port cannot be read"),
        ("amqp://u:ge:heim@h:99999/", "url: host or port cannot be read"),
        ("amqp://u:geheim@/v", "url: names no host"),
        ("amqp://u:ge#heim@h/v", "url: "),
        ("amqp://u:geheim@h/?cafile=/x", "cafile applies only to amqps://"),
        ("amqp://u:geheim@h/?colour=red", "no parameter 'colour'"),
        ("amqp://u:geheim@h/?heartbeat=often", "heartbeat must be a number of seconds"),
        ("amqp://h1, amqp://u:geheim@h2:x", "url 2 of 2: host or port"),
    ],
)
def test_a_wrong_url_is_told_without_its_password(url: str, text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        targets(url)
    error: BaseException | None = caught.value
    while error is not None:
        assert "heim" not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_tls_is_checked_unless_the_url_says_not_to() -> None:
    checked = one("amqps://h").tls_context()
    assert checked.verify_mode == ssl.CERT_REQUIRED
    assert checked.check_hostname
    trusting = one("amqps://h?no_verify_ssl=1").tls_context()
    assert trusting.verify_mode == ssl.CERT_NONE


def test_files_that_cannot_be_used_are_named_by_their_parameter(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cafile, capath or cadata: "):
        one(f"amqps://u:geheim@h?cafile={tmp_path}/none.pem").tls_context()
    with pytest.raises(ValueError, match="certfile or keyfile: ") as caught:
        one(f"amqps://u:geheim@h?certfile={tmp_path}/none.pem").tls_context()
    assert "geheim" not in str(caught.value)
