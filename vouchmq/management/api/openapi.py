"""The OpenAPI description of the HTTP API, made from the table of routes.

Served at /api/openapi.json, without a login: it says nothing of a broker.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from msgspec import json

from vouchmq.server.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vouchmq.management.api.call import Route

LIST_PARAMETERS: Final = {
    "columns": ("string", "only these columns, separated by commas; `a.b` is one inside another"),
    "sort": ("string", "column to sort by"),
    "sort_reverse": ("boolean", "largest first"),
    "page": ("integer", "number of the page, from 1 on; the answer is an object with `items`"),
    "page_size": ("integer", "1 … 500, by default 100"),
    "name": ("string", "only what has this in its name"),
    "use_regex": ("boolean", "`name` is a regular expression"),
}
NAME: Final = re.compile(r"\{(\w+)\}")
ANSWERS: Final = {
    "400": "bad request",
    "404": "no such object",
    "412": "something else has to be done before",
    "408": "the body does not come",
    "413": "the body is too large",
    "429": "too many failed logins, streams or requests",
    "503": "the broker does not answer",
}


def described(routes: Iterable[Route]) -> dict[str, Any]:
    """The description of these routes."""
    every = list(routes)
    bodies = {body for route in every for body in route.bodies.values()}
    ordered = sorted(bodies, key=lambda body: body.__name__)
    schemas, components = json.schema_components(
        ordered, ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in every:
        path = paths.setdefault(f"/{'/'.join(route.parts)}", {})
        for method in route.methods:
            path[method.lower()] = _operation(route, method, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "VouchMQ HTTP API", "version": VERSION},
        "servers": [{"url": "/api"}],
        "security": [{"basic": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
            "responses": {
                "refusal": {
                    "description": "why it is refused",
                    "content": {
                        "application/json": {
                            "schema": {
                                "type": "object",
                                "properties": {
                                    "error": {"type": "string"},
                                    "reason": {"type": "string"},
                                    "last_answer_ms": {"type": ["integer", "null"]},
                                },
                            }
                        }
                    },
                }
            },
        },
    }


def _operation(route: Route, method: str, schema_of: dict[type[Any], Any]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in NAME.findall(route.path)
    ]
    if method == "GET":
        known = {**route.parameters, **(LIST_PARAMETERS if route.is_list else {})}
        parameters += [
            {"name": name, "in": "query", "description": text, "schema": {"type": kind}}
            for name, (kind, text) in known.items()
        ]
    refusal = {"$ref": "#/components/responses/refusal"}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{method.lower()} {route.path}",
        "parameters": parameters,
        "responses": {
            **{code: {"description": text} for code, text in _successes(method).items()},
            **dict.fromkeys(ANSWERS, refusal),
            # Without a login there is no body (HTTP-02).
            "401": {"description": "no login, a wrong one, or one that may not"},
        },
    }
    if method in route.bodies:
        operation["requestBody"] = {
            "content": {"application/json": {"schema": schema_of[route.bodies[method]]}}
        }
    return operation


def _successes(method: str) -> dict[str, str]:
    if method == "GET":
        return {"200": "what was asked for"}
    if method == "POST":
        return {"200": "done", "201": "created", "204": "done"}
    return {"201": "created", "204": "done"} if method == "PUT" else {"204": "done"}
