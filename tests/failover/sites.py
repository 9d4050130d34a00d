"""Three machines, each with a broker process and a server of the log.

    Sites ─┬─ Site a: SiteBroker ── NatsServer n1
           ├─ Site b: SiteBroker ── NatsServer n2
           └─ Site c: SiteBroker ── NatsServer n3

On loopback, or each in a network namespace of its own, or each on a file system of its own whose
power can be cut. A broker's port is known before it leads, so clients have all three addresses.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.engine.networks import Cut, Network, both_ways
from tests.engine.servers import (
    PATIENCE_S,
    STREAM,
    NatsServer,
    loopback_cluster,
)
from tests.engine.talk import Questions
from tests.integration.broker_process import BrokerProcess, run_command
from tests.waiting import wait_until
from vouchmq.server.edge.control.client import NoBrokerError, ask

# Of a client of AMQP, on machines that have an address of their own.
AMQP_PORT: Final = 5672
ANSWER_S: Final = 5.0
TAKEOVER_AFTER_S: Final = "2"
MAX_BYTES: Final = 1 << 30


class SiteBroker(BrokerProcess):
    """A broker of the log; `begin` returns at once, as only one of them becomes ready.

    Args:
        directory: of its data and output
        address: where it listens
        port: the same
        flags: its settings
        space: the network namespace that it runs in, if any
        program: the module that is run
    """

    def __init__(
        self,
        directory: Path,
        *,
        address: str,
        port: int,
        flags: Sequence[str],
        space: str = "",
        program: str = "vouchmq",
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        prefix = ("ip", "netns", "exec", space) if space else ()
        super().__init__(directory, flags=flags, prefix=prefix, program=program)
        self.name = directory.name
        self.port = port
        self.address = address
        self.heard_complaints: Callable[[], list[str]] = super().complaints

    @property
    def url(self) -> str:
        """Where it listens while it leads."""
        return f"amqp://guest:guest@{self.address}:{self.port}/%2F"

    @property
    def pid(self) -> int:
        """Of the broker itself: `ip netns exec` becomes what it runs."""
        assert self._process is not None
        return self._process.pid

    def complaints(self) -> list[str]:
        """Of all brokers of the log, in a list that only grows."""
        return self.heard_complaints()

    def own_complaints(self) -> list[str]:
        """Of this one."""
        return super().complaints()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the broker, not to its helpers."""
        os.kill(self.pid, number)

    def status(self) -> dict[str, Any]:
        """What `vouchmq ha status` says; nothing while it starts, ends, or is paused."""
        if not self.is_running:
            return {}
        try:
            return ask(self.data_dir, "ha status", ANSWER_S)
        except NoBrokerError:
            return {}

    @property
    def is_serving(self) -> bool:
        """Whether it leads and lets clients in."""
        return bool(self.status().get("is_serving"))

    @property
    def can_take_over(self) -> bool:
        """Whether it is a standby that has everything."""
        status = self.status()
        return status.get("role") == "standby" and bool(status.get("is_complete"))

    def hand_over(self) -> None:
        """As `vouchmq ha handover`."""
        answer = ask(self.data_dir, "ha handover", ANSWER_S)
        assert answer["ok"], answer


@dataclass(frozen=True)
class Site:
    """One machine."""

    broker: SiteBroker
    server: NatsServer


class Sites:
    """Three machines of one log: `with`, and every process ends.

    Args:
        directory: for everything
        network: namespaces for the machines; None: loopback
        flags: further settings of each broker
        takeover_after_s: see `ha_takeover_after_s`
        programs: modules that are run as the broker on machines, by the machine's place
        places: where machines have their data, instead of below `directory`
    """

    def __init__(
        self,
        directory: Path,
        *,
        network: Network | None = None,
        flags: Sequence[str] = (),
        takeover_after_s: str = TAKEOVER_AFTER_S,
        programs: Sequence[str] = ("vouchmq",) * 3,
        places: Sequence[Path] = (),
    ) -> None:
        self.network = network
        self._complaints: list[str] = []
        self._said: dict[str, int] = {}
        if network is None:
            self.cluster = loopback_cluster(directory / "engine")
        else:
            self.cluster = network.cluster(directory / "engine")
        for server, place in zip(self.cluster.servers, places, strict=False):
            server.directory = place / "engine"
        servers = self.cluster.servers
        self.log_flags = (
            *("--ha-log", ",".join(f"nats://{s.address}:{s.ports[0]}" for s in servers)),
            *("--ha-stream", STREAM),
        )
        own = (
            *self.log_flags,
            *("--ha-monitors", ",".join(each.monitor for each in servers)),
            *("--ha-takeover-after-s", takeover_after_s, "--log-level", "info"),
            *flags,
        )
        self.sites: list[Site] = []
        for at, (name, server) in enumerate(zip("abc", servers, strict=True)):
            listening = ("--host", server.address, "--loopback-users", "none")
            host = () if network is None else listening
            broker = SiteBroker(
                directory / name,
                address=server.address,
                port=0 if network is None else AMQP_PORT,
                flags=(*own, *host, "--node", name),
                space="" if network is None else network.space(server.name),
                program=programs[at],
            )
            if places:
                broker.data_dir = places[at] / "data"
            # Clients have all addresses before anybody leads.
            broker.choose_port()
            broker.heard_complaints = self.complaints
            self.sites.append(Site(broker, server))

    def __enter__(self) -> Sites:
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers:
            broker.kill9()
        self.cluster.stop()

    @property
    def brokers(self) -> list[SiteBroker]:
        """All three."""
        return [each.broker for each in self.sites]

    @property
    def urls(self) -> list[str]:
        """The addresses that a client has."""
        return [each.url for each in self.brokers]

    def complaints(self) -> list[str]:
        """All lines of all brokers that tell of something wrong inside, in the order found."""
        for broker in self.brokers:
            own = broker.own_complaints()
            self._complaints += own[self._said.get(broker.name, 0) :]
            self._said[broker.name] = len(own)
        return self._complaints

    # The start

    def start(self, leader: int = 0) -> SiteBroker:
        """Make the log, and have one of the brokers lead and the others follow it; the leader."""
        self.cluster.start()
        self.create()
        first = self.brokers[leader]
        first.begin()
        self.wait_for_leader()
        for each in self.brokers:
            if each is not first:
                each.begin()
        self.wait_for_standbys(2)
        return first

    def create(self) -> None:
        """As an operator does, once the servers have found each other."""
        said: list[str] = []

        def is_made() -> bool:
            size = str(MAX_BYTES)
            made = run_command("ha", "create", "--max-bytes", size, *self.log_flags)
            said.append(made.stderr)
            return made.returncode == 0

        wait_until(is_made, lambda: said[-1], limit_s=PATIENCE_S)

    # What they do

    @property
    def leader(self) -> SiteBroker | None:
        """Who serves, by its own account; the one with the latest claim if several say so."""
        serving = self._serving()
        if not serving:
            return None
        name = max(serving, key=lambda status: int(status["epoch"]))["node"]
        return next(each for each in self.brokers if each.name == name)

    def _serving(self) -> list[dict[str, Any]]:
        told = [each.status() for each in self.brokers]
        return [status for status in told if status.get("is_serving")]

    def wait_for_leader(self, *, but: SiteBroker | None = None) -> SiteBroker:
        """Wait until a broker serves, another one than `but`."""
        found: list[SiteBroker] = []

        def is_there() -> bool:
            # One that is paused takes its time to say nothing.
            for each in self.brokers:
                if each is not but and each.is_serving:
                    found.append(each)
                    return True
            return False

        wait_until(is_there, self.evidence, limit_s=PATIENCE_S)
        return found[0]

    def wait_for_claim(self, after: int) -> SiteBroker:
        """Wait until a broker serves with a later claim, perhaps one that has led before."""
        wait_until(
            lambda: any(int(each["epoch"]) > after for each in self._serving()),
            self.evidence,
            limit_s=PATIENCE_S,
        )
        return self.leader or self.wait_for_leader()

    def wait_for_standbys(self, count: int) -> None:
        """Wait until so many brokers could take over."""
        wait_until(
            lambda: sum(each.can_take_over for each in self.brokers) >= count,
            self.evidence,
            limit_s=PATIENCE_S,
        )

    def epoch(self) -> int:
        """Of the latest claim whose broker serves."""
        self.wait_for_leader()
        return max(int(status["epoch"]) for status in self._serving())

    def stream_leader(self) -> NatsServer:
        """The server that leads the stream."""
        return asyncio.run(self._stream_leader())

    async def _stream_leader(self) -> NatsServer:
        async with Questions(self.cluster.addresses) as questions:
            info = await questions.wait_until_current()
        return self.cluster.named(info.cluster.leader)

    def wait_until_current(self) -> None:
        """Wait until every server has all of the log."""
        self.stream_leader()

    def site_of(self, server: NatsServer) -> Site:
        """The machine of a server."""
        return next(each for each in self.sites if each.server is server)

    def site_of_broker(self, broker: SiteBroker) -> Site:
        """The machine of a broker."""
        return next(each for each in self.sites if each.broker is broker)

    def others(self, *brokers: SiteBroker) -> list[SiteBroker]:
        """All but these."""
        return [each for each in self.brokers if each not in brokers]

    def machine_of(self, broker: SiteBroker) -> str:
        """The name of a broker's machine in its network."""
        return self.site_of_broker(broker).server.name

    def cut(self, *pairs: tuple[str, str]) -> None:
        """Nothing passes between these machines, or between one and the clients."""
        self.cut_one_way(both_ways(*pairs))

    def cut_one_way(self, cuts: Iterable[Cut]) -> None:
        """Nothing passes from the first to the second of each."""
        assert self.network is not None
        self.network.cut(cuts)

    def evidence(self) -> str:
        """What they say, when something does not come."""
        told = [f"{each.name}: {each.status()}\n{each.output()[-1500:]}" for each in self.brokers]
        return "\n".join(told)
