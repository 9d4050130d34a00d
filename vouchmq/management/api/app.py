"""The HTTP API as an ASGI application: path to route, login, answer.

    request ─▶ route (404) ─▶ method (405) ─▶ login at the broker (401) ─▶ tag (401) ─▶ its handler

Names in a path are percent-encoded, `/` too: the path is cut before it is decoded. Nobody is
remembered: each request carries its login, and the broker checks it.

Spec: HTTP-01, HTTP-02, HTTP-03
"""

from __future__ import annotations

import asyncio
import base64
import re
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote

import structlog
from msgspec import json, to_builtins
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from vouchmq.management.api.call import ANY_TAG, MAKING, Answer, Call, Streamed, Visitor
from vouchmq.management.api.errors import (
    INTERNAL,
    NOT_ALLOWED,
    NOT_AUTHORISED,
    TOO_LARGE,
    TOO_MANY,
    UNAVAILABLE,
    ApiError,
    bad_request,
    not_found,
)
from vouchmq.management.api.openapi import described
from vouchmq.management.api.streams import Streams
from vouchmq.management.broker import Broker, BrokerUnavailable, CommandRefused
from vouchmq.management.resources.table import ROUTES
from vouchmq.protocol.text import shown_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from vouchmq.management.api.call import Route

log = structlog.get_logger(__name__)

REALM: Final = 'Basic realm="VouchMQ"'
# As RabbitMQ's http_max_body; definitions of ten thousand queues take 3 MB.
MOST_BODY_BYTES: Final = 20_000_000
# Headers of all answers: nothing here is a page, and nothing is to be kept.
HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "vary": "accept-encoding, authorization, origin",
    "x-content-type-options": "nosniff",
}
JSON: Final = "application/json"
# What the broker's control commands call a bad login, and what they may call an error of theirs.
LOGIN_REFUSED: Final = 401
CODES: Final = {404: 404, 401: 401, 403: 401, 412: 412, 503: 503}
TOO_SLOW: Final = 408
# What is left of a body is not read.
CLOSE: Final = {"connection": "close"}
RETRY: Final = {"retry-after": "10"}
# In which a body has to be there.
BODY_LIMIT_S: Final = 60.0
# What stands before the explanation in texts of AMQP.
REPLY_NAME: Final = re.compile(r"[A-Z_]+ - ")
DESCRIPTION: Final = "openapi.json"


class Api:
    """Answers requests below `/api`.

    Args:
        broker: to ask
        routes: what there is
    """

    def __init__(self, broker: Broker, routes: Sequence[Route] = ROUTES) -> None:
        self._broker = broker
        self._streams = Streams()
        self._routes: dict[int, list[Route]] = {}
        for route in routes:
            self._routes.setdefault(len(route.parts), []).append(route)
        self._description = json.encode(described(routes))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        request = Request(scope, receive)
        try:
            response = await self._answered(request)
        except ApiError as error:
            response = _refusal(error)
        except BrokerUnavailable as error:
            facts = {"last_answer_ms": error.answered_at_ms}
            refusal = ApiError(UNAVAILABLE, "service_unavailable", str(error))
            response = _refusal(refusal, **facts)
        except CommandRefused as error:
            response = _refusal(error_of(error, request.method))
        except ClientDisconnect:
            return
        except Exception:
            log.exception("internal_error", where="management", path=request.url.path)
            response = _refusal(
                ApiError(INTERNAL, "internal_error", "an error in the management process")
            )
        if request.method == "HEAD":
            response = _without_body(response)
        await response(scope, receive, send)

    async def _answered(self, request: Request) -> Response:
        parts = _parts(request.scope)
        if parts == (DESCRIPTION,):
            return _response(200, self._description, {})
        place = self._find(parts)
        if place is None:
            raise not_found()
        route, names = place
        allowed = _allowed(route)
        method = "GET" if request.method == "HEAD" else request.method
        if method == "OPTIONS":
            return _response(200, b"", {"allow": allowed})
        handler = route.methods.get(method)
        if handler is None:
            return _response(NOT_ALLOWED, b"", {"allow": allowed})
        visitor = await self._log_in(request)
        call = Call(
            broker=self._broker,
            streams=self._streams,
            visitor=visitor,
            names=names,
            query=dict(parse_qsl(request.url.query, keep_blank_values=True)),
            body=await _body(request) if method not in {"GET", "DELETE"} else b"",
            method=method,
            headers=request.headers,
            origin=_origin(request),
            listening=_listening(request),
        )
        call.require(ANY_TAG)
        call.require(route.needed(method))
        found = await handler(call)
        if isinstance(found, Streamed) and request.method == "HEAD":
            await found.pieces.aclose()
        return _rendered(found)

    def _find(self, parts: Sequence[str]) -> tuple[Route, dict[str, str]] | None:
        """The route of a path, and what stands where it has names."""
        for route in self._routes.get(len(parts), ()):
            names: dict[str, str] = {}
            for wanted, part in zip(route.parts, parts, strict=True):
                if wanted.startswith("{"):
                    names[wanted[1:-1]] = part
                elif wanted != part:
                    break
            else:
                return route, names
        return None

    async def _log_in(self, request: Request) -> Visitor:
        """Who asks.

        Raises:
            ApiError: 401; 429, none is tried for now
        """
        user, password = _credentials(request.headers.get("authorization", ""))
        try:
            found = await self._broker.ask(
                "authenticate", user=user, password=password, address=_origin(request)
            )
        except CommandRefused as error:
            # The broker does not look at it: too many of this user from this address have failed.
            if error.code == TOO_MANY:
                raise ApiError(error.code, "too_many_requests", error.text, RETRY) from None
            if error.code != LOGIN_REFUSED:
                raise
            raise ApiError(NOT_AUTHORISED, "not_authorized", "Login failed") from None
        return Visitor(user, tuple(found["tags"]), frozenset(found["vhosts"]))


def api_app(broker: Broker) -> ASGIApp:
    """The application for the port of the HTTP API: what is below `/api`."""
    api, refuse = Api(broker), Starlette()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        # Not by a route of Starlette, whose patterns match no name with a line break.
        await (api if scope["type"] == "http" else refuse)(scope, receive, send)

    return app


def error_of(error: CommandRefused, method: str) -> ApiError:
    """What a command that was refused is over HTTP, with this method."""
    text = REPLY_NAME.sub("", error.text, count=1)
    status = CODES.get(error.code)
    if status == 404:
        return not_found(text if method in MAKING else "")
    if status == 401:
        return ApiError(NOT_AUTHORISED, "not_authorised", text)
    if status == 412:
        return ApiError(412, "precondition_failed", text)
    if status == UNAVAILABLE:
        return ApiError(UNAVAILABLE, "service_unavailable", text)
    return bad_request(text)


def _origin(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _listening(request: Request) -> tuple[str, str, int]:
    host, port = request.scope.get("server") or ("", 0)
    return request.url.scheme, host, port or 0


def _credentials(header: str) -> tuple[str, str]:
    """User and password of Basic authentication.

    Raises:
        ApiError: 401, there are none
    """
    kind, _, encoded = header.partition(" ")
    if kind.lower() == "basic":
        try:
            text = base64.b64decode(encoded.strip(), validate=True).decode()
        except ValueError:  # Not base64, characters that it cannot have, or no UTF-8 in it.
            raise ApiError(NOT_AUTHORISED, "not_authorized", "Login failed") from None
        user, colon, password = text.partition(":")
        if colon:
            return user, password
        raise ApiError(NOT_AUTHORISED, "not_authorized", "Login failed")
    raise ApiError(NOT_AUTHORISED, "", "", {"www-authenticate": REALM})


def _parts(scope: Scope) -> tuple[str, ...]:
    """The parts of the path behind `/api/`, decoded one by one."""
    raw = scope.get("raw_path") or scope["path"].encode()
    _, _, rest = raw.decode("ascii", "replace").lstrip("/").partition("/")
    rest = rest.removesuffix("/")
    decoded = partial(unquote, errors="surrogateescape")
    return tuple(map(decoded, rest.split("/"))) if rest else ()


async def _body(request: Request) -> bytes:
    """The body of a request.

    Raises:
        ApiError: 413, it is too large; 408, it does not come
    """
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_LIMIT_S):
            async for piece in request.stream():
                found += piece
                if len(found) > MOST_BODY_BYTES:
                    reason = f"the limit is {MOST_BODY_BYTES} bytes"
                    raise ApiError(TOO_LARGE, "payload_too_large", reason, CLOSE)
    except TimeoutError:
        reason = f"the body was not there within {BODY_LIMIT_S:.0f} s"
        raise ApiError(TOO_SLOW, "request_timeout", reason, CLOSE) from None
    return bytes(found)


def _allowed(route: Route) -> str:
    head = ("HEAD",) if "GET" in route.methods else ()
    return ", ".join([*head, *route.methods, "OPTIONS"])


def _rendered(found: object) -> Response:
    """An answer as bytes."""
    if isinstance(found, Streamed):
        return StreamingResponse(found.pieces, 200, HEADERS, found.media_type)
    if isinstance(found, Answer):
        content = b"" if found.content is None else _encoded(found.content)
        return _response(found.status, content, found.headers)
    return _response(200, _encoded(found), {})


def _encoded(content: object) -> bytes:
    """JSON of an answer: the broker's texts can be shown, names in paths may be any bytes."""
    try:
        return json.encode(content)
    except UnicodeEncodeError:
        return json.encode(shown_values(to_builtins(content)))


def _without_body(response: Response) -> Response:
    """What HEAD gets."""
    if isinstance(response, StreamingResponse):
        return Response(None, response.status_code, HEADERS, response.media_type)
    response.body = b""
    return response


def _refusal(error: ApiError, **facts: object) -> Response:
    told = {"error": error.error, "reason": error.reason, **facts}
    content = _encoded(told) if error.error else b""
    return _response(error.status, content, error.headers)


def _response(status: int, content: bytes, headers: dict[str, str]) -> Response:
    return Response(content, status, {**HEADERS, **headers}, JSON if content else None)
