"""Data directories that earlier versions wrote are opened and served by this one.

Each archive in data/ was written by `python -m tests.compatibility.write`; the manifest beside it
says what must be found. Archives are never written again: a new version adds its own.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.compatibility.archive import DATA, SUFFIX, broker_on, manifest_of, unpack
from tests.compatibility.observe import State, differences, observe, ready, settle
from tests.compatibility.probes import DELAYED_MAX, KINDS, run
from tests.integration.broker_process import run_command
from tests.integration.moving import blocking
from tests.ledger_reader import Audit, lines_in

pytestmark = pytest.mark.integration

ARCHIVES = sorted(DATA.glob(f"*{SUFFIX}"))
CLEAN = [archive for archive in ARCHIVES if archive.name.endswith(f"-clean{SUFFIX}")]


def named(archive: Path) -> str:
    return archive.name.removesuffix(SUFFIX)


class Stored:
    """An unpacked directory, what must be in it, and a broker that is not started."""

    def __init__(self, archive: Path, directory: Path, *flags: str) -> None:
        self.manifest = manifest_of(archive)
        self.broker = broker_on(directory, "--delayed-max-messages", str(DELAYED_MAX), *flags)
        unpack(archive, self.broker.data_dir)
        self.counts = {
            (queue["vhost"], queue["name"]): len(queue["messages"])
            for queue in self.manifest["queues"]
        }

    def start(self) -> None:
        """Start the broker and wait until everything is where it belongs."""
        self.broker.start()
        settle(self.broker, self.counts)

    def stop(self) -> None:
        """Stop it; nothing may have gone wrong, inside or on the disk."""
        assert self.broker.stop() == 0, self.broker.output()
        assert self.broker.complaints() == []
        done = run_command("store", "check", str(self.broker.data_dir))
        assert done.returncode == 0, done.stdout

    def observe(self, *, acking: bool = False) -> State:
        """What the broker has."""
        return observe(self.broker, self.manifest["queues"], acking=acking)


@pytest.fixture(params=ARCHIVES, ids=named)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stored]:
    """Each archive in turn."""
    stored = Stored(request.param, tmp_path)
    yield stored
    stored.broker.kill9()


@pytest.fixture(params=ARCHIVES, ids=named)
def summarised(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stored]:
    """Each archive, of which a start reads the summaries of segments where it may."""
    stored = Stored(request.param, tmp_path, "--recovery-read-bytes", "0")
    yield stored
    stored.broker.kill9()


def queue_of(state: State, name: str) -> Any:
    return next(queue for queue in state["queues"] if queue["name"] == name)


# What a manifest might say that is not so.
LIES: dict[str, Callable[[State], object]] = {
    "a message too few": lambda state: queue_of(state, "half")["messages"].pop(),
    "a message too many": lambda state: queue_of(state, "half")["messages"].append({}),
    "the order": lambda state: queue_of(state, "shared.none")["messages"].reverse(),
    "a body": lambda state: queue_of(state, "half")["messages"][3].update(body="5 other"),
    "the type of a header": lambda state: queue_of(state, "messages")["messages"][2].update(
        octets="0"
    ),
    "a flag": lambda state: queue_of(state, "half")["messages"][0].update(redelivered=False),
    "a count": lambda state: queue_of(state, "limited")["messages"][0]["properties"][
        "headers"
    ].update({"x-delivery-count": 1}),
    "an offset": lambda state: queue_of(state, "stream.count")["messages"][0]["properties"][
        "headers"
    ].update({"x-stream-offset": 0}),
    "a position": lambda state: queue_of(state, "sequence")["messages"][0]["properties"][
        "headers"
    ].update({"x-queue-seq": 1}),
    "another queue": lambda state: state["queues"].append({"vhost": "/", "name": "?"}),
    "an argument": lambda state: state["definitions"]["queues"][0]["arguments"].update(a=1),
    **{
        f"fewer {section}": lambda state, section=section: state["definitions"][section].pop()  # type: ignore[misc]
        for section in ("vhosts", "exchanges", "queues", "bindings", "policies", "parameters")
    },
}


def test_there_are_archives() -> None:
    assert CLEAN
    assert len(ARCHIVES) > len(CLEAN)


@pytest.mark.parametrize("archive", CLEAN, ids=named)
def test_a_clean_directory_is_whole(archive: Path, tmp_path: Path) -> None:
    unpack(archive, tmp_path / "data")
    done = run_command("store", "check", str(tmp_path / "data"), "--json")
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["is_sealed"]


def test_everything_is_found(stored: Stored) -> None:
    """And can be taken, once; the ledger goes on."""
    stored.start()
    seen = stored.observe(acking=True)
    assert differences(stored.manifest, seen) == []
    for lie, tell in LIES.items():
        altered = copy.deepcopy(stored.manifest)
        tell(altered)
        assert differences(altered, seen), lie
    with blocking(stored.broker) as connection:
        for queue in stored.manifest["gone"]["queues"]:
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
                connection.channel().queue_declare(queue, passive=True)
        for exchange in stored.manifest["gone"]["exchanges"]:
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
                connection.channel().exchange_declare(exchange, passive=True)
    stored.stop()
    # A dead letter that had been refused comes to where there is room now.
    full = {probe["full"] for probe in stored.manifest["probes"] if "full" in probe}
    for queue in stored.manifest["queues"]:
        if "x-stream-offset" not in queue["consume"]:
            stored.counts[queue["vhost"], queue["name"]] = int(queue["name"] in full)
    stored.start()
    stored.stop()
    audit = Audit(lines_in(stored.broker.data_dir / "ledger"))
    assert audit.faults == []
    assert audit.lost == []
    assert audit.double_ends() == []


def test_it_is_the_same_over_restarts(summarised: Stored) -> None:
    """What this version adds changes nothing of what was there."""
    summarised.start()
    with blocking(summarised.broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for queue in summarised.manifest["definitions"]["queues"]:
            if queue["vhost"] == "/":
                # Equivalent to what was declared, or this is refused.
                channel.queue_declare(
                    queue["name"],
                    durable=True,
                    auto_delete=queue["auto_delete"],
                    arguments=queue["arguments"],
                )
        publish_some(channel)
        summarised.broker.kill9()
    summarised.start()
    assert ready(summarised.broker, [("/", "new")]) == {("/", "new"): 10}
    with blocking(summarised.broker) as connection:
        connection.channel().queue_delete("new")
    summarised.stop()
    summarised.start()
    assert differences(summarised.manifest, summarised.observe()) == []
    summarised.stop()


def publish_some(channel: Any) -> None:
    """Something new, persistent and confirmed."""
    channel.queue_declare("new", durable=True)
    for number in range(10):
        channel.basic_publish("", "new", b"%d" % number, pika.BasicProperties(delivery_mode=2))


def test_features_go_on(stored: Stored) -> None:
    """Routes, limits, delays, dead letters that wait, known keys, offsets."""
    probes = stored.manifest["probes"]
    assert {probe["kind"] for probe in probes} == set(KINDS)
    stored.start()
    assert run(stored.broker, stored.manifest["queues"], probes) == []
    stored.stop()


# For each kind of probe what it would be told if something had been lost.
LOST: dict[str, dict[str, Any]] = {
    "route": {"exchange": "routed.fanout", "key": "", "headers": {}, "to": ["routed.3"]},
    "duplicate": {
        "exchange": "",
        "key": "dedup.window",
        "headers": {"x-deduplication-header": "z"},
    },
    "room": {"queue": "retry.far", "takes": 2},
    "dropping": {"queue": "policy.short", "keeps": 4},
    "held": {"exchange": "delay.flag", "key": "k", "count": 1},
    "kept letters": {"exchange": "dlx.missing", "count": 3},
    "refused letter": {"full": "limit.head", "taken": "letters.open"},
    "since": {"queue": "stream.chunks", "second": 1, "at": 300},
    "offset": {"queue": "stream.chunks", "at": 200, "begins": "chunks 200."},
}


@pytest.mark.parametrize("archive", CLEAN, ids=named)
def test_a_probe_notices_what_is_lost(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Stored(archive, tmp_path)
    stored.start()
    # Nothing will come that is waited for.
    monkeypatch.setattr("tests.compatibility.observe.LIMIT_S", 1.0)
    try:
        lies = [{"kind": kind, **what} for kind, what in LOST.items()]
        assert len(run(stored.broker, stored.manifest["queues"], lies)) == len(KINDS)
    finally:
        stored.broker.kill9()
