"""The page as it is served: its files, sessions and headers, without a browser."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from starlette.types import Message, Receive, Scope, Send

from vouchmq.management.web.app import WebApp
from vouchmq.management.web.files import FOLDER, StaticFiles
from vouchmq.management.web.sessions import IDLE_S, LIFETIME_S, MOST_SESSIONS, Sessions

PAGE = {"x-requested-with": "vouchmq-page"}
IMPORT = re.compile(r"""(?:from|import) "(\.[^"]+)";""")
LOGIN = {"username": "guest", "password": "guest"}


class Clock:
    """Seconds, as a test has them pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Keys:
    """Keys in a row."""

    def __init__(self) -> None:
        self.last = 0

    def __call__(self) -> str:
        self.last += 1
        return f"key{self.last}"


class Api:
    """An API that knows guest, and tells what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.password = "guest"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        authorization = headers.get(b"authorization", b"").decode()
        self.asked.append((scope["method"], scope["path"], authorization))
        right = base64.b64encode(f"guest:{self.password}".encode()).decode()
        is_right = authorization == f"Basic {right}"
        body: object = {"name": "guest", "tags": ["administrator"]}
        if not is_right:
            body = {"error": "not_authorized", "reason": "Login failed"}
        challenge = [] if is_right else [(b"www-authenticate", b'Basic realm="x"')]
        await send(
            {
                "type": "http.response.start",
                "status": 200 if is_right else 401,
                "headers": challenge,
            }
        )
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})


class Got(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Asks the application, and keeps the cookie of its session."""

    def __init__(self) -> None:
        self.api = Api()
        self.clock = Clock()
        self.app = WebApp(self.api, clock=self.clock, draw=Keys())
        self.cookie = ""

    async def ask(
        self,
        method: str,
        path: str,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        scheme: str = "http",
    ) -> Got:
        given = {"cookie": self.cookie, **(headers or {})}
        scope: Scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "scheme": scheme,
            "server": ("127.0.0.1", 15672),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }
        told: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            told.append(message)

        await self.app(scope, receive, send)
        start, end = told
        found = {name.decode(): value.decode() for name, value in start["headers"]}
        return Got(start["status"], found, end["body"])

    async def sign_in(self, login: object = LOGIN, scheme: str = "http") -> Got:
        got = await self.ask("POST", "/session", PAGE, json.dumps(login).encode(), scheme)
        if "set-cookie" in got.headers:
            self.cookie = got.headers["set-cookie"].split(";")[0]
        return got


async def test_the_page_names_files_that_browsers_may_keep() -> None:
    client = Client()
    index = await client.ask("GET", "/")
    assert index.status == 200
    assert index.headers["cache-control"] == "no-cache"
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    addresses = re.findall(r'(?:src|href)="([^"]+)"', index.body.decode())
    assert len(addresses) > 20
    for address in addresses:
        got = await client.ask("GET", f"/{address}")
        assert got.status == 200, address
        assert "immutable" in got.headers["cache-control"]
        packed = await client.ask("GET", f"/{address}", {"accept-encoding": "gzip, br"})
        assert gzip.decompress(packed.body) == got.body
        again = await client.ask("GET", f"/{address}", {"if-none-match": got.headers["etag"]})
        assert (again.status, again.body) == (304, b"")


async def test_other_versions_and_files_are_not_there() -> None:
    client = Client()
    for path in ("/static/0123456789abcdef/js/main.js", "/static/x/../../app.py", "/else"):
        assert (await client.ask("GET", path)).status == 404
    assert (await client.ask("POST", "/")).status == 405


async def test_every_answer_of_the_page_has_the_strict_headers() -> None:
    client = Client()
    for path in ("/", "/session", "/static/none", "/else"):
        got = await client.ask("GET", path)
        policy = got.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert got.headers["x-content-type-options"] == "nosniff"
        assert got.headers["referrer-policy"] == "no-referrer"


def test_a_changed_file_changes_all_addresses(tmp_path: Path) -> None:
    (tmp_path / "js").mkdir()
    (tmp_path / "index.html").write_text('<head><script src="{{static}}js/a.js"></script></head>')
    (tmp_path / "js" / "a.js").write_text("one")
    before = StaticFiles(tmp_path)
    (tmp_path / "js" / "a.js").write_text("two")
    after = StaticFiles(tmp_path)
    assert before.version != after.version
    assert f'"static/{after.version}/js/a.js"'.encode() in after.index.content
    assert after.find(f"{before.version}/js/a.js") is None


def test_modules_import_what_is_there_and_nothing_from_elsewhere() -> None:
    scripts = sorted(FOLDER.rglob("*.js"))
    assert scripts
    for script in scripts:
        text = script.read_text(encoding="utf-8")
        for address in IMPORT.findall(text):
            assert (script.parent / address).resolve().is_file(), (script, address)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
    for path in FOLDER.rglob("*.*"):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|url\(|@import", text), path
        assert not re.search(r"<(?:script|style)>| style=\"| on\w+=\"", text), path


async def test_a_session_stands_for_the_login() -> None:
    client = Client()
    assert (await client.ask("GET", "/session")).json is None
    got = await client.sign_in()
    assert got.status == 200
    assert got.json == {
        "user": {"name": "guest", "tags": ["administrator"]},
        "csrf_token": "key1",
    }
    flags = got.headers["set-cookie"].lower()
    assert "httponly" in flags
    assert "samesite=strict" in flags
    assert "secure" not in flags
    assert (await client.ask("GET", "/session")).json == got.json
    assert (await client.ask("GET", "/api/queues", PAGE)).status == 200
    assert client.api.asked[-1][2].startswith("Basic ")


async def test_over_tls_the_cookie_is_for_tls_only() -> None:
    assert "secure" in (await Client().sign_in(scheme="https")).headers["set-cookie"].lower()


async def test_what_changes_something_needs_the_token() -> None:
    client = Client()
    token = (await client.sign_in()).json["csrf_token"]
    asked = len(client.api.asked)
    for method in ("PUT", "POST", "DELETE", "PATCH"):
        for headers in ({}, PAGE, {**PAGE, "x-csrf-token": "wrong"}):
            got = await client.ask(method, "/api/queues/%2F/q", headers)
            assert (got.status, got.json["error"]) == (403, "csrf")
    assert (await client.ask("DELETE", "/session", PAGE)).status == 403
    assert len(client.api.asked) == asked
    right = {**PAGE, "x-csrf-token": token}
    assert (await client.ask("DELETE", "/api/queues/%2F/q", right)).status == 200


async def test_a_form_of_another_site_signs_nobody_in() -> None:
    client = Client()
    got = await client.ask("POST", "/session", {}, json.dumps(LOGIN).encode())
    assert (got.status, client.api.asked) == (403, [])


async def test_a_login_of_its_own_needs_no_token_and_no_session() -> None:
    client = Client()
    await client.sign_in()
    right = f"Basic {base64.b64encode(b'guest:guest').decode()}"
    got = await client.ask("DELETE", "/api/queues/%2F/q", {"authorization": right})
    assert got.status == 200


async def test_without_any_login_the_api_asks_for_one_but_not_the_page() -> None:
    client = Client()
    plain = await client.ask("GET", "/api/queues")
    assert (plain.status, "www-authenticate" in plain.headers) == (401, True)
    page = await client.ask("GET", "/api/queues", PAGE)
    assert (page.status, page.json["error"]) == (401, "session_expired")
    assert "www-authenticate" not in page.headers


async def test_a_wrong_login_opens_no_session() -> None:
    client = Client()
    for login in ({**LOGIN, "password": "x"}, {"username": "a:b", "password": "guest"}):
        got = await client.sign_in(login)
        assert (got.status, got.json["reason"]) == (401, "Login failed")
        assert "set-cookie" not in got.headers
    for body in (b"", b"[]", b'{"username": 1, "password": ""}', b"x" * 20_000):
        assert (await client.ask("POST", "/session", PAGE, body)).status == 400


async def test_a_changed_password_counts_at_once() -> None:
    client = Client()
    await client.sign_in()
    client.api.password = "another"
    got = await client.ask("GET", "/api/queues", PAGE)
    assert (got.status, got.json["error"]) == (401, "not_authorized")
    assert "www-authenticate" not in got.headers


async def test_signing_out_ends_the_session() -> None:
    client = Client()
    token = (await client.sign_in()).json["csrf_token"]
    got = await client.ask("DELETE", "/session", {**PAGE, "x-csrf-token": token})
    assert got.status == 204
    assert "max-age=0" in got.headers["set-cookie"].lower()
    # Also for whoever still has the cookie.
    assert (await client.ask("GET", "/session")).json is None
    assert (await client.ask("GET", "/api/queues", PAGE)).status == 401


async def test_a_session_ends_when_it_is_not_used() -> None:
    client = Client()
    await client.sign_in()
    client.clock.now += IDLE_S - 1
    assert (await client.ask("GET", "/api/queues", PAGE)).status == 200
    client.clock.now += IDLE_S
    assert (await client.ask("GET", "/api/queues", PAGE)).status == 401


async def test_a_session_ends_after_some_hours_however_it_is_used() -> None:
    client = Client()
    await client.sign_in()
    while client.clock.now < LIFETIME_S - IDLE_S:
        client.clock.now += IDLE_S / 2
        assert (await client.ask("GET", "/session")).json is not None
    client.clock.now = LIFETIME_S
    assert (await client.ask("GET", "/session")).json is None


async def test_signing_in_again_ends_the_session_before() -> None:
    client = Client()
    await client.sign_in()
    before = client.cookie
    await client.sign_in()
    assert client.cookie != before
    client.cookie = before
    assert (await client.ask("GET", "/session")).json is None


def test_sessions_are_limited_and_the_longest_unused_goes_first() -> None:
    sessions = Sessions(Clock(), Keys())
    keys = [sessions.open("guest", (), "")[0] for _ in range(MOST_SESSIONS)]
    assert sessions.use(keys[0]) is not None
    newest, _ = sessions.open("guest", (), "")
    assert sessions.use(keys[1]) is None
    assert sessions.use(keys[0]) is not None
    assert sessions.use(newest) is not None
