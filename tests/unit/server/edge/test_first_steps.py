"""The lines below the ready line: an address that works, and no password that is a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from vouchmq.server.edge.first_steps import first_steps, started_as
from vouchmq.server.settings.accounts import UserAccount
from vouchmq.server.settings.settings import Settings


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


def test_how_to_go_on_is_what_was_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(tmp_path / "vouchmq" / "__main__.py"), "serve"])
    monkeypatch.setattr("sys.executable", str(tmp_path / ".venv" / "bin" / "python"))
    assert started_as() == ".venv/bin/python -m vouchmq"
    monkeypatch.setattr("sys.executable", "/usr/bin/python3")
    assert started_as() == "/usr/bin/python3 -m vouchmq"
    monkeypatch.setattr("sys.argv", ["vouchmq", "serve"])
    assert started_as() == "vouchmq"
    assert "  Settings: a b serve --help\n" in first_steps(Settings(), 5673, "a b")
