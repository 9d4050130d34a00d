"""The page in a headless browser, in front of a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from playwright.sync_api import Browser, FilePayload, expect

from tests.integration.management import ManagedBroker, managed_broker
from tests.page.site import VIEWS, Visit
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.xdist_group("page")

MANY = 10_000


@pytest.fixture(scope="module")
def managed(module_path: Path) -> Iterator[ManagedBroker]:
    file = module_path / "definitions.json"
    names = ["first", "second", *(f"many-{number:05}" for number in range(MANY))]
    queue = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    exchange = {"vhost": "/", "name": "orders", "type": "topic", "durable": True}
    binding = {"vhost": "/", "source": "orders", "destination_type": "queue", "arguments": {}}
    definitions = {
        "queues": [{**queue, "name": name} for name in names],
        "exchanges": [{**exchange, "auto_delete": False, "internal": False, "arguments": {}}],
        "bindings": [{**binding, "destination": "first", "routing_key": "order.#"}],
    }
    file.write_text(json.dumps(definitions))
    with managed_broker(module_path, "--load-definitions", str(file)) as broker:
        yield broker


@pytest.fixture
def visit(chromium: Browser, managed: ManagedBroker) -> Iterator[Visit]:
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(LIMIT_S * 1000)
    visitor = Visit(context.new_page(), f"http://127.0.0.1:{managed.port}/")
    visitor.sign_in()
    yield visitor
    context.close()
    assert visitor.complaints == []


def test_all_views_are_shown_without_a_complaint(managed: ManagedBroker, visit: Visit) -> None:
    with pika.BlockingConnection(pika.URLParameters(managed.process.url)) as connection:
        channel = connection.channel()
        channel.basic_publish("orders", "order.new", b"shown")
        channel.basic_consume("second", lambda *_: None)
        for address, heading in VIEWS.items():
            visit.show(address, heading)
            expect(visit.page.locator("#main")).not_to_contain_text("Loading…")
            expect(visit.page.locator(".problem-box")).to_have_count(0)
        shown = managed.get("/connections")[0]["name"]
        visit.show("connections", "Connections")
        visit.page.get_by_role("link", name=shown.split()[0]).click()
        expect(visit.page.get_by_text("Channels (1)")).to_be_visible()
        visit.page.get_by_role("link", name=f"{shown.split()[0]} (1)").click()
        expect(visit.page.locator("#main h1")).to_have_text(f"{shown} (1)")
        expect(visit.page.locator("tbody tr")).to_have_count(1)


def test_ten_thousand_queues_are_shown_by_pages(visit: Visit) -> None:
    visit.show("queues", "Queues")
    expect(visit.page.get_by_text("1\u2013100 of 10,002")).to_be_visible()
    visit.page.get_by_label("Filter queues").fill("many-0999")
    expect(visit.page.locator("tbody tr")).to_have_count(10)
    visit.page.get_by_role("button", name="Ready").click()
    expect(visit.page.get_by_text("1\u201310 of 10 (10,002 in all)")).to_be_visible()


def test_a_phone_shows_how_much_of_a_prefetch_is_used(visit: Visit, managed: ManagedBroker) -> None:
    with pika.BlockingConnection(pika.URLParameters(managed.process.url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=2)
        channel.queue_declare("held")
        for _ in range(3):
            channel.basic_publish("", "held", b"x")
        channel.basic_consume("held", lambda *_: None, consumer_tag="holder")
        visit.page.set_viewport_size({"width": 390, "height": 844})
        visit.show("consumers", "Consumers")
        used = visit.page.get_by_text("2 of 2")
        expect(used).to_be_in_viewport(ratio=1)
        channel.queue_delete("held")


def test_the_prefetch_of_a_consumer_is_changed(visit: Visit, managed: ManagedBroker) -> None:
    with pika.BlockingConnection(pika.URLParameters(managed.process.url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=2)
        channel.basic_consume("many-00009", lambda *_: None, consumer_tag="taker")
        visit.show("queues/%2F/many-00009?part=consumers", "many-00009")
        visit.page.get_by_role("button", name="Prefetch…").click()
        visit.page.get_by_role("dialog").get_by_label("Prefetch").fill("7")
        visit.page.get_by_role("button", name="Set prefetch").click()
        expect(visit.page.get_by_text("The prefetch is 7 now.")).to_be_visible()
        expect(visit.page.get_by_text("0 of 7")).to_be_visible()


def test_the_last_audit_is_shown(visit: Visit, managed: ManagedBroker) -> None:
    page = visit.page
    visit.show("ledger", "Ledger")
    expect(page.get_by_text("No audit has told this broker")).to_be_visible()
    audit = {
        "verdict": "1 confirmed message is missing",
        "exit": 1,
        "finished_us": 1_700_000_000_000_000,
        "first_us": 1_600_000_000_000_000,
        "last_us": 1_650_000_000_000_000,
        "brokers": {"elsewhere": {"o": 3, "n": 1700}},
        "copies": 5000,
        "states": {"acked": 4999, "LOST": 1},
        "findings": {"LOST": 1},
        "queue": "orders.*",
    }
    assert managed.ask("PUT", "/ledger/audit", audit).status == 204
    visit.show("", "Overview")
    visit.show("ledger", "Ledger")
    expect(page.get_by_text("1 confirmed message is missing.")).to_be_visible()
    for text in (
        *("elsewhere, up to epoch 3, line 1,700", "This broker's ledger was not read."),
        *("queues like orders.*", "acked 4,999, LOST 1"),
    ):
        expect(page.locator("#main")).to_contain_text(text)


def test_a_chart_without_points_is_of_now(visit: Visit) -> None:
    """Of what has never happened in a queue there is nothing to draw."""
    visit.show("queues/%2F/many-00007", "many-00007")
    ends = visit.page.locator(".axis-time span:last-child")
    expect(ends).to_have_count(2)
    assert "00:00:00" not in ends.all_text_contents()


def test_messages_are_published_looked_at_and_purged(visit: Visit, managed: ManagedBroker) -> None:
    page = visit.page
    visit.show("queues/%2F/second?part=publish", "second")
    page.get_by_label("Body", exact=True).fill('{"order": 17}')
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.get_by_text("Published.")).to_be_visible()
    page.get_by_role("tab", name="Messages").click()
    page.locator("summary").first.click()
    expect(page.get_by_label("Body", exact=True)).to_have_text('{\n  "order": 17\n}')
    page.get_by_role("button", name="Purge").click()
    page.get_by_role("button", name="Purge queue").click()
    expect(page.get_by_text("second is empty.")).to_be_visible()
    assert managed.get("/queues/%2F/second")["messages"] == 0


def test_a_queue_is_added_and_deleted(visit: Visit, managed: ManagedBroker) -> None:
    page = visit.page
    visit.show("queues", "Queues")
    page.get_by_role("button", name="Add queue").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("a/b %")
    dialog.get_by_role("button", name="Add", exact=True).click()
    dialog.locator("[data-part=name]").fill("x-max-length")
    dialog.locator("[data-part=value]").fill("7")
    dialog.get_by_role("button", name="Add queue").click()
    expect(page.locator("#main h1")).to_have_text("a/b %")
    assert managed.get("/queues/%2F/a%2Fb%20%25")["arguments"] == {"x-max-length": 7}
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete queue").click()
    expect(page.locator("#main h1")).to_have_text("Queues")
    assert managed.ask("GET", "/queues/%2F/a%2Fb%20%25").status == 404


def test_a_user_is_added_with_permissions(visit: Visit, managed: ManagedBroker) -> None:
    page = visit.page
    visit.show("users", "Users")
    page.get_by_role("button", name="Add user").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("ada")
    dialog.get_by_label("Password").fill("engine")
    dialog.get_by_label("monitoring").check()
    dialog.get_by_role("button", name="Add user").click()
    expect(page.locator("#main h1")).to_have_text("ada")
    page.get_by_role("button", name="Set permissions").click()
    dialog.get_by_label("Write").fill("^ada")
    dialog.get_by_role("button", name="Set permissions").click()
    expect(page.get_by_text("Permissions set.")).to_be_visible()
    [given] = managed.get("/users/ada/permissions")
    assert (given["configure"], given["write"], given["read"]) == (".*", "^ada", ".*")
    assert managed.get("/whoami", user="ada", password="engine")["tags"] == ["monitoring"]


def test_a_policy_is_added_and_in_effect(visit: Visit, managed: ManagedBroker) -> None:
    page = visit.page
    visit.show("policies", "Policies")
    page.get_by_role("button", name="Add policy").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("short")
    dialog.get_by_label("Pattern").fill("^many-00001$")
    dialog.get_by_role("button", name="Add", exact=True).click()
    dialog.locator("[data-part=name]").fill("max-length")
    dialog.locator("[data-part=value]").fill("3")
    dialog.get_by_role("button", name="Add policy").click()
    expect(page.get_by_text("Added policy short.")).to_be_visible()
    visit.show("queues/%2F/many-00001", "many-00001")
    expect(page.locator("#main")).to_contain_text("max-length 3")
    assert managed.get("/queues/%2F/many-00001")["policy"] == "short"


def test_a_connection_is_closed(visit: Visit, managed: ManagedBroker) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(managed.process.url))
    [shown] = managed.get("/connections")
    visit.show("connections", "Connections")
    visit.page.get_by_role("link", name=shown["name"].split()[0]).click()
    visit.page.get_by_role("button", name="Close connection").click()
    visit.page.get_by_role("dialog").get_by_role("button", name="Close connection").click()
    expect(visit.page.get_by_text("Connection closed.")).to_be_visible()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="Closed by an operator"):
        while True:
            connection.process_data_events(1)


def test_chosen_messages_are_moved(visit: Visit, managed: ManagedBroker) -> None:
    page = visit.page
    with pika.BlockingConnection(pika.URLParameters(managed.process.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for body in (b"stays", b"goes"):
            channel.basic_publish("", "many-00002", body)
    visit.show("queues/%2F/many-00002?part=messages", "many-00002")
    page.get_by_label("Choose message 1").check()
    page.get_by_role("button", name="Move…").click()
    page.get_by_label("To queue").fill("many-00003")
    page.get_by_role("button", name="Move messages").click()
    expect(page.get_by_text("1 message moved to many-00003.")).to_be_visible()
    expect(page.locator("summary")).to_have_count(1)
    [moved] = managed.get("/queues/%2F/many-00003/messages")
    assert moved["payload"] == "goes"


def test_a_channel_is_closed(visit: Visit, managed: ManagedBroker) -> None:
    """Its connection stays."""
    with pika.BlockingConnection(pika.URLParameters(managed.process.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("first", passive=True)
        [shown] = managed.get("/channels")
        visit.show("channels", "Channels")
        visit.page.get_by_role("link", name=shown["name"].split()[0]).click()
        visit.page.get_by_role("button", name="Close", exact=True).click()
        dialog = visit.page.get_by_role("dialog")
        dialog.get_by_label("Reason").fill("it misbehaves")
        dialog.get_by_role("button", name="Close channel").click()
        expect(visit.page.get_by_text("Channel closed.")).to_be_visible()
        while channel.is_open:
            connection.process_data_events(1)
        connection.channel().queue_declare("first", passive=True)


def test_definitions_are_imported(visit: Visit, managed: ManagedBroker) -> None:
    page = visit.page
    queue = {"vhost": "/", "name": "imported", "durable": True, "auto_delete": False}
    log = {"vhost": "/", "name": "amq.rabbitmq.log", "type": "topic", "durable": True}
    definitions = {
        "queues": [{**queue, "arguments": {"x-max-length": 3}}],
        "exchanges": [log],
    }
    visit.show("definitions", "Definitions")
    # With a byte order mark, as editors on Windows write it.
    for content in (b"{", json.dumps(definitions).encode("utf-8-sig")):
        file = FilePayload(name="d.json", mimeType="application/json", buffer=content)
        page.get_by_label("File").set_input_files(file)
        page.get_by_role("button", name="Import").click()
        answer = "d.json: not JSON: " if content == b"{" else "d.json imported."
        expect(page.get_by_text(answer)).to_be_visible()
    # The browser itself complains of the answer to the first.
    [refused] = visit.complaints
    assert "400 (Bad Request)" in refused
    visit.complaints.clear()
    skipped = page.get_by_role("dialog", name="Not imported from d.json")
    expect(skipped.get_by_role("listitem")).to_have_text(["exchanges[0] 'amq.rabbitmq.log'"])
    skipped.get_by_role("button", name="Close").click()
    assert managed.get("/queues/%2F/imported")["arguments"] == {"x-max-length": 3}


def test_dead_letters_are_returned(visit: Visit, managed: ManagedBroker) -> None:
    page = visit.page
    with pika.BlockingConnection(pika.URLParameters(managed.process.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "many-00005"}
        channel.queue_declare("alive", durable=True, arguments=to_dead)
        channel.basic_publish("", "alive", b"died")
        method, _, _ = channel.basic_get("alive")
        channel.basic_reject(method.delivery_tag, requeue=False)
        channel.queue_declare("many-00005", passive=True)
    visit.show("queues/%2F/many-00005?part=messages", "many-00005")
    page.get_by_role("button", name="Return…").click()
    page.get_by_role("button", name="Return dead letters").click()
    expect(page.get_by_text("1 message returned.")).to_be_visible()
    [returned] = managed.get("/queues/%2F/alive/messages")
    assert returned["payload"] == "died"
