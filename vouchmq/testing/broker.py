"""A broker for tests, as the tests see it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import weakref
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from vouchmq.server.edge.control.client import NoBrokerError, ask, ask_rows
from vouchmq.testing.errors import BrokerError, BrokerNotRunning
from vouchmq.testing.in_thread import in_thread
from vouchmq.testing.process import HOST, LOG_NAME, BrokerProcess
from vouchmq.testing.vhost import WAIT_LIMIT_S, AsyncVHost, VHost, new_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from types import TracebackType


START_LIMIT_S: Final = 60.0
STOP_LIMIT_S: Final = 30.0
# What a broker still has to say when its own limit is over.
ANSWER_S: Final = 30.0
DEFAULTS: Final[Mapping[str, object]] = {
    "test_commands": True,
    # A process more, which tests of AMQP do not need.
    "management": False,
    "management_host": HOST,
    "management_port": 0,
    "prometheus_port": 0,
    "log_format": "json",
    # Little of the disk of whoever runs tests, and soon filled.
    "segment_size_bytes": 4 * 1024 * 1024,
    # Tests have wrong passwords on purpose.
    "auth_failure_delay_s": 0,
    "shutdown_timeout_s": 2,
}


class Broker:
    """A broker in a process of its own, on a free port and an empty data directory.

    Used with `with` or `async with`; the latter gives an `AsyncBroker`. It is ready when it has
    been entered, and its process and data are gone at the end, also if the process of the tests is
    killed (then the data remains).

    Args:
        fsync: sync before confirms, as in production; off, a confirm means less and comes sooner.
            What is confirmed survives `kill` either way, for that leaves the operating system alone
        settings: of `vouchmq serve`, by name: `{"consumer_timeout_ms": 1000}`. `config` is the path
            of a configuration file
        directory: where its data and log go; kept at the end. Default: a temporary one
    """

    def __init__(
        self,
        *,
        fsync: bool = False,
        settings: Mapping[str, object] | None = None,
        directory: str | Path | None = None,
    ) -> None:
        self._chosen = dict(settings or {})
        self._fsync = fsync
        self._directory = Path(directory) if directory is not None else None
        self._remove: Callable[[], object] | None = None
        self._process: BrokerProcess | None = None
        self._vhosts: dict[str, VHost] = {}
        # Dropped while it did not run.
        self._left: set[str] = set()
        taken = {"data_dir", "host"} & self._chosen.keys()
        if taken:
            raise ValueError(f"{', '.join(sorted(taken))}: not a setting of a broker for tests")
        self.user = str(self._chosen.get("default_user", "guest"))
        self.password = str(self._chosen.get("default_pass", "guest"))

    # Its process

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> AsyncBroker:
        await self.aio.start()
        return self.aio

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aio.close()

    @property
    def aio(self) -> AsyncBroker:
        """The same broker with coroutines."""
        return AsyncBroker(self)

    def start(self, *, timeout_s: float = START_LIMIT_S) -> None:
        """Start it, or start it again: on the same port, with the same data.

        Returns when clients can connect. One that runs is left alone.

        Raises:
            BrokerError: it does not start; with the end of its log
        """
        if self.is_running:
            return
        process = self._process
        if process is None:
            process = self._process = self._new_process()
        process.start(timeout_s)
        for name in list(self._left):
            self._delete_vhost(name)

    def _new_process(self) -> BrokerProcess:
        directory = self._directory
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="vouchmq-"))
            # Also without `close`, if the process of the tests ends in order.
            self._remove = weakref.finalize(self, _remove_directory, directory, os.getpid())
        directory.mkdir(parents=True, exist_ok=True)
        settings = {**DEFAULTS, "durability_fsync": self._fsync, **self._chosen}
        return BrokerProcess(directory / "data", directory / LOG_NAME, settings)

    def stop(self, *, timeout_s: float = STOP_LIMIT_S) -> int:
        """Stop it as an operator does: clients are told. Returns its exit code.

        Raises:
            BrokerError: it has not ended within the limit
        """
        return self._started.stop(timeout_s)

    def kill(self) -> None:
        """Kill it, as SIGKILL or the kernel does. Connections break, and what was confirmed is
        there after the next `start`.
        """
        self._started.kill()

    def restart(self, *, timeout_s: float = START_LIMIT_S) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start(timeout_s=timeout_s)

    def close(self) -> None:
        """End it for good, and remove a temporary directory."""
        if self._process is not None:
            self._process.kill()
            self._process.forget_port()
            self._process = None
        self._vhosts.clear()
        if self._remove is not None:
            self._remove()
            self._remove = None

    @property
    def is_running(self) -> bool:
        """True between its start and its end."""
        return self._process is not None and self._process.is_running

    @property
    def pid(self) -> int:
        """Its process id; 0 when it does not run."""
        return self._process.pid if self._process is not None else 0

    # Where it is

    @property
    def host(self) -> str:
        """The address that it listens on."""
        return HOST

    @property
    def port(self) -> int:
        """The port that it listens on, the same after each start."""
        return self._started.port

    @property
    def data_dir(self) -> Path:
        """Its data directory, for other commands of `vouchmq`."""
        return self._started.data_dir

    @property
    def url(self) -> str:
        """The URL of virtual host `/`."""
        return self.url_of("/")

    @property
    def management_url(self) -> str:
        """The URL of the HTTP API, with `settings={"management": True}`.

        Raises:
            BrokerError: it was started without
        """
        port = self._started.ports.get("management_port")
        if not port:
            raise BrokerError("started without the setting management")
        is_tls = self._started.settings.get("management_tls") in {True, "on", "true", "yes", "1"}
        return f"{'https' if is_tls else 'http'}://{self.host}:{port}"

    def url_of(self, vhost: str) -> str:
        """The URL of a virtual host."""
        user, password = quote(self.user, safe=""), quote(self.password, safe="")
        return f"amqp://{user}:{password}@{self.host}:{self.port}/{quote(vhost, safe='')}"

    @property
    def _started(self) -> BrokerProcess:
        if self._process is None:
            raise BrokerNotRunning("the broker has not been started")
        return self._process

    # Virtual hosts

    @property
    def default_vhost(self) -> VHost:
        """Virtual host `/`."""
        return VHost(self, "/")

    def new_vhost(self, name: str | None = None) -> VHost:
        """Make a virtual host in which the user of `url` may do everything.

        It is gone with `VHost.close`, or the end of a `with` block.

        Args:
            name: default: one that nobody has
        """
        vhost = VHost(self, name or new_name("test"))
        self._make_vhost(vhost.name)
        self._vhosts[vhost.name] = vhost
        return vhost

    def _make_vhost(self, name: str) -> None:
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.command("put vhost", name=name)
        self.command("put permissions", name=self.user, vhost=name, **everything)

    def vhosts(self) -> list[VHost]:
        """Those that were made with `new_vhost` and are still there."""
        return list(self._vhosts.values())

    def drop_vhost(self, name: str) -> None:
        """Cut the connections of a virtual host and remove it."""
        if self._vhosts.pop(name, None) is None:
            return
        self._left.add(name)
        if self.is_running:
            self._delete_vhost(name)

    def _delete_vhost(self, name: str) -> None:
        self.command("test cut connections", vhost=name, timeout_s=WAIT_LIMIT_S)
        self.command("delete vhost", name=name)
        self._left.discard(name)

    # Faults

    @contextmanager
    def disk_full(self) -> Iterator[None]:
        """While inside, every write of the broker fails as on a full disk.

        The next persistent message is refused (`basic.nack`). Connections that publish after it are
        blocked (`connection.blocked`) until the disk has room again, at the end.
        """
        with self._disk("full"):
            yield

    @contextmanager
    def disk_alarm(self) -> Iterator[None]:
        """While inside, the broker's disk is nearly full: it raises its disk alarm.

        A connection that publishes is told `connection.blocked` and not read until the end; what it
        had published before is confirmed.
        """
        with self._disk("low"):
            yield

    @contextmanager
    def _disk(self, state: str) -> Iterator[None]:
        self.command("test set disk", state=state)
        try:
            yield
        finally:
            self._take_back("test set disk", state="ok")

    @contextmanager
    def held_confirms(self) -> Iterator[None]:
        """While inside, nothing that waits for the disk is confirmed, as if the disk hung.

        With `kill` inside, a publisher cannot know whether its message has been stored. Durable
        declarations and `new_vhost` wait as well.
        """
        self.command("test hold confirms")
        try:
            yield
        finally:
            self._take_back("test release confirms")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """While inside, the broker does nothing at all, as if its machine hung.

        Connections stay open and nobody answers, so that clients run into their time limits. Ask
        it nothing inside.
        """
        process = self._started
        process.freeze()
        try:
            yield
        finally:
            process.thaw()

    def advance_clock(self, seconds: float) -> None:
        """Set the clock of its queues forward, so that nobody has to wait.

        What is due by then happens now: messages and queues expire, delays and retries end,
        consumers that have not acknowledged are cancelled. Connections notice nothing. The clock
        stays ahead, also after a restart, and goes on from there.

        Args:
            seconds: how far
        """
        answer = self.command("test advance clock", by_ms=round(seconds * 1000))
        self._started.settings["test_clock_ahead_ms"] = answer["ahead_ms"]

    def heal(self) -> None:
        """Take back every fault; the clock stays where it is."""
        self.command("test heal")

    def cut_connections(self) -> int:
        """Break all connections, as a network does: no client is told. Returns how many."""
        return int(self.command("test cut connections", timeout_s=WAIT_LIMIT_S)["count"])

    def _take_back(self, command: str, **arguments: object) -> None:
        # A broker that has been killed inside has no fault left.
        with suppress(BrokerNotRunning):
            self.command(command, **arguments)

    # What it says

    def listing(
        self, what: str, *, vhost: str | None = None, name: str | None = None
    ) -> list[dict[str, Any]]:
        """The rows of `vouchmq list`: `queues`, `connections`, `consumers`, `alarms`…

        They are true at the moment of asking: nothing is sampled.

        Args:
            what: the listing
            vhost: only of this virtual host
            name: only of this name, as in the listing
        """
        return self.rows(f"list {what}", vhost=vhost, name=name)

    def rows(self, command: str, **arguments: object) -> list[dict[str, Any]]:
        """Give the broker a control command that answers with rows.

        Raises:
            BrokerError: it refuses
            BrokerNotRunning: it has gone
        """
        try:
            *rows, answer = ask_rows(self.data_dir, command, ANSWER_S, **arguments)
        except NoBrokerError as error:
            raise BrokerNotRunning(str(error)) from None
        _require_ok(answer)
        return rows

    def command(self, command: str, **arguments: object) -> dict[str, Any]:
        """Give the broker a control command; returns its answer.

        Raises:
            BrokerError: it refuses
            BrokerNotRunning: it has gone
        """
        answer = self.try_command(command, **arguments)
        _require_ok(answer)
        return answer

    def try_command(self, command: str, **arguments: object) -> dict[str, Any]:
        """The same; a refusal is an answer with `ok` False, `error` and `code`."""
        limit_s = arguments.get("timeout_s", 0.0)
        patience_s = ANSWER_S + (limit_s if isinstance(limit_s, int | float) else 0.0)
        try:
            return ask(self.data_dir, command, patience_s, **arguments)
        except NoBrokerError as error:
            raise BrokerNotRunning(str(error)) from None

    @property
    def log_size_bytes(self) -> int:
        """The size of its log so far, from which `log` can go on."""
        return self._started.log_file.stat().st_size

    def log(self, offset: int = 0) -> list[dict[str, Any]]:
        """The events that it has logged, of all its starts.

        Args:
            offset: only those behind so many bytes
        """
        with self._started.log_file.open("rb") as file:
            file.seek(offset)
            lines = file.read().decode("utf-8", "replace").splitlines()
        events = []
        for line in lines:
            # What Python itself says when it ends in trouble is no event.
            try:
                events.append(json.loads(line))
            except ValueError:
                events.append({"event": line})
        return events


def _remove_directory(directory: Path, owner_pid: int) -> None:
    """Remove it, unless this is a process that was forked from the one that made it."""
    if os.getpid() == owner_pid:
        shutil.rmtree(directory, ignore_errors=True)


def _require_ok(answer: Mapping[str, Any]) -> None:
    if not answer["ok"]:
        raise BrokerError(f"the broker refuses: {answer['error']}")


class AsyncBroker:
    """A `Broker` with coroutines, which do in a thread what the methods of that name do.

    Args:
        broker: the same
    """

    def __init__(self, broker: Broker) -> None:
        self.blocking = broker

    async def start(self, *, timeout_s: float = START_LIMIT_S) -> None:
        """See `Broker`."""
        await asyncio.to_thread(self.blocking.start, timeout_s=timeout_s)

    async def stop(self, *, timeout_s: float = STOP_LIMIT_S) -> int:
        """See `Broker`."""
        return await asyncio.to_thread(self.blocking.stop, timeout_s=timeout_s)

    async def kill(self) -> None:
        """See `Broker`."""
        await asyncio.to_thread(self.blocking.kill)

    async def restart(self, *, timeout_s: float = START_LIMIT_S) -> None:
        """See `Broker`."""
        await asyncio.to_thread(self.blocking.restart, timeout_s=timeout_s)

    async def close(self) -> None:
        """See `Broker`."""
        await asyncio.to_thread(self.blocking.close)

    @property
    def is_running(self) -> bool:
        """See `Broker`."""
        return self.blocking.is_running

    @property
    def host(self) -> str:
        """See `Broker`."""
        return self.blocking.host

    @property
    def port(self) -> int:
        """See `Broker`."""
        return self.blocking.port

    @property
    def url(self) -> str:
        """See `Broker`."""
        return self.blocking.url

    @property
    def management_url(self) -> str:
        """See `Broker`."""
        return self.blocking.management_url

    @property
    def default_vhost(self) -> AsyncVHost:
        """See `Broker`."""
        return self.blocking.default_vhost.aio

    async def new_vhost(self, name: str | None = None) -> AsyncVHost:
        """See `Broker`."""
        return (await asyncio.to_thread(self.blocking.new_vhost, name)).aio

    @asynccontextmanager
    async def disk_full(self) -> AsyncIterator[None]:
        """See `Broker`."""
        async with in_thread(self.blocking.disk_full()):
            yield

    @asynccontextmanager
    async def disk_alarm(self) -> AsyncIterator[None]:
        """See `Broker`."""
        async with in_thread(self.blocking.disk_alarm()):
            yield

    @asynccontextmanager
    async def held_confirms(self) -> AsyncIterator[None]:
        """See `Broker`."""
        async with in_thread(self.blocking.held_confirms()):
            yield

    @asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        """See `Broker`."""
        async with in_thread(self.blocking.frozen()):
            yield

    async def advance_clock(self, seconds: float) -> None:
        """See `Broker`."""
        await asyncio.to_thread(self.blocking.advance_clock, seconds)

    async def heal(self) -> None:
        """See `Broker`."""
        await asyncio.to_thread(self.blocking.heal)

    async def cut_connections(self) -> int:
        """See `Broker`."""
        return await asyncio.to_thread(self.blocking.cut_connections)

    async def listing(
        self, what: str, *, vhost: str | None = None, name: str | None = None
    ) -> list[dict[str, Any]]:
        """See `Broker`."""
        return await asyncio.to_thread(self.blocking.listing, what, vhost=vhost, name=name)

    def log(self) -> list[dict[str, Any]]:
        """See `Broker`."""
        return self.blocking.log()
