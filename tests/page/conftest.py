"""A headless Chromium, and the page in front of an API in memory."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.page.api import MemoryApi
from tests.page.site import Site, Visit
from tests.waiting import LIMIT_S, wait_until
from vouchmq.management.web.app import WebApp

CHROMIUM = shutil.which("chromium")


# Not for longer than a module: Playwright has a loop that runs, which asyncio's tests cannot have.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs Debian's package chromium")
    # As root it has no sandbox.
    args = ["--no-sandbox"] if os.geteuid() == 0 else []
    expect.set_options(timeout=LIMIT_S * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=args)
        yield browser
        browser.close()


@pytest.fixture
def site() -> Iterator[Site]:
    api = MemoryApi()
    server = uvicorn.Server(
        uvicorn.Config(WebApp(api), port=0, log_config=None, access_log=False, lifespan="off")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started)
    yield Site(api, server.servers[0].sockets[0].getsockname()[1])
    server.should_exit = True
    thread.join()


@pytest.fixture
def visit(chromium: Browser, site: Site) -> Iterator[Visit]:
    """A visitor of the page who has not signed in; errors in the console fail the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(LIMIT_S * 1000)
    visitor = Visit(context.new_page(), site.url)
    yield visitor
    context.close()
    assert visitor.complaints == []


@pytest.fixture
def page(visit: Visit) -> Page:
    """The page of a visitor who has signed in as guest."""
    visit.sign_in()
    return visit.page
