"""The page as a test sees it: where it is, and a visitor."""

from __future__ import annotations

from dataclasses import dataclass, field

from playwright.sync_api import ConsoleMessage, Page, expect

from tests.page.api import MemoryApi

# Addresses with the headings of what they show.
VIEWS = {
    "": "Overview",
    "queues": "Queues",
    "queues/%2F/first": "first",
    "queues/%2F/first?part=messages": "first",
    "queues/%2F/first?part=consumers": "first",
    "queues/%2F/first?part=bindings": "first",
    "queues/%2F/first?part=publish": "first",
    "exchanges": "Exchanges",
    "exchanges?view=topology": "Exchanges",
    "exchanges/%2F/orders": "orders",
    "streams": "Streams",
    "dead-letters": "Dead letters",
    "connections": "Connections",
    "channels": "Channels",
    "consumers": "Consumers",
    "vhosts": "Virtual hosts",
    "users": "Users",
    "policies": "Policies",
    "definitions": "Definitions",
    "ledger": "Ledger",
}


@dataclass
class Site:
    """A served page, and the API behind it."""

    api: MemoryApi
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


@dataclass
class Visit:
    """A browser's page, and what its console complained about: CSP violations are among that."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.text} {message.location}")

    def sign_in(self, name: str = "guest", password: str | None = None) -> None:
        self.page.goto(self.url)
        self.page.get_by_label("User name").fill(name)
        self.page.get_by_label("Password").fill(password or name)
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.locator("#main h1")).to_have_text("Overview")

    def show(self, address: str, heading: str) -> None:
        """Open a view, and wait for it."""
        self.page.goto(f"{self.url}#/{address}")
        expect(self.page.locator("#main h1")).to_have_text(heading)
