"""Three servers in network namespaces of their own, joined by a bridge; links may be cut one way.

    namespace of each server ── veth ── bridge in a namespace ── veth ── this process

A cut drops packets where they arrive, so that neither side is told. Needs root, `ip` and
`iptables`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType

from tests.engine.servers import Cluster, NatsServer

CLIENT = "client"
NAMES = ("n1", "n2", "n3")
PORTS = (4222, 6222, 8222)

# Who is not heard by whom: (from, to).
Cut = tuple[str, str]


@dataclass(frozen=True)
class Partition:
    """Which packets are dropped, in terms of the stream's leader and the other two servers."""

    name: str
    cuts: Callable[[str, str, str], list[Cut]]
    # The servers must go on: two of them hear each other, and a client. With packets that are
    # lost one way only they need not: each side of a route may take the other for dead or not.
    goes_on: bool = True


def both_ways(*pairs: tuple[str, str]) -> list[Cut]:
    """Neither hears the other."""
    return [cut for one, other in pairs for cut in ((one, other), (other, one))]


PARTITIONS = (
    Partition("leader from others", lambda a, b, c: both_ways((a, b), (a, c))),
    Partition("leader from all", lambda a, b, c: both_ways((a, b), (a, c), (a, CLIENT))),
    Partition("follower from others", lambda a, b, c: both_ways((b, a), (b, c))),
    Partition(
        "all from each other", lambda a, b, c: both_ways((a, b), (b, c), (c, a)), goes_on=False
    ),
    Partition("leader is not heard", lambda a, b, c: [(a, b), (a, c)], goes_on=False),
    Partition("leader hears nothing", lambda a, b, c: [(b, a), (c, a)], goes_on=False),
    Partition("leader and one follower", lambda a, b, c: both_ways((a, b))),
    Partition("two followers", lambda a, b, c: both_ways((b, c))),
    Partition("leader from clients", lambda a, b, c: both_ways((a, CLIENT))),
    Partition("no answers from leader", lambda a, b, c: [(a, CLIENT)]),
    Partition("nothing from clients to leader", lambda a, b, c: [(CLIENT, a)]),
)


@cache
def why_not() -> str:
    """What is missing for networks; empty when nothing is."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "iptables"):
        if shutil.which(program) is None:
            return f"the program {program} is not installed"
    try:
        with Network():
            return ""
    except subprocess.CalledProcessError as error:
        return f"network namespaces cannot be used here: {error.stderr.decode().strip()}"


class Network:
    """Namespaces, their links and addresses: `with`; removed at the end."""

    _number = 0

    def __init__(self) -> None:
        Network._number += 1
        # Interfaces have names of at most 15 characters.
        self._prefix = f"vq{os.getpid() % 100000}{Network._number % 100:02}"
        self._subnet = f"10.219.{(os.getpid() + Network._number) % 256}"

    def __enter__(self) -> Network:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def address(self, name: str) -> str:
        """Of a server, or of this process."""
        return f"{self._subnet}.{NAMES.index(name) + 1 if name in NAMES else 254}"

    def cluster(self, directory: Path) -> Cluster:
        """Three servers, not started."""
        routes = [f"nats://{self.address(name)}:{PORTS[1]}" for name in NAMES]
        return Cluster(
            [
                NatsServer(
                    name,
                    directory / name,
                    PORTS,
                    address=self.address(name),
                    routes=routes,
                    prefix=("ip", "netns", "exec", self.space(name)),
                )
                for name in NAMES
            ]
        )

    def cut(self, cuts: Iterable[Cut]) -> None:
        """Drop packets from the first to the second of each pair."""
        for sender, receiver in cuts:
            rule = ("INPUT", "-s", self.address(sender), "-j", "DROP")
            if receiver == CLIENT:
                # Where they enter the bridge's side: this process has no namespace of its own.
                rule = ("OUTPUT", "-d", self.address(CLIENT), "-j", "DROP")
                self._inside(sender, "iptables", "-A", *rule)
            else:
                self._inside(receiver, "iptables", "-A", *rule)

    def allow_only_the_log(self) -> None:
        """Between machines nothing passes but what servers of the log say and are told."""
        ports = ",".join(map(str, PORTS))
        for name in NAMES:
            for other in NAMES:
                if other == name:
                    continue
                rule = ("iptables", "-A", "INPUT", "-s", self.address(other), "-p", "tcp")
                for direction in ("--dports", "--sports"):
                    self._inside(name, *rule, "-m", "multiport", direction, ports, "-j", "ACCEPT")
                self._inside(name, *rule[:5], "-j", "DROP")

    def heal(self) -> None:
        """All packets arrive again."""
        for name in NAMES:
            self._inside(name, "iptables", "-F")

    def space(self, name: str) -> str:
        """The namespace of a server."""
        return f"{self._prefix}-{name}"

    def _inside(self, name: str, *command: str) -> None:
        _run("ip", "netns", "exec", self.space(name), *command)

    def _make(self) -> None:
        hub = self.space("hub")
        for name in ("hub", *NAMES):
            _run("ip", "netns", "add", self.space(name))
            self._inside(name, "ip", "link", "set", "lo", "up")
        _run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "bridge", "up")
        for name in NAMES:
            space = self.space(name)
            self._join(name, space)
            _run("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            _run("ip", "-n", space, "link", "set", "eth0", "up")
        mine = self._prefix
        _run("ip", "link", "add", mine, "type", "veth", "peer", "name", "client", "netns", hub)
        self._attach("client")
        _run("ip", "addr", "add", f"{self.address(CLIENT)}/24", "dev", mine)
        _run("ip", "link", "set", mine, "up")

    def _join(self, name: str, space: str) -> None:
        hub = self.space("hub")
        peer = ("peer", "name", name, "netns", hub)
        _run("ip", "-n", space, "link", "add", "eth0", "type", "veth", *peer)
        self._attach(name)

    def _attach(self, name: str) -> None:
        hub = self.space("hub")
        _run("ip", "-n", hub, "link", "set", name, "master", "bridge", "up")

    def _remove(self) -> None:
        # With a namespace go its interfaces and their other ends.
        with suppress(subprocess.CalledProcessError):
            _run("ip", "link", "del", self._prefix)
        for name in (*NAMES, "hub"):
            with suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "del", self.space(name))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
