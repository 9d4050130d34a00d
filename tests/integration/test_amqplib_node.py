"""Node's amqplib: one script for each scenario, which prints what it saw as JSON.

amqplib is installed with npm into the project's cache the first time; without npm these
tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Names
from tests.integration.conftest import INSTALL_LIMIT_S
from tests.integration.samples import BODY_SIZES
from tests.waiting import LIMIT_S

SCRIPTS = Path(__file__).parent / "amqplib"

Run = Callable[..., Any]


@pytest.fixture
def run(node_path: Path, url: str, names: Names) -> Run:
    """Runs a scenario on fresh names and gives what it printed."""

    def scenario(name: str, *arguments: object) -> Any:
        done = subprocess.run(
            ["node", str(SCRIPTS / f"{name}.js"), url, names(), *map(str, arguments)],
            env={**os.environ, "NODE_PATH": str(node_path)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return scenario


@pytest.mark.timeout(INSTALL_LIMIT_S + 2 * LIMIT_S)
def test_confirms_in_all_three_styles(run: Run) -> None:
    assert run("confirms") == {
        "oneByOne": 50,
        "asynchronous": 1000,
        "refused": 0,
        "messageCount": 1350,
        "inOrder": True,
    }


def test_unroutable_mandatory_messages_return_before_their_confirm(run: Run) -> None:
    events = run("returns")
    for text in ("a", "b"):
        back = events.index(["return", 312, "NO_ROUTE", text])
        assert back < events.index(["confirm", True, text])
    assert len(events) == 4


def test_requeued_messages_return_to_their_places(run: Run) -> None:
    assert run("requeue") == [
        ["1", True],
        ["3", True],
        ["5", True],
        ["6", True],
        ["7", False],
        ["8", False],
    ]


def test_prefetch_for_each_consumer_and_for_the_channel(run: Run) -> None:
    assert run("prefetch") == {"limited": [[1, 2, 3], [11, 12]], "total": 10}


def test_rpc_over_reply_queue_and_direct_reply_to(run: Run) -> None:
    squares = {f"c{n}": str(n * n) for n in range(10)}
    assert run("rpc") == {
        "overQueue": squares,
        "overReplyTo": squares,
        "generated": True,
        "direct": 1,
    }


def test_cancel_notification_and_queue_life_times(run: Run) -> None:
    assert run("cancel") == {"cancelled": True, "lockedCode": 405, "goneCode": 404, "again": 405}


def test_exchanges_of_all_types(run: Run) -> None:
    assert run("exchanges") == {
        "t": ["matched"],
        "h": ["headers", "through"],
        "f": ["alternate"],
    }


def test_bodies_of_every_size(run: Run) -> None:
    assert run("bodies", *BODY_SIZES) == [[size, True] for size in BODY_SIZES]


def test_properties_and_headers_come_back(run: Run) -> None:
    result = run("properties")
    assert result["wrong"] == [], result["got"]
    assert result["headers"], result["got"]["headers"]


def test_errors_carry_code_and_text(run: Run) -> None:
    result = run("errors")
    assert (result["softCode"], result["hardCode"]) == (404, 530)
    assert "NOT_FOUND - no exchange '" in result["softText"]
    assert "NOT_ALLOWED - attempt to reuse consumer tag 'twice'" in result["hardText"]
    assert result["still"]
