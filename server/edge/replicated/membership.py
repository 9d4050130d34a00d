"""A broker that takes part in a shared log: standby until its claim, then leader until its end.

    follow ─▶ checks of the engine ─▶ the directory follows the log ─▶ the claim is committed
    recovery, with `tap` ─▶ lead ─▶ until_serving ─▶ clients
    deposed, handed over ─▶ `ended` ─▶ clients are closed, and the process begins again as a standby

As a standby it listens on no port of AMQP, so clients and load balancers find the leader. It has
its control socket, for `vouchmq ping` and `vouchmq ha status`.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import structlog

from vouchmq.server.admin.commands import Arguments, CommandRefused, ControlCommands
from vouchmq.server.edge.control import peer as control_peer
from vouchmq.server.edge.control.client import LISTENERS
from vouchmq.server.edge.control.commands import LOG_COMMANDS, control_listener
from vouchmq.server.edge.process import IS_READY, notify
from vouchmq.server.edge.replicated.engine import check, engine_of, find_log
from vouchmq.server.errors import StartupError
from vouchmq.server.replication import jetstream
from vouchmq.server.replication.jetstream import JetStreamError
from vouchmq.server.replication.node import Node
from vouchmq.server.replication.roles import Patience, Role
from vouchmq.server.version import VERSION
from vouchmq.store.replication.leader_position import LeaderPosition
from vouchmq.store.replication.mirror import Mirror

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from vouchmq.server.admin.commands import Reply
    from vouchmq.server.edge.replicated.engine import LogFound
    from vouchmq.server.edge.replicated.vitals import Vitals
    from vouchmq.server.runtime.runtime import BrokerRuntime
    from vouchmq.server.settings.settings import Settings
    from vouchmq.store.disk import FileDisk
    from vouchmq.store.journal.segments import BlockTap

log = structlog.get_logger(__name__)

# Between two attempts to find the log's servers at a start.
ENGINE_RETRY_S: Final = 1.0
# The first time, and then every so many attempts, it is said that they are awaited.
SAID_EVERY: Final = 30
HANDOVER_LIMIT_S: Final = 5.0
# Addresses that stand for all of a machine.
EVERY_HOST: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not listened on


class Membership:
    """One process as a node of the log; see there.

    Args:
        settings: those of the log are set
        stop: ends the broker
        fail: ends it because nothing it stores can be trusted; told why
        vitals: gives signs while this process leads and its loop is busy

    Raises:
        SettingsError: they cannot be used
    """

    def __init__(
        self,
        settings: Settings,
        stop: Callable[[], object],
        fail: Callable[[str], object],
        vitals: Vitals | None,
    ) -> None:
        self._settings = settings
        self._vitals = vitals
        # Of an earlier start of this process, which has led in vain.
        self._rest()
        self._engine = engine_of(settings)
        # Where clients find it while it leads.
        self._address = ""
        self._stop = stop
        self._fail = fail
        self._pool = ThreadPoolExecutor(2, "standby")
        self._node: Node
        # The log in the stream.
        self._log_id = b""
        self._runtime: BrokerRuntime | None = None
        self._position: LeaderPosition | None = None
        # Something has changed that `follow`, `until_serving` or `hand_over` waits for.
        self._news = asyncio.Event()
        self._is_to_recover = False
        self._broken = ""
        self._is_handing_over = False
        self._began = 0.0
        # Why this node leads no more.
        self.ended = ""

    # A standby

    async def follow(self, disk: FileDisk, port: int, is_stopped: Callable[[], bool]) -> bool:
        """Follow the log until this node leads; False if it is stopped before.

        Args:
            disk: the data directory
            port: of AMQP, on which it will listen then
            is_stopped: whether to end

        Raises:
            StartupError: the engine cannot keep the log, or the log is not what it was
            StoreError: the directory follows no log, or another one
            OSError: the disk refused
        """
        loop = asyncio.get_running_loop()
        if not await self._wait_for_engine(is_stopped):
            return False
        settings = self._settings
        self._address = client_address(settings.host, port, socket.gethostname())
        node = self._node = Node(
            settings.node,
            self._address,
            self._engine.log(loop),
            Mirror(disk, self._log_id),
            self._engine.subjects,
            self._engine.topics,
            self,
            loop,
            self._pool,
            patience=Patience(
                settings.ha_takeover_after_s, settings.ha_rank, settings.ha_stepdown_after_s
            ),
            chance=random.random,
            random_bytes=secrets.token_bytes,
            needs_standby=settings.ha_confirm == "log+standby",
            vitals=self._vitals,
        )
        self._watch_vitals(loop)
        control = await self._control_server(loop, settings.data_dir)
        log.info("replication.standby", node=settings.node, stream=self._engine.stream)
        node.start()
        notify(IS_READY)
        while not (self._is_to_recover or self._broken or is_stopped()):
            await self._news.wait()
            self._news.clear()
        if control is not None:
            control.close()
            control_peer.remove(settings.data_dir)
        if self._is_to_recover:
            return True
        await self._close_standby()
        if self._broken:
            raise StartupError(self._broken)
        return False

    def _watch_vitals(self, loop: asyncio.AbstractEventLoop) -> None:
        vitals = self._vitals
        if vitals is None:
            return

        def ended() -> None:
            loop.remove_reader(vitals.fileno)
            log.error(
                "replication.signs_ended",
                meaning="another broker may take over while this one is busy; start it again",
            )

        loop.add_reader(vitals.fileno, ended)

    def _rest(self) -> None:
        if self._vitals is not None:
            self._vitals.rest()

    async def _wait_for_engine(self, is_stopped: Callable[[], bool]) -> bool:
        """Wait until the log's servers answer, and see how they are set up.

        Raises:
            StartupError: the log cannot be used
        """
        attempts = 0
        while not is_stopped():
            try:
                faults, unseen = await check(self._engine)
                found = await find_log(self._engine)
            except JetStreamError as error:
                if error.code == jetstream.STREAM_NOT_FOUND:
                    raise StartupError(
                        f"ha_stream: there is no stream {self._engine.stream}: make it once with"
                        " vouchmq ha create, or, if there was one, with vouchmq ha rescue from what"
                        " a node still has"
                    ) from None
                if not attempts % SAID_EVERY:
                    log.warning("replication.awaited", reason=error.text)
                attempts += 1
                await asyncio.sleep(ENGINE_RETRY_S)
                continue
            if faults and not self._settings.ha_unsafe_log:
                raise StartupError(*(f"the shared log: {each}" for each in faults))
            for each in (*faults, *unseen):
                log.warning("replication.unsafe", reason=each)
            self._log_id = self._usable(found)
            return True
        return False

    def _usable(self, found: LogFound | None) -> bytes:
        """Id of the log in the stream.

        Raises:
            StartupError: it has none, or only a part of one
        """
        stream = self._engine.stream
        if found is None:
            raise StartupError(
                f"ha_stream: the stream {stream} has no log, or has lost its beginning: make one"
                " with vouchmq ha create, or with vouchmq ha rescue from what a node still has"
            )
        if not found.is_finished:
            raise StartupError(
                f"ha_stream: the log in the stream {stream} is not complete: it is still being made"
                " from a data directory, or that was broken off: run vouchmq ha create --from or"
                " vouchmq ha rescue again"
            )
        return found.log_id

    def wake(self) -> None:
        """Look again whether something has changed."""
        self._news.set()

    async def _close_standby(self) -> None:
        closed = asyncio.Event()
        self._node.standby.stop(closed.set)
        await closed.wait()
        self._node.stop()
        self._pool.shutdown()

    async def _control_server(
        self, loop: asyncio.AbstractEventLoop, data_dir: Path
    ) -> asyncio.Server | None:
        listener = control_listener(data_dir)
        if listener is None:
            return None
        commands = ControlCommands(self._why_not)
        commands.register(LISTENERS, Arguments, self._tell_standby)
        self.register(commands)
        return await loop.create_unix_server(
            lambda: control_peer.ControlPeer(commands), sock=listener
        )

    def _tell_standby(self, _: Arguments, reply: Reply) -> None:
        reply({"ok": True, "version": VERSION, "role": "standby"})

    def _why_not(self) -> str:
        """Why a standby does nothing else."""
        leader = self._node.standby.progress.leader
        return f"this broker is a standby: ask the leader{', ' + leader if leader else ''}"

    # The leader

    @property
    def tap(self) -> BlockTap:
        """Takes the journal's blocks to the log."""
        return self._node.tap

    def advanced(self) -> None:
        """A step of the recovery is done."""
        if self._vitals is not None:
            self._vitals.step()

    def lead(self, runtime: BrokerRuntime) -> None:
        """Recovery is over, and this broker is what it has found."""
        self._runtime = runtime
        position = self._position = LeaderPosition(runtime.journal.disk)
        self._node.lead(self, runtime.journal.chain.number - 1, position)

    async def until_serving(self) -> bool:
        """Wait until what recovery has written is committed; False if this node leads no more."""
        while not (self._node.roles.is_serving or self.ended or self._broken):
            await self._news.wait()
            self._news.clear()
        if not self._node.roles.is_serving:
            return False
        log.warning(
            "replication.took_over",
            node=self._settings.node,
            epoch=self._node.at.epoch,
            duration_ms=int((time.monotonic() - self._began) * 1000),
        )
        return True

    def is_all_safe(self) -> bool:
        """Whether nothing waits for the log, or for a standby, any more; what does is sent now."""
        return self._node.is_all_safe()

    @property
    def is_over(self) -> bool:
        """Whether nothing more of this broker counts: another one leads, or the log is damaged."""
        return bool(self.ended or self._broken)

    async def hand_over(self) -> None:
        """Have another node lead at once; all that this one has written is committed before."""
        if not self._node.roles.hand_over():
            return
        self._is_handing_over = True
        try:
            async with asyncio.timeout(HANDOVER_LIMIT_S):
                while not self.is_over:
                    await self._news.wait()
                    self._news.clear()
        except TimeoutError:
            log.warning("replication.handover_failed", reason=self._node.trouble)
        runtime = self._runtime
        # What becomes due behind the handover, such as a delayed message, is in no log.
        if runtime is not None and (
            self._node.waiting_bytes or runtime.journal_writer.has_unwritten
        ):
            self._break_off_ledger()

    def close(self) -> None:
        """Let go of the log."""
        self._rest()
        self._node.stop()
        self._pool.shutdown()
        if self._position is not None:
            self._position.close()

    # NodeOwner

    def recover(self) -> None:
        self._began = time.monotonic()
        if self._vitals is not None:
            self._vitals.lead(self._log_id, self._node.at.epoch)
        self._is_to_recover = True
        self.wake()

    def serve(self) -> None:
        self.wake()

    def end(self, reason: str) -> None:
        self.ended = reason
        self._rest()
        log.warning("replication.stepped_down", reason=reason)
        if not self._is_handing_over:
            self._break_off_ledger()
        self._stop_leading()
        self._stop()
        self.wake()

    def _break_off_ledger(self) -> None:
        if self._runtime is not None and self._runtime.ledger is not None:
            self._runtime.ledger.break_off()

    def fail(self, reason: str) -> None:
        self._broken = reason
        self._rest()
        if self._runtime is not None:
            self._stop_leading()
            self._fail(reason)
        self.wake()

    def _stop_leading(self) -> None:
        runtime = self._runtime
        if runtime is not None:
            runtime.turn.stop_delivering()
            if runtime.context.commits is not None:
                runtime.context.commits.end()

    # Leading

    def committed(self, block: int, lsn: int) -> None:
        if self._runtime is not None:
            self._runtime.journal_writer.committed(block, lsn)

    def synced_on_standby(self, lsn: int) -> None:
        if self._runtime is not None:
            self._runtime.journal_writer.synced_on_standby(lsn)

    @property
    def safe_block(self) -> int:
        """See `Leading`."""
        return self._runtime.journal.chain.safe_number if self._runtime is not None else 0

    @property
    def is_syncing(self) -> bool:
        """See `Leading`."""
        return self._runtime is not None and not self._runtime.commit.is_idle

    @property
    def sync_count(self) -> int:
        """See `Leading`."""
        return self._runtime.commit.counters.syncs if self._runtime is not None else 0

    @property
    def segment_bytes(self) -> int:
        """See `Leading`."""
        return self._settings.segment_size_bytes

    def bytes_behind(self, generation: int, offset: int) -> int:
        runtime = self._runtime
        return runtime.journal.chain.bytes_behind(generation, offset) if runtime is not None else 0

    def stalled(self, *, is_stalled: bool) -> None:
        if self._runtime is not None:
            self._runtime.alarms.log_stalled(is_stalled=is_stalled)

    # Commands

    def register(self, commands: ControlCommands) -> None:
        """Enter the commands of the log."""
        for name, command in zip(LOG_COMMANDS, (self._tell_status, self._hand_over), strict=True):
            commands.register(name, Arguments, command)

    def _tell_status(self, _: Arguments, reply: Reply) -> None:
        node = self._node
        at, progress = node.at, node.standby.progress
        role = node.roles.role
        is_leader = role is Role.LEADER
        facts: dict[str, object] = {
            "node": self._settings.node,
            "role": role.value,
            "stream": self._engine.stream,
            "log_id": self._log_id.hex(),
            "server": node.server,
            "epoch": at.epoch,
            "sequence": at.sequence,
            "committed_sequence": at.sequence + (0 if is_leader else progress.lag),
            "lsn": at.lsn,
            "trouble": node.trouble,
        }
        if is_leader:
            facts["leader"] = self._settings.node
            facts["leader_address"] = self._address
            facts["is_serving"] = node.roles.is_serving
            facts["is_stalled"] = node.is_stalled
            facts["uncommitted_bytes"] = node.waiting_bytes
            if node.needs_standby:
                facts["standby_waiting_bytes"] = node.standby_waiting_bytes
            facts["resyncs"] = node.resync_count
            facts["standbys"] = node.standbys
            facts["log"] = node.log_size
        else:
            facts["leader"] = progress.leader
            facts["lag"] = progress.lag
            facts["synced_sequence"] = progress.synced_sequence
            facts["is_complete"] = progress.is_complete
            facts["can_take_over"] = node.can_take_over
        reply({"ok": True, **facts})

    def _hand_over(self, _: Arguments, reply: Reply) -> None:
        if not self._node.roles.is_serving:
            raise CommandRefused("this broker does not lead", 406)
        reply({"ok": True})
        asyncio.get_running_loop().call_soon(self._stop)


def client_address(hosts: Sequence[str], port: int, machine: str) -> str:
    """Where clients find a broker that leads, as `host:port`.

    Args:
        hosts: what it listens on
        port: of AMQP
        machine: name of this machine, told in place of an address that stands for all
    """
    named = [each for each in hosts if each not in EVERY_HOST]
    host = machine if len(named) < len(hosts) else named[0]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def begin_again() -> None:
    """Replace this process by another one with the same command line: it begins as a standby."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - the same program, without a shell
