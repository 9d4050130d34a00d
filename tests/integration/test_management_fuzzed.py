"""Requests that schemathesis makes up from the OpenAPI description: each gets a described answer.

The same ones at each run, on every route but streams of events, which have no end; with what the
description allows, and with what it does not.

Spec: HTTP-01, HTTP-03, HTTP-06
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ensure_resource_availability,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.integration.management import ManagedBroker

CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    ensure_resource_availability,
]
# Of each operation with what is allowed, and as many with what is not.
EXAMPLES: Final = 4
# What fails and is meant to.
MEANT: Final = {
    # Health checks say with 503 what is wrong, so that a probe needs only the status (HTTP-30).
    "GET /health/checks/port-listener/{port}": "No active listener",
    "GET /health/checks/protocol-listener/{protocol}": "No active listener",
}
# They have no end, and test_events.py reads some of them.
STREAMS: Final = ("/events", "/events/{vhost}")


@pytest.fixture(scope="module")
def managed(module_path: Path) -> Iterator[ManagedBroker]:
    broker = ManagedBroker(module_path)
    try:
        yield broker
        assert broker.process.stop() == 0, broker.process.output()
        assert broker.process.complaints() == []
    finally:
        broker.process.kill9()


def described(managed: ManagedBroker) -> Any:
    """The API as schemathesis knows it."""
    description = managed.get("/openapi.json")
    for path in STREAMS:
        del description["paths"][path]
    schema = schemathesis.openapi.from_dict(description)
    schema.config.update(base_url=f"http://127.0.0.1:{managed.port}/api")
    return schema


def found_on(operation: Any, session: requests.Session, mode: Any) -> list[str]:
    """What is wrong with the answers of one operation."""
    wrong: list[str] = []

    @seed(20)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def play(case: Any) -> None:
        answer = case.call(session=session)
        try:
            case.validate_response(answer, checks=CHECKS)
        except FailureGroup as failures:
            wrong.extend(
                f"{answer.status_code} {answer.text}: {each}" for each in failures.exceptions
            )

    play()
    return wrong


HUGE: Final = (1 << 64, -(1 << 63) - 1)


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


def test_what_is_made_up_gets_an_answer_that_is_described(managed: ManagedBroker) -> None:
    found: dict[str, list[str]] = {}
    count = 0
    with requests.Session() as session:
        session.auth = ("guest", "guest")
        for result in described(managed).get_all_operations():
            operation = result.ok()
            count += 1
            for mode in schemathesis.GenerationMode:
                if wrong := found_on(operation, session, mode):
                    found.setdefault(operation.label, []).extend(wrong)
    assert count > 100
    for label, text in MEANT.items():
        assert all(text in each for each in found.pop(label)), label
    assert found == {}
