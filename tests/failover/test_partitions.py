"""Three machines in network namespaces of their own, between which packets are dropped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.engine.networks import CLIENT, Network, why_not
from tests.engine.servers import MISSING, program
from tests.failover.sites import SiteBroker, Sites
from tests.failover.watched import SILENCE_S, watched
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(program() is None, reason=MISSING),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Three machines, each with a broker and a server; each test leaves them with a leader."""
    directory = tmp_path_factory.mktemp("partitions")
    with Network() as network, Sites(directory, network=network, takeover_after_s="5") as made:
        made.start()
        yield made
    shutil.rmtree(directory)


def heal(sites: Sites) -> None:
    """All packets arrive again."""
    assert sites.network is not None
    sites.network.heal()


def pairs(sites: Sites, broker: SiteBroker, *, clients: bool) -> list[tuple[str, str]]:
    """Between a broker's machine and the others, maybe its clients too."""
    here = sites.machine_of(broker)
    others = [sites.machine_of(each) for each in sites.others(broker)]
    return [(here, other) for other in (*others, *([CLIENT] if clients else []))]


def test_a_standby_that_is_cut_off_is_not_noticed(sites: Sites) -> None:
    leader = sites.wait_for_leader()
    # Another machine than that of the stream's leader: nothing is elected.
    stream_leader = sites.stream_leader()
    standby = next(
        each.broker
        for each in sites.sites
        if each.broker is not leader and each.server is not stream_leader
    )
    with watched(sites, "standby") as load:
        sites.cut(*pairs(sites, standby, clients=True))
        load.goes_on(claims=0)
        heal(sites)
        sites.wait_for_standbys(2)
        load.goes_on(claims=0)
    assert len(load.publisher.connected_to) == 1


def test_brokers_that_see_the_log_and_not_each_other(sites: Sites) -> None:
    """They have nothing to say to each other: all goes on, a hand-over as well."""
    assert sites.network is not None
    leader = sites.wait_for_leader()
    with watched(sites, "log-only") as load:
        sites.network.allow_only_the_log()
        load.goes_on(claims=0)
        leader.hand_over()
        sites.wait_for_leader(but=leader)
        load.goes_on(claims=1)
        heal(sites)
    sites.wait_for_standbys(2)


def test_clients_that_reach_the_leader_only(sites: Sites) -> None:
    leader = sites.wait_for_leader()
    with watched(sites, "clients") as load:
        sites.cut(*((sites.machine_of(each), CLIENT) for each in sites.others(leader)))
        load.goes_on(claims=0)
        heal(sites)
    assert len(load.publisher.connected_to) == 1


@pytest.mark.parametrize(
    "clients", [pytest.param(False, marks=pytest.mark.campaign), True], ids=["log", "all"]
)
def test_a_leader_with_a_minority_of_the_log(sites: Sites, clients: bool) -> None:
    """It commits nothing more; another one leads, and it begins again when it can read."""
    leader = sites.wait_for_leader()
    with watched(sites, f"minority-{clients}", silence_s=SILENCE_S) as load:
        sites.wait_until_current()
        sites.cut(*pairs(sites, leader, clients=clients))
        sites.wait_for_leader(but=leader)
        load.goes_on(claims=1)
        heal(sites)
        wait_until(lambda: leader.can_take_over, sites.evidence)
        load.goes_on(claims=1)


@pytest.mark.campaign
def test_a_leader_whose_packets_to_other_machines_are_lost(sites: Sites) -> None:
    """It hears them, and they do not hear it: whoever leads then, nothing is lost."""
    leader = sites.wait_for_leader()
    here = sites.machine_of(leader)
    with watched(sites, "one-way", silence_s=SILENCE_S) as load:
        sites.wait_until_current()
        sites.cut_one_way((here, sites.machine_of(each)) for each in sites.others(leader))
        sites.wait_for_leader(but=leader)
        load.publisher.wait(50)
        heal(sites)
        wait_until(lambda: leader.can_take_over, sites.evidence)
        load.publisher.wait(50)
