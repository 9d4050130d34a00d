"""The lines below the ready line: an address that works, and no password that is a secret."""

from __future__ import annotations

import pytest

from vouchmq.server.cli.first_steps import first_steps
from vouchmq.server.edge.accounts import UserAccount
from vouchmq.server.edge.settings import Settings


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        (Settings(), "amqp://guest:guest@127.0.0.1:5673/"),
        (Settings(host=("0.0.0.0",)), "amqp://guest:guest@127.0.0.1:5673/"),
        (Settings(host=("::",)), "amqp://guest:guest@127.0.0.1:5673/"),
        (Settings(host=("::1", "10.0.0.1")), "amqp://guest:guest@[::1]:5673/"),
        (Settings(default_pass="hush"), "amqp://USER:PASSWORD@127.0.0.1:5673/"),
        (Settings(users=(UserAccount("u"),)), "amqp://USER:PASSWORD@127.0.0.1:5673/"),
    ],
)
def test_the_address_is_one_that_works(settings: Settings, url: str) -> None:
    text = first_steps(settings, 5673)
    assert f" {url}\n" in text
    assert "hush" not in text
    assert "pip install pika" in text
