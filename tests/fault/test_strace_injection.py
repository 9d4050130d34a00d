"""The disk fails, kills or dawdles at an exact system call, injected by strace.

Counts are per process: the broker's own writes and its helper's syncs are counted apart.
Spec: CONF-07, CONF-12, DURABLE-10, DURABLE-21, LIMIT-15, TX-08, CONN-61
"""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pamqp.commands as amqp
import pamqp.heartbeat
import pytest

from tests.fault.campaign import FLAGS, Campaign
from tests.fault.clients import (
    Client,
    Declarer,
    PikaTransactor,
    Scene,
    declare_all,
    everybody,
    load,
)
from tests.fault.injected import START_LIMIT_S, WRITES, some_or_all
from tests.fault.ledger import End, Ledger
from tests.fault.planted import VARIABLE
from tests.integration.broker_process import BrokerProcess
from tests.integration.raw_client import HEARTBEAT, RawClient, content, frame, method

ONE_SEGMENT: Final = ("--disk-free-limit", "0")
# What `declare_all` needs of syncs and writes, and some more.
SETTLED_IN: Final = 30

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]


class Struck:
    """A broker below strace, and afterwards a healthy one on what it left."""

    def __init__(
        self,
        directory: Path,
        inject: str,
        program: str = "vouchmq",
        flags: tuple[str, ...] = FLAGS,
    ) -> None:
        calls = inject.split(":")[0]
        # Without --seccomp-bpf: strace 6.1 injects no signals with it.
        prefix = (
            *("strace", "-f", "-qq", "-o", str(directory / "trace.log")),
            *("-e", f"trace={calls}", "-e", "signal=none", "-e", f"inject={inject}"),
        )
        self.broker = BrokerProcess(directory, flags=flags, prefix=prefix, program=program)
        self.ledger = Ledger(directory / "ledger.log")
        self._directory = directory
        self._program = program

    def scene(self) -> Scene:
        """For clients of the broker below strace."""
        return Scene(self.broker.url, self.ledger, "0", 1, threading.Event())

    def judge(self, end: End = "kill") -> list[str]:
        """What is not as promised, when a broker without strace is started on the same data."""
        healthy = BrokerProcess(self._directory, flags=FLAGS, program=self._program)
        healthy.forgiven = ("store.failed",)
        healthy.start(START_LIMIT_S)
        try:
            return Campaign(healthy, self.ledger, 1, end).judge(random.Random(1))
        finally:
            healthy.kill9()


@pytest.fixture
def strike(tmp_path: Path, referee_url: str | None) -> Iterator[Callable[..., Struck]]:
    """Starts a broker with an injection: `strike("fdatasync:error=EIO:when=40")`."""
    if referee_url is not None:
        pytest.skip("injects faults into VouchMQ's own process")
    made: list[Struck] = []

    def start(inject: str, program: str = "vouchmq", flags: tuple[str, ...] = FLAGS) -> Struck:
        place = tmp_path / str(len(made))
        place.mkdir()
        struck = Struck(place, inject, program, flags)
        made.append(struck)
        struck.broker.start(START_LIMIT_S)
        return struck

    yield start
    for struck in made:
        struck.broker.kill9()
        struck.ledger.__exit__(None, None, None)


@contextmanager
def under_load(
    struck: Struck, who: Callable[[Scene], tuple[Client, ...]] = everybody
) -> Iterator[None]:
    """Clients at work on a broker whose queues exist."""
    declare_all(struck.broker.url)
    with load(struck.scene(), who):
        yield


def failures(broker: BrokerProcess) -> list[str]:
    """The lines that tell why the broker has given up."""
    return [line for line in broker.output().splitlines() if "store.failed" in line]


@pytest.mark.parametrize("when", some_or_all([61], range(SETTLED_IN, 130, 7)))
def test_one_failed_sync_ends_it_and_nothing_is_confirmed_any_more(
    strike: Callable[..., Struck], when: int
) -> None:
    # Only this one fails: a broker that tries again would go on as if nothing had happened.
    struck = strike(f"fdatasync:error=EIO:when={when}")
    with under_load(struck):
        assert struck.broker.wait(60) == 1
    assert len(failures(struck.broker)) == 1
    assert "cannot sync" in failures(struck.broker)[0]
    struck.broker.forgiven = ("store.failed",)
    assert struck.broker.complaints() == []
    struck.ledger.refused_may_stay = True
    # As after a power cut: what was delivered since the last good sync need not be known.
    assert struck.judge("power") == []


@pytest.mark.parametrize("when", some_or_all([47], range(SETTLED_IN, 130, 7)))
def test_the_helper_killed_at_a_sync(
    strike: Callable[..., Struck], monkeypatch: pytest.MonkeyPatch, when: int
) -> None:
    monkeypatch.setenv(VARIABLE, "helper-only")
    struck = strike(f"fdatasync:signal=KILL:when={when}", "tests.fault.planted")
    with under_load(struck):
        assert struck.broker.wait(60) == 1
    assert len(failures(struck.broker)) == 1
    struck.ledger.refused_may_stay = True
    # As after a power cut: what was delivered since the last good sync need not be known.
    assert struck.judge("power") == []


@pytest.mark.parametrize("when", some_or_all([101, 160], range(SETTLED_IN, 300, 5)))
def test_the_broker_killed_at_a_write(strike: Callable[..., Struck], when: int) -> None:
    struck = strike(f"{WRITES}:signal=KILL:when={when}")
    with under_load(struck):
        assert struck.broker.wait(60) == -signal.SIGKILL
    assert struck.judge() == []


def transactors(scene: Scene) -> tuple[Client, ...]:
    """Commits and nothing else: up to twelve messages each."""
    return (PikaTransactor(scene),)


@pytest.mark.parametrize("when", some_or_all([44], range(SETTLED_IN, 60)))
def test_the_broker_killed_at_a_commit(strike: Callable[..., Struck], when: int) -> None:
    struck = strike(f"{WRITES}:signal=KILL:when={when}")
    with under_load(struck, transactors):
        assert struck.broker.wait(60) == -signal.SIGKILL
    assert struck.ledger.groups
    assert struck.judge() == []


def test_a_commit_in_several_blocks_is_caught(
    strike: Callable[..., Struck], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "split-turns")
    found: list[str] = []
    for when in range(60, 68):
        struck = strike(f"{WRITES}:signal=KILL:when={when}", "tests.fault.planted")
        with under_load(struck, transactors):
            struck.broker.wait(60)
        found = struck.judge()
        if found:
            break
    assert any("is there in part" in what for what in found), found


def test_a_failed_sync_nacks_what_waits_for_it(strike: Callable[..., Struck]) -> None:
    struck = strike("fdatasync:error=EIO:when=10")
    with RawClient(struck.broker.url).handshake() as client:
        client.open_channel()
        declare = amqp.Queue.Declare(queue="q", durable=True)
        client.call(1, declare, amqp.Queue.DeclareOk)
        client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        acked: list[int] = []
        pending: list[int] = []
        seqno = 0
        while True:
            batch = range(seqno + 1, seqno + 6)
            client.send(b"".join(content(1, "", "q", b"%d" % n, persistent=True) for n in batch))
            pending, seqno = list(batch), batch[-1]
            while pending:
                _, value = client.read()
                if not isinstance(value, amqp.Basic.Ack):
                    break
                done = [n for n in pending if n <= (value.delivery_tag or 0)]
                acked += done
                pending = [n for n in pending if n not in done]
            if pending:
                break
        nacked: list[int] = []
        while isinstance(value, amqp.Basic.Nack):
            tag = value.delivery_tag or 0
            nacked += [n for n in pending if (n <= tag if value.multiple else n == tag)]
            _, value = client.read()
    assert isinstance(value, amqp.Connection.Close), "something was settled after the failure"
    assert nacked == pending
    assert acked == list(range(1, pending[0]))
    assert acked
    assert struck.broker.wait(60) == 1


def without_definitions(scene: Scene) -> tuple[Client, ...]:
    """All but the one who declares, whose connection would end at the first refusal."""
    return tuple(client for client in everybody(scene) if not isinstance(client, Declarer))


def test_writes_find_no_room_for_a_while(strike: Callable[..., Struck]) -> None:
    struck = strike(f"{WRITES}:error=ENOSPC:when=80..100")
    ledger = struck.ledger
    with under_load(struck, without_definitions):
        struck.broker.wait_until(lambda: "journal.disk_full" in struck.broker.output())
        # Until the disk takes blocks again, nobody can be told what was delivered meanwhile.
        struck.broker.wait_until(lambda: "alarm.cleared" in struck.broker.output())
        confirmed = ledger.confirmed_count
        struck.broker.wait_until(lambda: ledger.confirmed_count > confirmed + 100)
        struck.broker.kill9()
    assert failures(struck.broker) == []
    assert struck.judge() == []


def test_a_write_that_fails_ends_it(strike: Callable[..., Struck]) -> None:
    # Only this one fails: what the disk has broken once is not given to it again.
    # The first segment must not be full by then: its summary is written beside the journal, and
    # a disk that refuses that costs nothing.
    struck = strike(f"{WRITES}:error=EIO:when=80", flags=ONE_SEGMENT)
    with under_load(struck, without_definitions):
        assert struck.broker.wait(60) == 1
    assert len(failures(struck.broker)) == 1
    assert "cannot write to the journal: Input/output error" in failures(struck.broker)[0]
    # What an earlier write had taken and no sync yet was refused as well.
    struck.ledger.refused_may_stay = True
    assert struck.judge("power") == []


SLOW_S: Final = 1.2
HEARTBEAT_S: Final = 1


def test_a_slow_disk_holds_up_neither_heartbeats_nor_transient_messages(
    strike: Callable[..., Struck],
) -> None:
    struck = strike(f"fdatasync:delay_exit={int(SLOW_S * 1e6)}:when=14+")
    url = struck.broker.url
    with RawClient(url).handshake() as client:
        client.open_channel()
        for queue, durable in (("slow", True), ("quick", False)):
            declare = amqp.Queue.Declare(queue=queue, durable=durable)
            client.wait_at_most(20)
            client.call(1, declare, amqp.Queue.DeclareOk)
    with (
        RawClient(url).handshake(heartbeat_s=HEARTBEAT_S) as idle,
        RawClient(url).handshake() as patient,
        RawClient(url).handshake() as quick,
    ):
        gaps: list[float] = []
        listener = threading.Thread(target=listen, args=(idle, gaps, 3 * SLOW_S))
        listener.start()
        patient.open_channel()
        patient.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        quick.open_channel()
        quick.send(method(1, amqp.Basic.Consume(queue="quick", no_ack=True)))
        quick.expect(amqp.Basic.ConsumeOk)
        began = time.monotonic()
        seqno = 0
        while time.monotonic() - began < 3 * SLOW_S:
            seqno += 1
            patient.send(content(1, "", "slow", bytes(1000), persistent=True))
            quick.send(content(1, "", "quick", b"now"))
            quick.deliveries(1)
            time.sleep(0.01)
        listener.join()
        patient.confirmed_up_to(seqno)
    # One a sync, if they waited for it; and a heartbeat at the end of each.
    assert seqno > 30
    assert len(gaps) >= 2 * 3 * SLOW_S - 2
    assert max(gaps) < SLOW_S
    struck.broker.kill9()


def listen(client: RawClient, gaps: list[float], duration_s: float) -> None:
    """Collect the seconds between the broker's heartbeats, and send our own."""
    began = last = time.monotonic()
    while last - began < duration_s:
        client.send(frame(HEARTBEAT, 0, b""))
        _, value = client.read()
        assert isinstance(value, pamqp.heartbeat.Heartbeat)
        now = time.monotonic()
        gaps.append(now - last)
        last = now
