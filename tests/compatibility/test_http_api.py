"""The HTTP API answers as RabbitMQ's does, but where a difference has a reason.

A log of requests is played against a new broker and compared with what RabbitMQ 3.10.8 answered to
it; see http_api/. Where that is installed with its management plugin, the recording is compared
with it as well, so that it is known to be one.

Spec: HTTP-01 … HTTP-43
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compatibility.http_api import compare
from tests.compatibility.http_api.log import FILE, Request, steps_of
from tests.compatibility.http_api.peer import Peer
from tests.compatibility.http_api.recording import read
from tests.compatibility.http_api.replay import Answers, Player
from tests.integration.management import managed_broker

pytestmark = pytest.mark.integration


def test_every_difference_from_rabbitmq_has_a_reason(tmp_path: Path) -> None:
    with managed_broker(tmp_path) as broker, Player(broker.port, broker.process.url) as player:
        ours = player.play(steps_of(FILE.read_text()))
    found = list(compare.differences(read(), ours))
    known = compare.reasons()
    assert list(map(str, compare.unexplained(found, known))) == []
    assert compare.unused(found, known) == []
    assert compare.miscounted(found, known) == []


@pytest.mark.slow
def test_the_recording_is_what_rabbitmq_answers(tmp_path: Path) -> None:
    with Peer(tmp_path) as peer, Player(peer.http_port, peer.url) as player:
        theirs = player.play(steps_of(FILE.read_text()))
    found = compare.differences(statuses(read()), statuses(theirs))
    assert list(map(str, found)) == []


def test_the_log_has_hundreds_of_requests_and_each_is_recorded() -> None:
    steps = [step for step in steps_of(FILE.read_text()) if isinstance(step, Request)]
    assert len(steps) > 500
    assert [step.key for step in steps] == list(read())


def test_a_difference_without_a_reason_is_found() -> None:
    theirs = {"GET /a": {"status": 200, "body": [{"name": "x", "n": 1}, {"name": "y", "m": {}}]}}
    ours = {"GET /a": {"status": 200, "body": [{"name": "y", "m": []}, {"name": "x", "o": 1}]}}
    found = list(compare.differences(theirs, ours))
    assert [(each.field, each.what) for each in found] == [
        ("body.#.n", "missing"),
        ("body.#.o", "extra"),
        ("body.#.m", "kind"),
    ]
    reason = compare.Reason(("GET /a",), "body.#.[mn]", ("missing", "kind"), "…")
    assert compare.unexplained(found, [reason]) == found[1:2]
    assert compare.unused(found[1:2], [reason]) == [reason]
    assert compare.miscounted(found, [reason, reason._replace(expected=2)]) == []
    wrong = reason._replace(expected=1)
    assert compare.miscounted(found, [wrong]) == [(wrong, 2)]


def statuses(answers: Answers) -> Answers:
    """Which fields there are depends on when RabbitMQ is asked; its statuses do not."""
    return {key: {"status": answer["status"]} for key, answer in answers.items()}
