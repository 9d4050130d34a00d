"""Requests that schemathesis makes up from an OpenAPI description; prints what is wrong as JSON.

`made_up_requests.py URL EXAMPLES` reads URL/openapi.json, and plays so many requests with what each
operation allows, and as many with what it does not. They are the same ones in each run. On standard
output: how many operations there are, and by their names what is wrong with answers.

It runs in an environment of its own: schemathesis changes Hypothesis for the whole process.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

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

LOGIN: Final = ("guest", "guest")
CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    ensure_resource_availability,
]
# Streams of events have no end; test_events.py reads some of them.
ENDLESS: Final = "/events"


def described(url: str) -> Any:
    """The API as schemathesis knows it."""
    description = requests.get(f"{url}/openapi.json", timeout=60).json()
    for path in [path for path in description["paths"] if path.startswith(ENDLESS)]:
        del description["paths"][path]
    schema = schemathesis.openapi.from_dict(description)
    schema.config.update(base_url=url)
    return schema


def found_on(operation: Any, session: Any, mode: Any, count: int) -> list[str]:
    """What is wrong with the answers of one operation."""
    wrong: list[str] = []

    @seed(20)
    @settings(
        max_examples=count,
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
            told = f"{answer.status_code} {answer.text}"
            wrong.extend(f"{told}: {each}" for each in failures.exceptions)

    play()
    return wrong


def main() -> None:
    """Play them all."""
    url, count = sys.argv[1], int(sys.argv[2])
    wrong: dict[str, list[str]] = {}
    operations = [result.ok() for result in described(url).get_all_operations()]
    with requests.Session() as session:
        session.auth = LOGIN
        for operation in operations:
            for mode in schemathesis.GenerationMode:
                if found := found_on(operation, session, mode, count):
                    wrong.setdefault(operation.label, []).extend(found)
    sys.stdout.write(json.dumps({"operations": len(operations), "wrong": wrong}))


if __name__ == "__main__":
    main()
