"""The port of the management process: the page, its sessions, and the HTTP API behind them.

    /                 the page                     /static/<hash>/…   its files
    /session          sign in, who am I, sign out  /api/…             the HTTP API

A request to the API with the cookie of a session, and without a login of its own, goes to the API
with the login of that session. If it changes something it must carry the session's CSRF token. The
login is checked by the API itself, which is asked who that would be.

Spec: HTTP-02
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final

from msgspec import DecodeError, Struct, ValidationError, json
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from vouchmq.management.web.files import StaticFile, StaticFiles
from vouchmq.management.web.sessions import LIFETIME_S, Session, Sessions

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
TOKEN_BYTES: Final = 32
MOST_LOGIN_BYTES: Final = 16384
LOGIN_LIMIT_S: Final = 10.0
YEAR_S: Final = 365 * 86400
# Sent by the page with each request. No other site can send it without being asked first.
PAGE_HEADER: Final = "x-requested-with"
PAGE_NAME: Final = "vouchmq-page"
CSRF_HEADER: Final = "x-csrf-token"
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Login(Struct, frozen=True, forbid_unknown_fields=True):
    """What the form sends."""

    username: str
    password: str


class WhoAmI(Struct, frozen=True):
    """What the API says of a login."""

    name: str
    tags: tuple[str, ...]


class WebApp:
    """The page in front of the HTTP API.

    Args:
        api: answers what is below `/api`
        files: of the page
        clock: monotonic seconds
        draw: makes keys that nobody can guess
    """

    def __init__(
        self,
        api: ASGIApp,
        files: StaticFiles | None = None,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], str] = lambda: secrets.token_urlsafe(TOKEN_BYTES),
    ) -> None:
        self._api = api
        self._files = files or StaticFiles()
        self._sessions = Sessions(clock, draw)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        path = scope["path"]
        if path == "/api" or path.startswith("/api/"):
            await self._pass_on(scope, receive, send)
            return
        request = Request(scope, receive)
        if path == "/session":
            response = await self._session(request)
        elif request.method not in {"GET", "HEAD"}:
            response = _response(405, headers={"allow": "GET, HEAD"})
        elif path == "/":
            response = _file(request, self._files.index, "no-cache")
        elif path.startswith("/static/"):
            response = self._static(request, path.removeprefix("/static/"))
        elif path == "/favicon.ico":
            response = RedirectResponse(f"static/{self._files.version}/icon.svg")
        else:
            response = _response(404, b"There is no such page.", "text/plain; charset=utf-8")
        if request.method == "HEAD":
            response.body = b""
        await response(scope, receive, send)

    def _static(self, request: Request, path: str) -> Response:
        found = self._files.find(path)
        if found is None:
            return _response(404, b"There is no such file.", "text/plain; charset=utf-8")
        return _file(request, found, f"public, max-age={YEAR_S}, immutable")

    async def _session(self, request: Request) -> Response:
        if request.method in {"GET", "HEAD"}:
            session = self._sessions.use(_key(request))
            # Nobody has signed in: no error, or else browsers log one for each visit.
            return (
                _response(200, b"null", "application/json") if session is None else _told(session)
            )
        if request.method == "POST":
            return await self._sign_in(request)
        if request.method == "DELETE":
            return self._sign_out(request)
        return _response(405, headers={"allow": "GET, HEAD, POST, DELETE"})

    async def _sign_in(self, request: Request) -> Response:
        if request.headers.get(PAGE_HEADER) != PAGE_NAME:
            return _refusal(403, "csrf", "This is for the form of the page.")
        try:
            login = json.decode(await _body(request), type=Login)
        except (DecodeError, ValidationError) as error:
            return _refusal(400, "bad_request", str(error))
        if ":" in login.username:
            return _refusal(401, "not_authorized", "Login failed")
        pair = f"{login.username}:{login.password}".encode()
        authorization = f"Basic {base64.b64encode(pair).decode()}"
        status, content = await _asked(self._api, request.scope, "/api/whoami", authorization)
        if status != 200:
            return _response(status, content, "application/json")
        found = json.decode(content, type=WhoAmI)
        # A key that somebody else has planted in this browser counts no more.
        self._sessions.close(_key(request))
        key, session = self._sessions.open(found.name, found.tags, authorization)
        response = _told(session)
        _set_cookie(response, request, key, LIFETIME_S)
        return response

    def _sign_out(self, request: Request) -> Response:
        key = _key(request)
        session = self._sessions.use(key)
        if session is None:
            return _ended()
        if not session.is_csrf_token(request.headers.get(CSRF_HEADER, "")):
            return _wrong_token()
        self._sessions.close(key)
        response = _response(204)
        _set_cookie(response, request, "", 0)
        return response

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """To the API, with the login of a session if there is one."""
        request = Request(scope)
        is_page = request.headers.get(PAGE_HEADER) == PAGE_NAME
        if "authorization" in request.headers or not (is_page or _key(request)):
            await self._api(scope, receive, send)
            return
        session = self._sessions.use(_key(request))
        refusal: Response | None = None
        if session is None:
            if is_page:
                refusal = _ended()
        elif scope["method"] not in SAFE_METHODS and not session.is_csrf_token(
            request.headers.get(CSRF_HEADER, "")
        ):
            refusal = _wrong_token()
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        if session is not None:
            scope = _with_login(scope, session.authorization)
        await self._api(scope, receive, _without_challenge(send) if is_page else send)


def _key(request: Request) -> str:
    """The key of the session that a request claims."""
    cookies = SimpleCookie()
    try:
        cookies.load(request.headers.get("cookie", ""))
    except CookieError:
        return ""
    morsel = cookies.get(_cookie_name(request))
    return morsel.value if morsel is not None else ""


def _cookie_name(request: Request) -> str:
    """Cookies of a host go to all its ports: several brokers on one machine need several names."""
    server = request.scope.get("server")
    return f"vouchmq-session-{server[1] if server else 0}"


def _set_cookie(response: Response, request: Request, key: str, max_age_s: int) -> None:
    schemes = {request.url.scheme, request.headers.get("x-forwarded-proto", "")}
    response.set_cookie(
        _cookie_name(request),
        key,
        max_age=max_age_s,
        path="/",
        secure="https" in schemes,
        httponly=True,
        samesite="strict",
    )


async def _body(request: Request) -> bytes:
    found = bytearray()
    try:
        async with asyncio.timeout(LOGIN_LIMIT_S):
            async for piece in request.stream():
                found += piece
                if len(found) > MOST_LOGIN_BYTES:
                    raise ValidationError("the request is too large")
    except TimeoutError:
        raise ValidationError("the request does not come to its end") from None
    return bytes(found)


async def _asked(app: ASGIApp, scope: Scope, path: str, authorization: str) -> tuple[int, bytes]:
    """What an application answers to a GET with this login: the status and the body."""
    status = 500
    content = bytearray()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, content
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            content += message.get("body", b"")

    asked = {
        **scope,
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
    }
    await app(_with_login(asked, authorization), receive, send)
    return status, bytes(content)


def _with_login(scope: Scope, authorization: str) -> Scope:
    return {**scope, "headers": [*scope["headers"], (b"authorization", authorization.encode())]}


def _without_challenge(send: Send) -> Send:
    """Leave out what would have the browser show a login dialog of its own."""

    async def send_on(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [each for each in message["headers"] if each[0] != b"www-authenticate"]
            message = {**message, "headers": headers}
        await send(message)

    return send_on


def _file(request: Request, file: StaticFile, keep: str) -> Response:
    headers = {"cache-control": keep, "etag": file.tag, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == file.tag:
        return _response(304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return _response(200, file.packed, file.kind, {**headers, "content-encoding": "gzip"})
    return _response(200, file.content, file.kind, headers)


def _told(session: Session) -> Response:
    told = {
        "user": {"name": session.user, "tags": session.tags},
        "csrf_token": session.csrf_token,
    }
    return _response(200, json.encode(told), "application/json")


def _ended() -> Response:
    return _refusal(401, "session_expired", "The session has ended. Sign in again.")


def _wrong_token() -> Response:
    return _refusal(403, "csrf", "The CSRF token is missing or wrong. Load the page again.")


def _refusal(status: int, error: str, reason: str) -> Response:
    return _response(status, json.encode({"error": error, "reason": reason}), "application/json")


def _response(
    status: int,
    content: bytes = b"",
    kind: str | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    given = {"cache-control": "no-store", **HEADERS, **(headers or {})}
    return Response(content, status, given, kind)
