"""What tools/operate.py makes of an operator's words; a sleeping process plays the broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.operate import EXIT_UNKNOWN, operate

# Says something at every SIGHUP.
LISTENER = (
    "import signal, sys, time\n"
    "signal.signal(signal.SIGHUP, lambda *_: print(sys.argv[1], flush=True))\n"
    "print('ready', flush=True)\n"
    "time.sleep(60)\n"
)


def listening(directory: Path, says: str) -> Iterator[Path]:
    """A folder as tools/with_broker.py makes it, with a process that says this at a SIGHUP."""
    empty: dict[str, Any] = {"policies": [], "users": [], "permissions": [], "vhosts": []}
    (directory / "definitions.json").write_text(json.dumps(empty))
    log = directory / "output.log"
    with log.open("w") as stream:
        process = subprocess.Popen([sys.executable, "-c", LISTENER, says], stdout=stream)
    try:
        (directory / "pid").write_text(str(process.pid))
        while "ready" not in log.read_text():
            assert process.poll() is None
        yield directory
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """With a broker that takes everything."""
    yield from listening(tmp_path, '{"event": "definitions.loaded"}')


@pytest.fixture
def refusing(tmp_path: Path) -> Iterator[Path]:
    """With a broker that refuses what it reads."""
    yield from listening(tmp_path, '{"event": "definitions.rejected", "reason": "no"}')


def definitions(directory: Path) -> dict[str, Any]:
    """The file as it is."""
    content: dict[str, Any] = json.loads((directory / "definitions.json").read_text())
    return content


def test_a_policy_is_set_changed_and_cleared(directory: Path) -> None:
    words = ["set_policy", "-p", "v", "--priority", "9", "--apply-to", "queues", "p", "^a$"]
    assert operate(directory, [*words, '{"max-length": 1}']) == 0
    assert operate(directory, [*words, '{"max-length": 2}']) == 0
    assert definitions(directory)["policies"] == [
        {
            "vhost": "v",
            "name": "p",
            "pattern": "^a$",
            "apply-to": "queues",
            "priority": 9,
            "definition": {"max-length": 2},
        }
    ]
    assert operate(directory, ["clear_policy", "-p", "v", "p"]) == 0
    assert definitions(directory)["policies"] == []
    assert (directory / "output.log").read_text().count("definitions.loaded") == 3


def test_users_vhosts_and_permissions(directory: Path) -> None:
    for words in (["add_vhost", "v"], ["add_user", "u", "secret"]):
        assert operate(directory, words) == 0
    assert operate(directory, ["set_permissions", "-p", "v", "u", "c", "w", "r"]) == 0
    found = definitions(directory)
    assert found["vhosts"] == [{"name": "v"}]
    assert found["users"][0]["name"] == "u"
    permission = {"user": "u", "vhost": "v", "configure": "c", "write": "w", "read": "r"}
    assert found["permissions"] == [permission]


def test_a_word_that_is_not_known_changes_nothing(directory: Path) -> None:
    before = definitions(directory)
    assert operate(directory, ["stop_app", "v"]) == EXIT_UNKNOWN
    assert operate(directory, []) == EXIT_UNKNOWN
    assert definitions(directory) == before


def test_what_the_broker_refuses_fails(refusing: Path) -> None:
    assert operate(refusing, ["add_vhost", "v"]) == 1
