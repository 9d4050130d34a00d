"""One object, one meaning, wherever it comes from (QUORUM-07, HTTP-41).

The sources: AMQP, PUT, POST, POST of one virtual host, `definitions import`, a file at start, the
file again on SIGHUP. What a restart or a copy of the data directory brings back is as it was.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pika
import pytest

from tests.integration.broker_process import PROJECT, clean_environment
from tests.integration.exports import FRESH, FULL, SKIPPED_OF_FULL
from tests.integration.management import ManagedBroker, managed_broker
from tests.integration.moving import blocking
from tests.waiting import wait_until

Entry = dict[str, Any]
SHOP: Final[Entry] = {"name": "shop", "default_queue_type": "quorum"}
USERS: Final = [{"name": "guest", "password": "guest", "tags": ["administrator"]}]
PERMISSIONS: Final = [
    {"user": "guest", "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"}
    for vhost in ("/", "shop")
]
# What an entry says, and what the queue is then.
PLAIN: Final[Entry] = {}
TYPES: Final[dict[str, tuple[Entry, str]]] = {
    "nothing": (PLAIN, "quorum"),
    "argument": ({"arguments": {"x-queue-type": "classic"}}, "classic"),
    "stream": ({"arguments": {"x-queue-type": "stream"}}, "stream"),
    "auto_delete": ({"auto_delete": True}, "classic"),
    "transient": ({"durable": False}, "classic"),
}


class Place:
    """A broker with a virtual host whose queues are quorum queues, and a file that it reads."""

    def __init__(self, file: Path, managed: ManagedBroker) -> None:
        self.file = file
        self.managed = managed
        self._readings = 0

    def write(self, *queues: Entry) -> None:
        """What the file has from now on."""
        self.file.write_text(document(*queues), "utf-8-sig")

    def amqp(self, name: str, entry: Entry) -> None:
        """A client's declaration."""
        with blocking(self.managed.process, "shop") as connection:
            flags = {"durable": True, "auto_delete": False, "arguments": {}, **entry}
            connection.channel().queue_declare(name, **flags)

    def put(self, name: str, entry: Entry) -> None:
        """PUT of one queue."""
        assert self.managed.ask("PUT", f"/queues/shop/{name}", entry).status in {201, 204}

    def post(self, name: str, entry: Entry) -> None:
        """POST of definitions."""
        text = document({"vhost": "shop", "name": name, **entry}).encode("utf-8-sig")
        assert self.managed.ask("POST", "/definitions", text).status == 204

    def post_vhost(self, name: str, entry: Entry) -> None:
        """POST of the definitions of one virtual host."""
        text = json.dumps({"queues": [{"name": name, **entry}]}).encode("utf-8-sig")
        assert self.managed.ask("POST", "/definitions/shop", text).status == 204

    def command(self, name: str, entry: Entry) -> None:
        """`vouchmq definitions import`."""
        said = imported(self, document({"vhost": "shop", "name": name, **entry}))
        assert said == "definitions imported\n"

    def hang_up(self, name: str, entry: Entry) -> None:
        """The file, read again."""
        self._readings += 1
        marker = f"read-{self._readings}"
        self.write({"vhost": "shop", "name": name, **entry}, {"vhost": "shop", "name": marker})
        os.kill(self.managed.process.pid, signal.SIGHUP)
        wait_until(lambda: self.managed.ask("GET", f"/queues/shop/{marker}").status == 200)

    def restart(self) -> None:
        """Stop and start the broker."""
        assert self.managed.process.stop() == 0
        self.managed.process.start()
        self.managed.wait_ready()

    def type_of(self, name: str) -> str:
        """Of which type a queue is."""
        return str(self.managed.get(f"/queues/shop/{name}")["type"])


def document(*queues: Entry) -> str:
    """Definitions with these queues."""
    return json.dumps(
        {
            "users": USERS,
            "vhosts": [{"name": "/"}, SHOP],
            "permissions": PERMISSIONS,
            "queues": list(queues),
        }
    )


def imported(place: Place, text: str) -> str:
    """What the command says of an import."""
    directory = str(place.managed.process.data_dir)
    words = ("definitions", "import", "-", "--data-dir", directory)
    run = subprocess.run(
        [sys.executable, "-m", "vouchmq", *words],
        cwd=PROJECT,
        env=clean_environment(),
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout


@pytest.fixture(scope="module")
def place(module_path: Path) -> Iterator[Place]:
    file = module_path / "definitions.json"
    at_start = [{"vhost": "shop", "name": f"start-{name}", **TYPES[name][0]} for name in TYPES]
    file.write_text(document(*at_start), "utf-8-sig")
    with managed_broker(module_path, "--load-definitions", str(file)) as broker:
        yield Place(file, broker)


SOURCES: Final[dict[str, Callable[[Place, str, Entry], None]]] = {
    "AMQP": Place.amqp,
    "PUT": Place.put,
    "POST": Place.post,
    "POST of one virtual host": Place.post_vhost,
    "command": Place.command,
    "SIGHUP": Place.hang_up,
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_queue_is_of_the_same_type_from_every_source(place: Place, source: str) -> None:
    for name, (entry, wanted) in TYPES.items():
        queue = f"{source.replace(' ', '-')}-{name}"
        SOURCES[source](place, queue, entry)
        assert (name, place.type_of(queue)) == (name, wanted)
        # Whichever is first, the other finds its queue.
        SOURCES["AMQP"](place, queue, entry)
        SOURCES[source](place, queue, entry)
        assert place.type_of(f"start-{name}") == wanted


def test_what_is_exported_is_of_its_type_wherever_it_is_imported(place: Place) -> None:
    """A classic queue stays one in a virtual host whose default is another."""
    managed = place.managed
    assert managed.ask("PUT", "/vhosts/old", {}).status == 201
    assert managed.ask("PUT", "/queues/old/q", {}).status == 201
    [queue] = managed.get("/definitions/old")["queues"]
    assert (queue["type"], queue["arguments"]) == ("classic", {})
    changed = {"default_queue_type": "quorum"}
    assert managed.ask("PUT", "/vhosts/old", changed).status == 204
    exported = managed.get("/definitions/old")
    assert managed.ask("POST", "/definitions/old", exported).status == 204
    assert managed.get("/queues/old/q")["type"] == "classic"
    assert managed.ask("PUT", "/vhosts/new", changed).status == 201
    assert managed.ask("POST", "/definitions/new", exported).status == 204
    assert managed.get("/queues/new/q")["type"] == "classic"


def test_an_export_of_rabbitmq_is_imported_and_what_is_missing_listed(place: Place) -> None:
    """As an upload, by the command, and as the file."""
    got = place.managed.ask("POST", "/definitions", json.dumps(FRESH).encode())
    assert (got.status, got.body["skipped"]) == (200, ["exchanges[0] 'amq.rabbitmq.log'"])
    got = place.managed.ask("POST", "/definitions", json.dumps(FULL).encode())
    assert (got.status, got.body["skipped"]) == (200, SKIPPED_OF_FULL)
    said = imported(place, json.dumps(FULL)).splitlines()
    # Policies, queues and bindings are there already.
    assert said == ["definitions imported", *(f"skipped: {each}" for each in SKIPPED_OF_FULL)]
    names = {each["name"] for each in place.managed.get("/queues/shop")}
    assert {"paid", "plain"} <= names
    assert place.managed.get("/queues/logs/all")["type"] == "stream"
    bindings = place.managed.get("/bindings/shop")
    assert {each["source"] for each in bindings} == {"", "orders", "ring"}


def test_the_file_is_an_export_of_rabbitmq(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(FULL))
    with managed_broker(tmp_path, "--load-definitions", str(file)) as broker:
        [line] = [
            json.loads(line)
            for line in broker.process.output().splitlines()
            if '"definitions.skipped"' in line
        ]
        assert line["items"] == SKIPPED_OF_FULL


def test_a_queue_of_the_application_does_not_keep_the_broker_from_starting(
    tmp_path: Path,
) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(document())
    with managed_broker(tmp_path, "--load-definitions", str(file)) as broker:
        place = Place(file, broker)
        place.amqp("q", PLAIN)
        place.write({"vhost": "shop", "name": "q"})
        place.restart()
        assert place.type_of("q") == "quorum"
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            place.amqp("q", {"arguments": {"x-queue-type": "classic"}})
        # A restart takes what there is from the journal, whatever the default is by then.
        assert broker.ask("PUT", "/vhosts/shop", {"default_queue_type": "classic"}).status == 204
        file.write_text(json.dumps({"users": USERS, "permissions": PERMISSIONS}))
        place.restart()
        assert place.type_of("q") == "quorum"
