"""The list of servers that an operator writes."""

from __future__ import annotations

import pytest

from vouchmq.server.replication.addresses import AddressError, Server, parse_servers
from vouchmq.server.replication.credentials import Credentials


def test_a_list() -> None:
    servers, credentials = parse_servers("nats://a.example, tls://b.example:5222,nats://[::1]:1,")
    assert servers == (
        Server("a.example", 4222, needs_tls=False),
        Server("b.example", 5222, needs_tls=True),
        Server("::1", 1, needs_tls=False),
    )
    assert credentials == Credentials()
    assert [str(each) for each in servers] == ["a.example:4222", "b.example:5222", "[::1]:1"]


def test_credentials_in_front_of_hosts() -> None:
    _, credentials = parse_servers("nats://me:a%40b@one,nats://me:a%40b@two")
    assert credentials == Credentials(user="me", password="a@b")
    _, credentials = parse_servers("nats://token@one,nats://two")
    assert credentials == Credentials(token="token")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no server"),
        (" , ", "no server"),
        ("a.example:4222", "no address"),
        ("http://a.example", "no address"),
        ("nats://", "no address"),
        ("nats://a:99999", "no address"),
        ("nats://a:4222/x", "behind its port"),
        ("nats://a,nats://a:4222", "twice"),
        ("nats://x:y@a,nats://x:z@b", "the same user"),
    ],
)
def test_what_names_no_server(text: str, reason: str) -> None:
    with pytest.raises(AddressError, match=reason):
        parse_servers(text)


def test_no_password_in_an_error() -> None:
    with pytest.raises(AddressError) as raised:
        parse_servers("http://me:secret@a.example")
    assert "secret" not in str(raised.value)
    assert "a.example" in str(raised.value)
