"""A leading broker is lost or in trouble, in each way that there is; three machines, three servers.

All wait for events; what takes time is `ha_takeover_after_s`, three seconds here.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pamqp.commands as amqp
import psutil
import pytest

from tests.engine.servers import MISSING, program
from tests.failover.clients import publish
from tests.failover.planted import BUSY, DIE, PROGRAM
from tests.failover.sites import SiteBroker, Sites
from tests.failover.watched import SILENCE_S, watched
from tests.integration.raw_client import RawClient
from tests.waiting import wait_until
from vouchmq.server.edge.control.client import ask

pytestmark = [pytest.mark.slow, pytest.mark.skipif(program() is None, reason=MISSING)]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Three machines; each test leaves them with a leader and two standbys."""
    directory = tmp_path_factory.mktemp("leaders")
    flags = ("--test-commands", "on")
    with Sites(directory, flags=flags, takeover_after_s="3", programs=(PROGRAM,) * 3) as made:
        made.start()
        yield made
    shutil.rmtree(directory)


def replaced(sites: Sites, leader: SiteBroker) -> SiteBroker:
    """Wait until another one leads."""
    return sites.wait_for_leader(but=leader)


def is_standby_again(sites: Sites, broker: SiteBroker) -> None:
    """Wait until a broker that was deposed has begun again."""
    wait_until(lambda: broker.can_take_over, sites.evidence)


def test_a_leader_that_is_killed(sites: Sites) -> None:
    leader = sites.wait_for_leader()
    with watched(sites, "killed") as load:
        leader.kill9()
        replaced(sites, leader)
        leader.begin()
        load.goes_on(claims=1)
    sites.wait_for_standbys(2)


def test_a_leader_that_is_paused_and_replaced(sites: Sites) -> None:
    leader = sites.wait_for_leader()
    with watched(sites, "paused") as load:
        leader.signal(signal.SIGSTOP)
        replaced(sites, leader)
        leader.signal(signal.SIGCONT)
        is_standby_again(sites, leader)
        load.goes_on(claims=1)
    assert leader.is_running


def test_a_leader_whose_sync_hangs(sites: Sites) -> None:
    leader = sites.wait_for_leader()
    with watched(sites, "hangs", silence_s=SILENCE_S) as load:
        ask(leader.data_dir, "test hold confirms")
        replaced(sites, leader)
        load.goes_on(claims=1)
        # It reads the log although its sync hangs, and begins again without it.
        is_standby_again(sites, leader)
        load.goes_on(claims=1)


@contextmanager
def failing_syncs(broker: SiteBroker) -> Iterator[None]:
    """From now on each sync of the broker and of its helpers fails with EIO."""
    family = [psutil.Process(broker.pid), *psutil.Process(broker.pid).children(recursive=True)]
    pids = [word for each in family for word in ("-p", str(each.pid))]
    calls = "fdatasync,fsync"
    inject = ("-e", f"trace={calls}", "-e", f"inject={calls}:error=EIO", "-e", "signal=none")
    tracer = subprocess.Popen(
        ["strace", "-f", "-qq", "-o", "/dev/null", *inject, *pids], stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        tracer.terminate()
        tracer.wait()


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_leader_whose_sync_fails(sites: Sites) -> None:
    leader = sites.wait_for_leader()
    leader.forgiven = ("store.failed",)
    with watched(sites, "fails") as load:
        with failing_syncs(leader):
            assert leader.wait() == 1
        replaced(sites, leader)
        leader.begin()
        load.goes_on(claims=1)
    assert "store.failed" in leader.output()
    sites.wait_for_standbys(2)


def test_a_leader_whose_disk_is_full_refuses_and_leads_on(sites: Sites) -> None:
    """What it refused is in no log: the next leader does not have it."""
    leader, epoch = sites.wait_for_leader(), sites.epoch()
    with RawClient(leader.url).handshake() as client:
        client.open_channel()
        client.call(1, amqp.Queue.Declare(queue="full", durable=True), amqp.Queue.DeclareOk)
        client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        client.send(publish("full", b"before", b""))
        client.confirmed_up_to(1)
        ask(leader.data_dir, "test set disk", state="full")
        client.send(publish("full", b"refused", b""))
        client.expect(amqp.Basic.Nack)
        ask(leader.data_dir, "test set disk", state="ok")
    assert sites.epoch() == epoch
    leader.hand_over()
    following = replaced(sites, leader)
    with RawClient(following.url).handshake() as client:
        client.open_channel()
        assert client.ready_count("full") == 1
    is_standby_again(sites, leader)


def test_standbys_that_claim_at_once(sites: Sites) -> None:
    """Both read the handover when they go on: one claim is committed, and there is one leader."""
    leader = sites.wait_for_leader()
    others = sites.others(leader)
    with watched(sites, "at-once") as load:
        sites.wait_for_standbys(2)
        for each in others:
            each.signal(signal.SIGSTOP)
        leader.hand_over()
        leader.wait_for_log("the lead was handed over")
        for each in others:
            each.signal(signal.SIGCONT)
        sites.wait_for_leader()
        load.goes_on(claims=1)
        sites.wait_for_standbys(2)
        assert [each.is_serving for each in sites.brokers].count(True) == 1


@pytest.mark.parametrize("place", ["claim", pytest.param("recovery", marks=pytest.mark.campaign)])
def test_a_standby_that_dies_with_its_claim_or_in_its_recovery(sites: Sites, place: str) -> None:
    """The claim is committed, and nobody knows: the epoch has no leader, and the next one comes."""
    leader = sites.wait_for_leader()
    dying, last = sites.others(leader)
    with watched(sites, f"dies-{place}") as load:
        (dying.data_dir.parent / DIE).write_text(place, "ascii")
        last.signal(signal.SIGSTOP)
        leader.kill9()
        assert dying.wait() == -signal.SIGKILL
        last.signal(signal.SIGCONT)
        assert replaced(sites, leader) is last
        load.goes_on(claims=2)
        leader.begin()
        dying.begin()
        sites.wait_for_standbys(2)


def is_over(sites: Sites, broker: SiteBroker) -> None:
    """Wait until a broker has found its file."""
    wait_until(lambda: not (broker.data_dir.parent / BUSY).exists(), sites.evidence)


@pytest.mark.parametrize("how", ["work 8", pytest.param("step 8", marks=pytest.mark.campaign)])
def test_a_leader_whose_recovery_takes_long_is_not_replaced(sites: Sites, how: str) -> None:
    """It takes longer than the others wait for a leader that is silent."""
    leader = sites.wait_for_leader()
    with watched(sites, f"recovers-{how}") as load:
        sites.wait_for_standbys(2)
        for each in sites.others(leader):
            (each.data_dir.parent / BUSY).write_text(f"recovery {how}", "ascii")
        leader.kill9()
        following = replaced(sites, leader)
        load.goes_on(claims=1)
        leader.begin()
        sites.wait_for_standbys(2)
    assert sites.wait_for_leader() is following
    for each in sites.brokers:
        (each.data_dir.parent / BUSY).unlink(missing_ok=True)


def test_a_leader_whose_loop_is_busy_stays(sites: Sites) -> None:
    """Again and again one client keeps it for longer than the others wait for a silent leader."""
    leader, epoch = sites.wait_for_leader(), sites.epoch()
    with watched(sites, "busy") as load:
        for _ in range(3):
            (leader.data_dir.parent / BUSY).write_text("loop work 6", "ascii")
            is_over(sites, leader)
        load.goes_on(claims=0)
    assert sites.epoch() == epoch


@pytest.mark.parametrize("place", ["loop", pytest.param("recovery", marks=pytest.mark.campaign)])
def test_a_leader_that_hangs_is_replaced(sites: Sites, place: str) -> None:
    """It does nothing, for as long as a test may take; when it wakes up it begins again."""
    leader = sites.wait_for_leader()
    with watched(sites, f"held-{place}", silence_s=SILENCE_S) as load:
        sites.wait_for_standbys(2)
        held, last = sites.others(leader) if place == "recovery" else (leader, None)
        (held.data_dir.parent / BUSY).write_text(f"{place} hang 30", "ascii")
        if last is not None:
            last.signal(signal.SIGSTOP)
            leader.kill9()
            is_over(sites, held)
            last.signal(signal.SIGCONT)
        replaced(sites, held)
        load.goes_on(claims=1 if last is None else 2)
        if last is not None:
            leader.begin()
        is_standby_again(sites, held)


def test_a_clock_that_jumps(sites: Sites) -> None:
    """That of a leader, by a day; whoever takes over has another one."""
    leader = sites.wait_for_leader()
    with watched(sites, "clock") as load:
        ask(leader.data_dir, "test advance clock", by_ms=86_400_000)
        load.goes_on(claims=0)
        leader.kill9()
        replaced(sites, leader)
        leader.begin()
        load.goes_on(claims=1)
    sites.wait_for_standbys(2)


def test_a_hand_over_and_a_stop_lose_nobody_for_long(sites: Sites) -> None:
    with watched(sites, "handover") as load:
        leader = sites.wait_for_leader()
        leader.hand_over()
        following = replaced(sites, leader)
        is_standby_again(sites, leader)
        load.goes_on(claims=1)
        assert following.stop() == 0
        sites.wait_for_leader()
        load.goes_on(claims=2)
        following.begin()
        sites.wait_for_standbys(2)


@pytest.mark.campaign
def test_a_leader_and_a_standby_that_are_killed_together(sites: Sites) -> None:
    leader = sites.wait_for_leader()
    standby, last = sites.others(leader)
    with watched(sites, "pair") as load:
        sites.wait_for_standbys(2)
        leader.kill9()
        standby.kill9()
        assert replaced(sites, leader) is last
        load.goes_on(claims=1)
        leader.begin()
        standby.begin()
        sites.wait_for_standbys(2)
