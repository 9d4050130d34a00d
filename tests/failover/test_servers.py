"""Servers of the log are lost or in trouble, with and without the leading broker; three machines.

Brokers wait as long as they do by default, so that an election of the servers is no silence.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.engine.servers import MISSING, STREAM, SUBJECTS, NatsServer, program
from tests.engine.talk import Questions, read_all
from tests.failover.sites import Sites
from tests.failover.watched import Alarms, watched
from tests.fault import loop_disk
from tests.fault.loop_disk import LOG_FLUSHED, NOTHING_FLUSHED, LoopDisk
from tests.integration.broker_process import run_command
from vouchmq.server.replication import jetstream
from vouchmq.server.replication.jetstream import API

pytestmark = [pytest.mark.slow, pytest.mark.skipif(program() is None, reason=MISSING)]

DEFAULT_S = "5"
# The default of `ha_stepdown_after_s`.
STEPDOWN_S = 60
DISK_BYTES = 512 << 20


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Three machines; each test leaves them all running."""
    directory = tmp_path_factory.mktemp("servers")
    with Sites(directory, takeover_after_s=DEFAULT_S) as made:
        made.start()
        yield made
    shutil.rmtree(directory)


def follower(sites: Sites) -> NatsServer:
    """A server that does not lead the stream."""
    leader = sites.stream_leader()
    return next(each for each in sites.cluster.servers if each is not leader)


@pytest.mark.parametrize("who", [follower, Sites.stream_leader], ids=["follower", "leader"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "paused"])
def test_a_server_is_lost(
    sites: Sites, who: Callable[[Sites], NatsServer], how: signal.Signals
) -> None:
    """A follower or the stream's leader, for longer than an election: no broker takes over."""
    with watched(sites, f"server-{who.__name__}-{how.name}") as load:
        server = who(sites)
        server.signal(how)
        load.goes_on(claims=0)
        revive(server, how)
        sites.wait_until_current()
        load.goes_on(claims=0)
    assert len(load.publisher.connected_to) == 1


def test_standbys_that_are_killed_or_paused_are_not_noticed(sites: Sites) -> None:
    leader = sites.wait_for_leader()
    first, second = sites.others(leader)
    with watched(sites, "standbys") as load:
        first.kill9()
        second.signal(signal.SIGSTOP)
        load.goes_on(claims=0)
        second.signal(signal.SIGCONT)
        first.begin()
        sites.wait_for_standbys(2)
        load.goes_on(claims=0)
    assert len(load.publisher.connected_to) == 1


def revive(server: NatsServer, how: signal.Signals) -> None:
    """Take back what was done to a server."""
    if how == signal.SIGSTOP:
        server.signal(signal.SIGCONT)
    else:
        server.kill()
        server.start()


@pytest.mark.parametrize(
    "how",
    [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.campaign)],
    ids=["killed", "paused"],
)
def test_two_servers_are_lost(sites: Sites, how: signal.Signals) -> None:
    """Publishers are blocked, nobody takes over, and everything goes on with one of them.

    They are lost for longer than a leader waits that another node could replace.
    """
    with watched(sites, f"two-{how.name}") as load:
        alarms, lost = Alarms(sites), random.sample(sites.cluster.servers, 2)
        for each in lost:
            each.signal(how)
        alarms.wait_until_raised()
        confirmed = load.publisher.confirmed_count
        time.sleep(STEPDOWN_S + 10)
        revive(lost[0], how)
        alarms.wait_until_cleared()
        load.goes_on(claims=0)
        assert load.publisher.confirmed_count > confirmed
        revive(lost[1], how)
        sites.wait_until_current()
    assert len(load.publisher.connected_to) == 1


@pytest.mark.campaign
def test_the_leading_broker_and_the_leader_of_the_stream_are_killed_together(sites: Sites) -> None:
    with watched(sites, "both") as load:
        server, leader = sites.stream_leader(), sites.wait_for_leader()
        server.signal(signal.SIGKILL)
        leader.kill9()
        sites.wait_for_leader(but=leader)
        load.goes_on(claims=1)
        revive(server, signal.SIGKILL)
        leader.begin()
        sites.wait_for_standbys(2)


@pytest.mark.campaign
def test_everything_is_killed_at_once(sites: Sites) -> None:
    with watched(sites, "everything") as load:
        for server in sites.cluster.servers:
            server.signal(signal.SIGKILL)
        for broker in sites.brokers:
            broker.kill9()
        for server in sites.cluster.servers:
            revive(server, signal.SIGKILL)
        for broker in sites.brokers:
            broker.begin()
        sites.wait_for_leader()
        load.goes_on(claims=1)
        sites.wait_for_standbys(2)


@pytest.mark.skipif(bool(loop_disk.why_not("ext4")), reason=loop_disk.why_not("ext4") or "-")
@pytest.mark.parametrize(
    "flag", [NOTHING_FLUSHED, pytest.param(LOG_FLUSHED, marks=pytest.mark.campaign)]
)
def test_the_power_of_all_machines_is_cut_at_once(tmp_path: Path, flag: int) -> None:
    """File systems of their own: what was not synced is gone, on brokers and servers alike."""
    with ExitStack() as stack:
        disks: list[LoopDisk] = []
        for name in "abc":
            place = tmp_path / f"disk-{name}"
            place.mkdir()
            disks.append(stack.enter_context(loop_disk.loop_disk(place, "ext4", DISK_BYTES)))
        flags = ("--disk-free-limit", "0", "--segment-size-bytes", str(1 << 20))
        places = [each.mount_point for each in disks]
        sites = stack.enter_context(Sites(tmp_path, flags=flags, places=places))
        sites.start()
        with watched(sites, "power") as load:
            load.publisher.wait(200)
            cut_power(sites, disks, flag)
            for server in sites.cluster.servers:
                server.start()
            for broker in sites.brokers:
                broker.begin()
            sites.wait_for_leader()
            load.goes_on(claims=1)
            sites.wait_for_standbys(2)


def cut_power(sites: Sites, disks: list[LoopDisk], flag: int) -> None:
    """Stop every thread, cut the power of all disks, end the processes, mount again."""
    processes = [psutil.Process(each.pid) for each in sites.brokers]
    processes += [psutil.Process(each.pid) for each in running(sites)]
    family = [member for each in processes for member in loop_disk.stop_whole(each)]
    for disk in disks:
        disk.cut_power(flag)
    loop_disk.kill_all(family)
    for broker in sites.brokers:
        broker.kill9()
    for server in sites.cluster.servers:
        server.kill()
    for disk in disks:
        disk.unmount()
        disk.mount()


def running(sites: Sites) -> list[psutil.Process]:
    """The processes of the servers."""
    return [
        psutil.Process(each.process.pid)
        for each in sites.cluster.servers
        if each.process is not None
    ]


def test_a_log_that_is_full(tmp_path: Path) -> None:
    """Publishers are blocked and nothing is refused, until an operator makes room.

    Another broker may take over meanwhile, as there may be room for its claim: that helps nobody.
    """
    with Sites(tmp_path) as sites:
        sites.start()
        asyncio.run(limit(sites, 2_000_000))
        with watched(sites, "full", size_bytes=20_000) as load:
            alarms = Alarms(sites)
            alarms.wait_until_raised()
            done = run_command("ha", "resize", "--max-bytes", "1GiB", *sites.log_flags)
            assert done.returncode == 0, done.stderr
            load.publisher.wait(50)


async def limit(sites: Sites, max_bytes: int) -> None:
    """Have the log less room than an operator may give it, so that it is full soon."""
    settings = jetstream.stream_settings(
        STREAM, SUBJECTS, replicas=3, max_bytes=max_bytes, max_message_bytes=-1
    )
    request = jetstream.settings_request(settings)
    async with Questions(sites.cluster.addresses) as questions:
        await questions.keep_asking(f"{API}STREAM.UPDATE.{STREAM}", request, jetstream.parse_info)


async def replace_log(sites: Sites, records: list[tuple[int, bytes]] | None) -> None:
    """Another log with these records stands where the log was, or none."""
    async with Questions(sites.cluster.addresses) as questions:
        await questions.keep_asking(f"{API}STREAM.DELETE.{STREAM}", b"", jetstream.parse_done)
        if records is None:
            return
        await questions.create_stream(3)
        for _, raw in records:
            await questions.keep_asking(
                f"vq.{STREAM}.1", raw, lambda message: jetstream.parse_ack(message, STREAM)
            )


def test_a_log_that_has_lost_what_it_acknowledged(tmp_path: Path) -> None:
    """Its end, a record in its middle, all of it: nobody leads, and no directory is changed."""
    with Sites(tmp_path, flags=("--segment-size-bytes", str(1 << 24))) as sites:
        leader = sites.start()
        with watched(sites, "lost") as load:
            load.publisher.wait(20)
        log = asyncio.run(read_all(sites.cluster.addresses))
        # A running leader is told by the refusal of its next beat; standbys read it.
        asyncio.run(replace_log(sites, log[:-20]))
        for each in sites.brokers:
            assert each.wait() != 0
        assert "the log has lost" in leader.output()
        files = {each.name: contents(each.data_dir) for each in sites.brokers}
        hole = len(log) // 2
        for each, records in (
            (sites.brokers[1], log[:-20]),
            (sites.brokers[2], [*log[:hole], *log[hole + 1 :]]),
            (leader, None),
        ):
            asyncio.run(replace_log(sites, records))
            each.begin()
            assert each.wait() != 0, each.output()
        assert {each.name: contents(each.data_dir) for each in sites.brokers} == files
        assert "vouchmq ha create" in leader.output()


def contents(directory: Path) -> dict[str, bytes]:
    """The segments of a data directory."""
    return {each.name: each.read_bytes() for each in directory.glob("*.journal")}
