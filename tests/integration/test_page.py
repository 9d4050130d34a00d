"""The page of a real broker's management process: its files, and a session against real logins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.management import ManagedBroker, ask, managed_broker

PAGE = {"X-Requested-With": "vouchmq-page"}


@pytest.fixture(scope="module")
def managed(module_path: Path) -> Iterator[ManagedBroker]:
    with managed_broker(module_path) as broker:
        yield broker


def test_the_page_and_its_files_are_served(managed: ManagedBroker) -> None:
    index = ask(managed.port, "GET", "/")
    assert index.status == 200
    [script] = re.findall(r'type="module" src="([^"]+)"', index.body)
    assert "shell(" in ask(managed.port, "GET", f"/{script}").body


def test_a_session_is_a_login_of_the_broker(managed: ManagedBroker) -> None:
    login = {"username": "guest", "password": "guest"}
    wrong = ask(managed.port, "POST", "/session", {**login, "password": "x"}, headers=PAGE)
    assert (wrong.status, wrong.body["reason"]) == (401, "Login failed")
    opened = ask(managed.port, "POST", "/session", login, headers=PAGE)
    assert opened.body["user"] == {"name": "guest", "tags": ["administrator"]}
    cookie = {**PAGE, "Cookie": opened.headers["set-cookie"].split(";")[0]}
    assert ask(managed.port, "GET", "/api/whoami", headers=cookie).body["name"] == "guest"
    token = {**cookie, "X-CSRF-Token": opened.body["csrf_token"]}
    assert ask(managed.port, "DELETE", "/session", headers=cookie).status == 403
    assert ask(managed.port, "DELETE", "/session", headers=token).status == 204
    assert ask(managed.port, "GET", "/api/whoami", headers=cookie).status == 401


def test_a_user_without_a_tag_is_not_let_in(
    tmp_path: Path,
) -> None:
    file = tmp_path / "vouchmq.toml"
    file.write_text('[[users]]\nname = "plain"\npassword = "plain"\n')
    broker = ManagedBroker(tmp_path, "--config", str(file))
    try:
        login = {"username": "plain", "password": "plain"}
        got = ask(broker.port, "POST", "/session", login, headers=PAGE)
        assert (got.status, got.body["reason"]) == (401, "Not management user")
        assert "set-cookie" not in got.headers
    finally:
        broker.process.kill9()
