"""The page in a headless browser, in front of an API in memory. Console errors fail any test."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect

from tests.page.site import VIEWS, Site, Visit

pytestmark = pytest.mark.xdist_group("page")

MANY = 10_000
# What a control needs besides itself: a name for those who do not see it.
NAMELESS = """() => [...document.querySelectorAll("button, a, input, select, textarea")]
    .filter((each) => !(each.getAttribute("aria-label") || each.textContent.trim()
        || [...(each.labels ?? [])].some((label) => label.textContent.trim())))
    .map((each) => each.outerHTML)"""
# Of each text with its background: too little contrast by the formula of WCAG.
PALE = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((each) => each / 255)
    .map((each) => (each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
    .reduce((sum, each, index) => sum + each * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = parse(getComputedStyle(each).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = new Set();
  for (const element of document.querySelectorAll("#app *:not(svg *)")) {
    const says = [...element.childNodes].some((each) => each.nodeType === 3 && each.data.trim());
    if (!says || element.closest("[disabled], .visually-hidden")) continue;
    const [one, other] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) found.add(`${ratio.toFixed(1)} ${element.className} ${element.textContent}`);
  }
  return [...found];
}"""
WIDER = "document.documentElement.scrollWidth - window.innerWidth"


def a_message(number: int) -> dict[str, object]:
    return {
        "payload": json.dumps({"number": number}),
        "payload_bytes": 12,
        "exchange": "orders",
        "payload_encoding": "string",
        "routing_key": "order.new",
        "redelivered": False,
        "properties": {"headers": {"x-death": [{"reason": "expired", "queue": "q", "count": 2}]}},
    }


def test_all_views_are_shown_without_a_complaint(visit: Visit, site: Site) -> None:
    site.api.queues["first"] = [a_message(1)]
    visit.sign_in()
    for address, heading in VIEWS.items():
        visit.show(address, heading)
        expect(visit.page.locator("#main")).not_to_contain_text("Loading…")
        expect(visit.page.locator(".problem-box")).to_have_count(0)
        assert visit.page.title() == f"{heading} \u2013 VouchMQ"


def test_a_broker_that_does_not_answer_is_told_and_since_when(visit: Visit, site: Site) -> None:
    site.api.queues["first"] = []
    visit.sign_in()
    visit.show("queues", "Queues")
    site.api.silent_since_ms = 1_790_000_000_000
    visit.page.keyboard.press("r")
    told = visit.page.locator(".problem-box")
    when = visit.page.evaluate("new Date(1790000000000).toTimeString().slice(0, 8)")
    expect(told).to_contain_text("The broker does not answer. The last answer was at 2026-09-21 ")
    expect(told).to_contain_text(f"{when}, ")
    expect(told).to_contain_text("What is shown is older.")
    expect(visit.page.locator("#main")).to_contain_text("first")
    # Another view has nothing to show, and a page that is loaded anew neither.
    visit.page.goto(f"{visit.url}#/exchanges")
    for _ in range(2):
        expect(told).to_contain_text(f"{when}, ")
        expect(told).not_to_contain_text("older")
        visit.page.reload()
    site.api.silent_since_ms = None
    visit.page.keyboard.press("r")
    expect(visit.page.locator("#main h1")).to_have_text("Exchanges")
    expect(told).to_have_count(0)
    assert [each for each in visit.complaints if "503" not in each] == []
    visit.complaints.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_controls_have_names_and_texts_have_contrast(visit: Visit, site: Site, scheme: str) -> None:
    site.api.queues["first"] = [a_message(1)]
    visit.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    visit.sign_in()
    for address, heading in VIEWS.items():
        visit.show(address, heading)
        expect(visit.page.locator("#main")).not_to_contain_text("Loading…")
        assert visit.page.evaluate(NAMELESS) == [], address
        assert visit.page.evaluate(PALE) == [], address


def test_a_phone_shows_all_views_without_scrolling_sideways(visit: Visit, site: Site) -> None:
    site.api.queues["first"] = [a_message(1)]
    site.api.queues["a-queue-with-a-very-long-name." * 8] = []
    visit.page.set_viewport_size({"width": 390, "height": 844})
    visit.sign_in()
    for address, heading in VIEWS.items():
        visit.show(address, heading)
        expect(visit.page.locator("#main")).not_to_contain_text("Loading…")
        assert visit.page.evaluate(WIDER) <= 0, address
    visit.page.get_by_role("button", name="Menu").click()
    visit.page.get_by_role("link", name="Queues", exact=True).click()
    expect(visit.page.locator("#main h1")).to_have_text("Queues")


def test_a_wrong_password_is_refused(visit: Visit) -> None:
    visit.page.goto(visit.url)
    visit.page.get_by_label("User name").fill("guest")
    visit.page.get_by_label("Password").fill("wrong")
    visit.page.get_by_role("button", name="Sign in").click()
    expect(visit.page.get_by_role("alert")).to_have_text("Login failed")
    assert visit.page.context.cookies() == []
    # The browser itself notes the status.
    assert [each for each in visit.complaints if "401" not in each] == []
    visit.complaints.clear()


def test_signing_out_ends_the_session(visit: Visit) -> None:
    visit.sign_in()
    [cookie] = visit.page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    visit.page.get_by_role("button", name="Sign out").click()
    expect(visit.page.get_by_label("Password")).to_be_visible()
    assert visit.page.context.cookies() == []
    visit.page.reload()
    expect(visit.page.get_by_label("Password")).to_be_visible()


def test_a_changed_password_ends_the_session(visit: Visit, site: Site) -> None:
    visit.sign_in()
    site.api.passwords["guest"] = ("another", ["administrator"])
    visit.page.keyboard.press("r")
    expect(visit.page.get_by_text("Your session has ended.")).to_be_visible()
    assert [each for each in visit.complaints if "401" not in each] == []
    visit.complaints.clear()


def test_messages_are_published_looked_at_moved_and_purged(visit: Visit, site: Site) -> None:
    page, api = visit.page, site.api
    api.queues["first"] = []
    api.queues["second"] = []
    visit.sign_in()
    visit.show("queues/%2F/first?part=publish", "first")
    for text in ('{"order": 17}', "plain <b>text</b>"):
        page.get_by_label("Body", exact=True).fill(text)
        page.get_by_role("button", name="Publish", exact=True).click()
        expect(page.get_by_text("Published.").last).to_be_visible()
        expect(page.get_by_label("Body", exact=True)).to_have_value(text)
    page.get_by_role("tab", name="Messages").click()
    page.locator("summary").first.click()
    expect(page.get_by_label("Body", exact=True)).to_have_text('{\n  "order": 17\n}')
    page.get_by_label("Format of bodies").select_option("hex")
    expect(page.get_by_label("Body", exact=True)).to_contain_text("7b 22 6f 72 64 65 72")
    expect(page.locator("summary").nth(1)).to_contain_text("plain <b>text</b>")

    page.get_by_role("button", name="Move…").click()
    page.get_by_label("To queue").fill("third")
    page.get_by_label("How many").fill("1")
    page.get_by_role("button", name="Move messages").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text("there is no such queue")
    page.get_by_label("To queue").fill("second")
    page.get_by_role("button", name="Move messages").click()
    expect(page.get_by_text("1 message moved to second.")).to_be_visible()
    assert [len(each) for each in api.queues.values()] == [1, 1]

    page.get_by_role("button", name="Purge").click()
    page.get_by_role("button", name="Purge queue").click()
    expect(page.get_by_text("first is empty.")).to_be_visible()
    assert [len(each) for each in api.queues.values()] == [0, 1]
    # The browser itself notes the refused move.
    assert [each for each in visit.complaints if "400" not in each] == []
    visit.complaints.clear()


def test_a_queue_with_messages_is_deleted_once_its_name_is_typed(visit: Visit, site: Site) -> None:
    page, api = visit.page, site.api
    api.queues["first"] = [a_message(1)]
    visit.sign_in()
    visit.show("queues/%2F/first", "first")
    page.get_by_role("button", name="Delete").click()
    page.get_by_label("Type first to confirm").fill("firs")
    page.get_by_role("button", name="Delete queue").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_be_visible()
    assert "first" in api.queues
    page.get_by_label("Type first to confirm").fill("first")
    page.get_by_role("button", name="Delete queue").click()
    expect(page.locator("#main h1")).to_have_text("Queues")
    assert api.queues == {}


def test_a_queue_is_added_with_arguments(page: Page, site: Site) -> None:
    page.goto(f"{site.url}#/queues")
    page.get_by_role("button", name="Add queue").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("orders/new %")
    dialog.get_by_role("button", name="Add", exact=True).click()
    dialog.locator("[data-part=name]").fill("x-message-ttl")
    dialog.locator("[data-part=value]").fill("soon")
    dialog.get_by_role("button", name="Add queue").click()
    expect(dialog.get_by_role("alert")).to_have_text("x-message-ttl: soon is not a number.")
    dialog.locator("[data-part=value]").fill("60000")
    dialog.get_by_role("button", name="Add queue").click()
    expect(page.locator("#main h1")).to_have_text("orders/new %")
    assert list(site.api.queues) == ["orders/new %"]


def test_ten_thousand_queues_are_read_by_pages(visit: Visit, site: Site) -> None:
    page, api = visit.page, site.api
    api.queues |= {f"queue-{number:05}": [] for number in range(MANY)}
    visit.sign_in()
    visit.show("queues", "Queues")
    expect(page.get_by_text("1\u2013100 of 10,000")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(100)
    page.get_by_role("button", name="Next page").click()
    expect(page.locator("tbody tr").first).to_contain_text("queue-00100")
    page.get_by_label("Filter queues").fill("0042")
    expect(page.get_by_text("1\u201311 of 11 (10,000 in all)")).to_be_visible()
    page.get_by_role("button", name="Name").click()
    expect(page.locator("tbody tr").first).to_contain_text("queue-00429")
    page.reload()
    expect(page.get_by_text("1\u201311 of 11 (10,000 in all)")).to_be_visible()


def test_an_empty_broker_shows_how_to_begin(page: Page) -> None:
    expect(page.get_by_label("Program")).to_contain_text("channel.confirm_delivery()")
    expect(page.get_by_label("Program")).to_contain_text("port=5672")


def test_what_the_user_may_not_is_not_offered(visit: Visit, site: Site) -> None:
    site.api.queues["first"] = []
    visit.sign_in("watcher", "secret")
    expect(visit.page.get_by_role("link", name="Queues", exact=True)).to_be_visible()
    for name in ("Users", "Policies", "Definitions"):
        expect(visit.page.get_by_role("link", name=name, exact=True)).to_have_count(0)


def test_what_the_broker_cannot_is_greyed_out_with_the_reason(visit: Visit, site: Site) -> None:
    site.api.queues["first"] = []
    del site.api.routes["/queues/{vhost}/{name}/contents"]
    del site.api.routes["/users"]
    visit.sign_in()
    visit.show("queues/%2F/first", "first")
    for name in ("Purge", "Pause"):
        button = visit.page.get_by_role("button", name=name)
        expect(button).to_be_disabled()
        expect(button).to_have_attribute("title", "This broker does not offer it.")
    expect(visit.page.get_by_role("link", name="Users", exact=True)).to_have_count(0)


def test_an_alarm_is_shown_on_every_view(visit: Visit, site: Site) -> None:
    site.api.is_alarmed = True
    visit.sign_in()
    visit.show("connections", "Connections")
    expect(visit.page.get_by_role("alert")).to_contain_text("Memory alarm")


LEADER = {
    "role": "leader",
    "is_serving": True,
    "epoch": 3,
    "leader": "broker-a",
    "leader_address": "a.example:5672",
    "stream": "orders",
    "log_id": "00ff",
    "server": "10.0.0.1:4222",
    "committed_sequence": 70123,
    "sequence": 70123,
    "uncommitted_bytes": 0,
    "trouble": "",
    "log": {"bytes": 3 << 30, "max_bytes": 200 << 30, "replicas": 3, "current_replicas": 3},
    "standbys": [
        {
            "node": "broker-b",
            "address": "b.example:5672",
            "can_take_over": True,
            "sequence": 70120,
            "lag": 3,
            "lag_bytes": 2048,
            "heard_s": 0.25,
        },
        {
            "node": "broker-c",
            "address": "",
            "can_take_over": False,
            "sequence": 4,
            "lag": 70119,
            "lag_bytes": 3 << 20,
            "heard_s": 9.0,
        },
    ],
}


def test_a_shared_log_is_shown_with_its_standbys(visit: Visit, site: Site) -> None:
    site.api.shared_log = LEADER
    visit.sign_in()
    panel = visit.page.get_by_role("region", name="Shared log")
    expect(panel).to_contain_text("broker-a a.example:5672")
    expect(panel).to_contain_text("70,123")
    expect(panel).to_contain_text("3 GiB of 200 GiB")
    expect(panel.locator(".tag")).to_have_count(0)
    first, second = visit.page.locator(".standbys tbody tr").all()
    expect(first).to_have_text("broker-bb.example:5672yes70,1203, 2 KiB250 ms ago")
    expect(first.locator(".bad")).to_have_count(0)
    expect(second).to_have_text(re.compile("broker-c.no470,119, 3 MiB9 s ago"))
    expect(second.locator(".bad")).to_have_text("no")
    expect(visit.page.get_by_role("alert")).to_have_count(0)


def test_a_shared_log_that_commits_nothing_is_marked(visit: Visit, site: Site) -> None:
    site.api.shared_log = {**LEADER, "standbys": [], "trouble": "no server answers"}
    site.api.is_log_stalled = True
    visit.sign_in()
    expect(visit.page.get_by_role("alert")).to_contain_text("Replication alarm")
    panel = visit.page.get_by_role("region", name="Shared log")
    expect(panel.locator(".bad")).to_have_text(["alarm", "trouble"])
    expect(visit.page.get_by_role("region", name="Standbys")).to_contain_text("none can take over")


def test_a_shared_log_that_is_nearly_full_is_marked(visit: Visit, site: Site) -> None:
    site.api.shared_log = {**LEADER, "log": {"bytes": 9 << 30, "max_bytes": 10 << 30}}
    visit.sign_in()
    panel = visit.page.get_by_role("region", name="Shared log")
    expect(panel.locator(".warn")).to_have_text("nearly full")


def test_without_a_shared_log_nothing_of_it_is_shown(page: Page) -> None:
    expect(page.get_by_role("region", name="Journal and node")).to_be_visible()
    expect(page.get_by_role("region", name="Shared log")).to_have_count(0)
    expect(page.get_by_role("region", name="Standbys")).to_have_count(0)


def test_the_keyboard_reaches_filter_and_views(visit: Visit, site: Site) -> None:
    site.api.queues["first"] = []
    visit.sign_in()
    page = visit.page
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.locator("#main h1")).to_have_text("Queues")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("/")
    page.keyboard.type("nothing")
    expect(page.get_by_text("No queue has a name like this.")).to_be_visible()
    expect(page.get_by_label("Filter queues")).to_be_focused()


def test_half_typed_text_survives_a_refresh(visit: Visit, site: Site) -> None:
    site.api.queues["first"] = []
    visit.sign_in()
    visit.show("queues/%2F/first?part=publish", "first")
    visit.page.get_by_label("Body", exact=True).fill("half a mess")
    site.api.queues["first"].append(a_message(1))
    visit.page.get_by_label("Refresh").select_option("1 s")
    expect(visit.page.get_by_role("tab", name="Messages 1")).to_be_visible()
    expect(visit.page.get_by_label("Body", exact=True)).to_have_value("half a mess")


def test_the_theme_can_be_chosen(page: Page) -> None:
    background = "getComputedStyle(document.documentElement).backgroundColor"
    before = page.evaluate(background)
    page.get_by_label("Theme").select_option("dark")
    assert page.evaluate(background) != before
    page.reload()
    expect(page.locator("#main h1")).to_have_text("Overview")
    assert page.evaluate(background) != before
    assert page.get_by_label("Theme").input_value() == "dark"


def test_no_other_origin_is_asked(visit: Visit, site: Site) -> None:
    asked: list[str] = []
    visit.page.on("request", lambda request: asked.append(request.url))
    site.api.queues["first"] = []
    visit.sign_in()
    for address, heading in VIEWS.items():
        visit.show(address, heading)
    assert asked
    assert [url for url in asked if not url.startswith(visit.url)] == []
