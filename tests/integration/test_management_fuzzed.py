"""Requests that schemathesis makes up from the OpenAPI description: each gets a described answer.

`made_up_requests.py` plays them, on every route but streams of events.

Spec: HTTP-01, HTTP-03, HTTP-06
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.environments import INSTALL_LIMIT_S, environment
from tests.integration.broker_process import clean_environment
from tests.integration.management import ManagedBroker, managed_broker

PROGRAM: Final = Path(__file__).with_name("made_up_requests.py")
# Of each operation with what is allowed, and as many with what is not.
EXAMPLES: Final = 4
PLAY_LIMIT_S: Final = 240
# What fails and is meant to.
MEANT: Final = {
    # Health checks say with 503 what is wrong, so that a probe needs only the status (HTTP-30).
    "GET /health/checks/port-listener/{port}": "No active listener",
    "GET /health/checks/protocol-listener/{protocol}": "No active listener",
}
HUGE: Final = (1 << 64, -(1 << 63) - 1)


@pytest.fixture(scope="module")
def managed(module_path: Path) -> Iterator[ManagedBroker]:
    with managed_broker(module_path) as broker:
        yield broker


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/global-parameters/g", {"value": HUGE[0]}),
        ("PUT", "/parameters/c/%2F/p", {"value": [{"a": HUGE[1]}]}),
        ("PUT", "/queues/%2F/q", {"arguments": {"x": HUGE[0]}}),
        ("PUT", "/policies/%2F/p", {"pattern": "", "definition": {"max-length": HUGE[0]}}),
        ("PUT", "/user-limits/guest/max-channels", {"value": HUGE[0]}),
        ("POST", "/definitions", {"global_parameters": [{"name": "g", "value": HUGE[0]}]}),
        ("GET", f"/queues/%2F/q/messages?first={HUGE[0]}", None),
        ("PUT", "/global-parameters/g", b'{"value": ' + b"[" * 100_000),
        ("PUT", "/global-parameters/g", b'{"value": ' + b"[" * 200 + b"]" * 200 + b"}"),
    ],
)
def test_what_no_broker_could_keep_is_refused(
    managed: ManagedBroker, method: str, path: str, body: object
) -> None:
    """Found by schemathesis: an internal error, and by an import no export any more."""
    got = managed.ask(method, path, body)
    assert (got.status, got.body["error"]) == (400, "bad_request")
    assert "64 bits" in got.body["reason"] or "nested too deeply" in got.body["reason"]
    assert managed.get("/global-parameters") == []


# The first run makes the environment.
@pytest.mark.timeout(INSTALL_LIMIT_S + PLAY_LIMIT_S)
def test_what_is_made_up_gets_an_answer_that_is_described(managed: ManagedBroker) -> None:
    done = subprocess.run(
        [
            *(environment("schemathesis"), PROGRAM),
            *(f"http://127.0.0.1:{managed.port}/api", str(EXAMPLES)),
        ],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=PLAY_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["operations"] > 100
    wrong = told["wrong"]
    for label, text in MEANT.items():
        assert all(text in each for each in wrong.pop(label)), label
    assert wrong == {}
