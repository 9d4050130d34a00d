"""The broker as a process: start, serve, drain, stop.

Start-up order matters: the sync helper is forked before the event loop and any thread exist; the
directory is locked first, and what can be checked without the journal is checked before recovery;
recovery is finished before the port opens, and the port is printed last. A start that fails leaves
the journal as it was, for a supervisor may try again for ever.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import secrets
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import uvloop

from vouchmq.server.admin.drain import DrainCommand
from vouchmq.server.auth.authenticator import check_accounts
from vouchmq.server.collector import settle_collector
from vouchmq.server.connection.connection import Connection
from vouchmq.server.connection.handshake import FLOW, IMMEDIATE, PREFETCH_SIZE, Handshakes, Offer
from vouchmq.server.connection.shared_timers import SharedTimers
from vouchmq.server.edge.admission import Admission, EpollWatch
from vouchmq.server.edge.control import peer as control_peer
from vouchmq.server.edge.control.commands import control_commands, control_listener
from vouchmq.server.edge.disk_watch import DiskWatch, DiskWatchThread
from vouchmq.server.edge.first_steps import first_steps, started_as
from vouchmq.server.edge.listener import Listener, SocketProtocol, shown
from vouchmq.server.edge.listening import Listening, close_all, servers_of
from vouchmq.server.edge.logging import configure_logs
from vouchmq.server.edge.memory import MemoryGauge
from vouchmq.server.edge.process import (
    IS_READY,
    IS_STOPPING,
    HashPool,
    notify,
    raise_descriptor_limit,
    tune_process,
)
from vouchmq.server.edge.progress import RecoveryProgress
from vouchmq.server.edge.ready_file import ReadyFile
from vouchmq.server.edge.resource_checks import ResourceChecks
from vouchmq.server.edge.shutdown import drain_clients, seal_journal
from vouchmq.server.edge.starting.definitions_file import DefinitionsFile
from vouchmq.server.edge.starting.stop_signals import (
    SAME_SIGNAL_S,
    SIGNALS,
    STOP_SIGNALS,
    StopAskedError,
)
from vouchmq.server.edge.subprocesses.management import start_management
from vouchmq.server.edge.tls import https_context, server_context, user_name
from vouchmq.server.edge.tls_protocol import TlsListener, TlsProtocol
from vouchmq.server.errors import StartupError
from vouchmq.server.faults.commands import FaultCommands
from vouchmq.server.faults.faults import Faults
from vouchmq.server.faults.sync_worker import Unsynced
from vouchmq.server.ledger.files import HOUR_S, LedgerFiles
from vouchmq.server.runtime.recovery_log import tell_recovered
from vouchmq.server.runtime.runtime import Host, ledger_config_of, start_broker
from vouchmq.server.settings.alarm_limits import require_disk, require_memory
from vouchmq.server.version import VERSION, build_kind
from vouchmq.store.disk import Calls, FileDisk
from vouchmq.store.errors import CopyDamaged, ReadFailed, StoreError
from vouchmq.store.sync.worker import HelperProcess, start_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vouchmq.server.definitions.file import Content
    from vouchmq.server.edge.replicated.membership import Membership
    from vouchmq.server.edge.replicated.vitals import Vitals
    from vouchmq.server.edge.subprocesses.management import ManagementProcess
    from vouchmq.server.edge.tls import Certificate
    from vouchmq.server.runtime.runtime import BrokerRuntime
    from vouchmq.server.settings.settings import Settings
    from vouchmq.store.sync.worker import SyncWorker

log = structlog.get_logger(__name__)

# Only with a shared log: with what it imports it takes 2.5 MB of memory.
MEMBERSHIP: Final = "vouchmq.server.edge.replicated.membership"
VITALS: Final = "vouchmq.server.edge.replicated.vitals"
TOKEN_OCTETS: Final = 16
IGNORED_SIGNALS: Final = (signal.SIGUSR1, signal.SIGUSR2)
# How long clients may take to close with a shared log, where another broker waits to take over.
CLIENTS_LIMIT_S: Final = 1.0
# Each start of these has found another segment that is not what was written.
MOST_STARTS: Final = 100


def run(settings: Settings) -> int:
    """Serve until a signal or a fatal error; returns the exit code.

    Raises:
        StartupError: one line that says what keeps the broker from starting
    """
    STOP_SIGNALS.catch()
    configure_logs(settings.log_level, settings.log_format)
    # Before there is a loop to say so: by default these end a process.
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    tune_process()
    # The processes beside this one come before any thread; what the first has, the other closes.
    vitals: Vitals | None = import_module(VITALS).start(settings) if settings.ha_log else None
    worker: SyncWorker = start_worker() if settings.durability_fsync else Unsynced()
    if not settings.durability_fsync:
        log.warning("durability.fsync_off", meaning="a confirm does not survive a power cut")
    if settings.test_commands:
        log.warning("test_commands.on", meaning="tests can make this broker fail")
    left = MOST_STARTS
    try:
        while True:
            left -= 1
            try:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    server = Server(settings, worker, vitals)
                    exit_code = runner.run(server.serve())
                break
            except DamagedSegmentError as error:
                if not left:
                    raise
                log.warning("journal.reopened", reason=str(error))
    finally:
        worker.close()
        if vitals is not None:
            vitals.close()
    if server.begins_again and not exit_code:
        import_module(MEMBERSHIP).begin_again()
    return exit_code


class DamagedSegmentError(StartupError):
    """A segment is not what was written or copied; the next start reads it, or the log again."""


class Server:
    """One running broker process."""

    def __init__(
        self, settings: Settings, worker: SyncWorker, vitals: Vitals | None = None
    ) -> None:
        self._settings = settings
        self._worker = worker
        self._faults: Faults | None = None
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._exit_code = 0
        self._is_open = False
        self._stop_asked_at = 0.0
        # Before anything is opened: a fault in these files shall cost no recovery.
        check_accounts(settings.all_users())
        self._tls_context = server_context(settings) if settings.tls_port else None
        if settings.management and settings.management_tls:
            https_context(settings.tls_cert_file, settings.tls_key_file)
        self._tls: TlsListener | None = None
        self._ready_file = ReadyFile(settings.ready_file) if settings.ready_file else None
        self._definitions = DefinitionsFile(settings)
        self._memory = MemoryGauge()
        require_memory(settings, self._memory.total_octets)
        self._membership: Membership | None = (
            import_module(MEMBERSHIP).Membership(settings, self._stopping.set, self._fatal, vitals)
            if settings.ha_log or settings.ha_confirm != "log"
            else None
        )
        # Cold work on files of the ledger, one after the other.
        self._io_pool = ThreadPoolExecutor(1, "ledger")
        self._hash_pool = HashPool()
        # Threads that sync in our place make calls of their own: then nobody can tell whose one is.
        self._watch = DiskWatch() if isinstance(worker, HelperProcess) else None
        self._ledger_files = self._new_ledger_files()
        self._disk_watch_thread: DiskWatchThread | None = None
        self._runtime: BrokerRuntime
        self._handshakes: Handshakes
        self._management: ManagementProcess

    @property
    def begins_again(self) -> bool:
        """Whether this process should go on as a standby: it has led, and nobody asks for its end.

        What it has in memory is of no use any more.
        """
        return self._membership is not None and not self._stop_asked_at

    async def serve(self) -> int:
        """Recover, listen, wait for the end, drain."""
        loop = asyncio.get_running_loop()
        self._handle_signals(loop)
        listening = await self._start_or_stop(loop)
        if listening is None:
            log.info("broker.stopped", exit_code=0)
            return 0
        self._is_open = True
        runtime = self._runtime
        self._handshakes = new_handshakes(self._settings, runtime)
        loop.add_reader(runtime.commit.fileno, runtime.commit.on_readable)
        # With this sync those segments go of which nothing is left: starts without any traffic
        # must not pile up files.
        runtime.commit.request()
        checks = ResourceChecks(runtime, self._memory, loop, self._stopping.is_set)
        watch = EpollWatch()
        admission = Admission(watch, loop.time, loop.call_soon, loop.call_later)
        loop.add_reader(watch.fileno(), admission.on_readable)
        listener = Listener(
            loop,
            self._new_connection,
            self._settings.deliver_high_water_bytes,
            raise_descriptor_limit(),
            look=checks.look,
            is_short=runtime.memory_relief.is_refusing,
            admission=admission,
            handshake_timeout_s=runtime.context.limits.handshake_timeout_s,
            call_later=SharedTimers(loop).call_later,
        )
        servers = await servers_of(loop, listening.sockets, partial(SocketProtocol, listener))
        if self._tls_context is not None:
            tls = self._tls = TlsListener(listener, self._tls_context, self._name_of)
            servers += await servers_of(loop, listening.tls_sockets, partial(TlsProtocol, tls))
        control_server = await self._control_server(loop, listening, servers)
        checks.start()
        self._take_signals(loop)
        self._begin_watch(loop, listener)
        settle_collector()
        self._management = start_management(self._settings, loop)
        problem = None
        if self._membership is None or await self._membership.until_serving():
            problem = await self._accept(servers, listening)
        close_all(servers)
        await self._shut_down(listener)
        loop.remove_reader(runtime.commit.fileno)
        loop.remove_reader(watch.fileno())
        if control_server is not None:
            control_server.close()
        self._close()
        if self._disk_watch_thread is not None:
            self._disk_watch_thread.end()
        if problem is not None:
            raise problem
        log.info("broker.stopped", exit_code=self._exit_code)
        return self._exit_code

    def _handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        # Before a recovery that may take its time, for by default this signal ends a process.
        loop.add_signal_handler(signal.SIGHUP, self._load_again)
        for number in IGNORED_SIGNALS:
            name = signal.Signals(number).name
            loop.add_signal_handler(number, partial(log.warning, "signal.ignored", signal=name))
        if self._membership is not None:
            self._take_signals(loop)
        # A process that has led and begins again has them blocked, for the thread of its watch.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _take_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in SIGNALS:
            loop.add_signal_handler(number, self._stop, signal.Signals(number).name)
        if STOP_SIGNALS.asked and not self._stopping.is_set():
            self._stop(STOP_SIGNALS.asked)

    async def _accept(
        self, servers: Sequence[asyncio.Server], listening: Listening
    ) -> StartupError | None:
        """Let clients in, until the end; what is wrong with the ready file."""
        if self._stopping.is_set():
            return None
        for server in servers:
            await server.start_serving()
        problem = self._ready_file.show() if self._ready_file is not None else None
        if problem is None:
            self._print_ready(listening)
            await self._stopping.wait()
        return problem

    async def _shut_down(self, listener: Listener) -> None:
        self._remove_ready_file()
        notify(IS_STOPPING)
        membership, timeout_s = self._membership, self._settings.shutdown_timeout_s
        if membership is None:
            await drain_clients(self._runtime, listener, timeout_s)
            await seal_journal(self._runtime, timeout_s)
            return
        await drain_clients(
            self._runtime,
            listener,
            min(timeout_s, CLIENTS_LIMIT_S),
            is_committed=lambda: membership.is_over or membership.is_all_safe(),
        )
        # Of a leader that was replaced nothing is to be kept that the log does not have.
        if not membership.is_over:
            await seal_journal(self._runtime, timeout_s)
            await membership.hand_over()

    async def _start_or_stop(self, loop: asyncio.AbstractEventLoop) -> Listening | None:
        """As `_start`; None if a signal has come meanwhile."""
        try:
            return await self._start(loop)
        except StopAskedError:
            if not self._stopping.is_set():
                self._stop(STOP_SIGNALS.asked)
            return None

    async def _start(self, loop: asyncio.AbstractEventLoop) -> Listening | None:
        """Recover, with everything checked before that can be: a start may fail again and again.

        With a shared log, only when this node leads; None if it was stopped before. Nothing else
        happens on the loop during recovery, as nobody is served.

        Raises:
            StartupError: the data directory is as sealed as it was, and the start does not count
            StopAskedError: the same, as a signal has come
        """
        STOP_SIGNALS.check()
        settings = self._settings
        if settings.test_commands:
            self._faults = Faults(self._worker, loop.call_later, time.monotonic)
            self._faults.clock.ahead_ms = settings.test_clock_ahead_ms
        with ExitStack() as undone:
            with self._refusals():
                new_disk = FileDisk if self._faults is None else self._faults.open_disk
                disk = new_disk(settings.data_dir, self._watch or Calls())
                undone.callback(disk.close)
                # First of all: of two brokers on one directory the second one hears of that.
                disk.lock()
                require_disk(settings, self._memory.total_octets, disk.size_bytes())
            content = self._definitions.read()
            listening = Listening.bind(settings, undone)
            self._write_ready_file(listening, undone)
            if self._membership is not None:
                is_stopped = self._stopping.is_set
                with self._refusals():
                    if not await self._membership.follow(disk, listening.port, is_stopped):
                        return None
                undone.callback(self._membership.close)
                content = self._definitions.read()
            self._runtime = self._open(loop, disk, listening, content)
            self._runtime.context.logs_connections = settings.log_level in {"debug", "info"}
            undone.pop_all()
        if self._membership is not None:
            self._membership.lead(self._runtime)
        return listening

    def _print_ready(self, listening: Listening) -> None:
        host = self._settings.host[0]
        if self._settings.log_format == "json":
            # Whoever asks for JSON reads it together with the log.
            event = {"event": "broker.ready", "level": "info", "build": build_kind()}
            sys.stdout.write(f"{json.dumps(event | listening.facts)}\n")
        else:
            if listening.tls_port:
                sys.stdout.write(f"VouchMQ TLS ready on {shown((host, listening.tls_port))}\n")
            # Last: who waits for this line waits for all.
            sys.stdout.write(f"VouchMQ ready on {shown((host, listening.port))}\n")
            if sys.stdout.isatty():
                sys.stdout.write(first_steps(self._settings, listening.port, started_as()))
        sys.stdout.flush()
        notify(IS_READY)

    def _close(self) -> None:
        """Let go of everything. What a broken disk refuses now keeps nothing else from its end."""
        steps: tuple[Callable[[], object], ...] = (
            self._management.stop,
            lambda: self._remove(control_peer.remove, self._settings.data_dir),
            self._runtime.close,
            *([self._membership.close] if self._membership is not None else []),
            self._io_pool.shutdown,
            self._ledger_files.close,
            self._hash_pool.close,
        )
        for step in steps:
            try:
                step()
            except OSError as error:
                log.warning(
                    "broker.cleanup_failed", reason=str(error), meaning="the shutdown continues"
                )

    def _load_again(self) -> None:
        """SIGHUP: read certificates, and apply the definitions file, as they are now."""
        # A standby reads them when it begins to lead.
        if self._stopping.is_set() or not self._is_open:
            return
        self._load_certificates()
        if self._settings.management_tls:
            self._management.reload()
        task = asyncio.get_running_loop().create_task(self._definitions.load_again())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _load_certificates(self) -> None:
        """Use the files as they are now for connections from now on (TLS-04)."""
        if self._tls is None:
            return
        try:
            self._tls.context = server_context(self._settings)
        except StartupError as error:
            log.error(
                "tls.reload_failed", reason=str(error), meaning="the certificates in use are kept"
            )
        else:
            log.info("tls.reloaded", path=self._settings.tls_cert_file)

    def _write_ready_file(self, listening: Listening, undone: ExitStack) -> None:
        if self._ready_file is not None:
            undone.callback(self._ready_file.drop)
            self._ready_file.write({**listening.facts, "pid": os.getpid(), "version": VERSION})

    def _remove_ready_file(self) -> None:
        if self._settings.ready_file:
            try:
                self._remove(Path.unlink, Path(self._settings.ready_file))
            except FileNotFoundError:
                pass
            except OSError as error:
                log.warning(
                    "broker.cleanup_failed", reason=str(error), meaning="the shutdown continues"
                )

    def _remove(self, how: Callable[[Path], None], path: Path) -> None:
        """Remove a file of ours, in this thread, which is watched."""
        with self._watch or Calls():
            how(path)

    def _begin_watch(self, loop: asyncio.AbstractEventLoop, listener: Listener) -> None:
        if self._watch is None:
            return
        self._disk_watch_thread = DiskWatchThread(
            self._watch,
            clients=lambda: listener.edges,
            stop=self._stop,
            soon=loop.call_soon_threadsafe,
            leave=lambda: os._exit(1),
            patience_s=self._settings.shutdown_timeout_s,
        )
        self._disk_watch_thread.start()

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """What the data directory refuses keeps the broker from starting."""
        try:
            yield
        except (CopyDamaged, ReadFailed) as error:
            raise DamagedSegmentError(str(error)) from error
        except StoreError as error:
            raise StartupError(str(error)) from error
        except OSError as error:
            raise StartupError(
                f"data directory {self._settings.data_dir}: {error.strerror or error}"
            ) from error

    def _open(
        self,
        loop: asyncio.AbstractEventLoop,
        disk: FileDisk,
        listening: Listening,
        content: Content | None,
    ) -> BrokerRuntime:
        settings = self._settings
        began = time.monotonic()
        progress = RecoveryProgress(sys.stderr, time.monotonic, check=self._advanced)
        # A loop that stands still takes no signals.
        STOP_SIGNALS.catch()

        def restored(runtime: BrokerRuntime) -> None:
            progress.close()
            tell_recovered(runtime.report, time.monotonic() - began)
            STOP_SIGNALS.check()
            self._definitions.apply_at_start(runtime, content)
            # Before the start counts: another process may have bound them as well meanwhile. Nobody
            # is accepted yet.
            listening.listen()

        if disk.lax_mode:
            log.warning(
                "data_dir.mode_unsafe",
                path=str(settings.data_dir),
                mode=f"{disk.lax_mode:04o}",
                meaning="other users can read it, or a group can write to it: chmod 700",
            )
        try:
            with self._refusals():
                self._ledger_files.open(makes=settings.ledger_enabled)
                host = Host(
                    call_soon=loop.call_soon,
                    call_later=loop.call_later,
                    clock=time.monotonic,
                    wall_ms=lambda: time.time_ns() // 1_000_000,
                    random_token=lambda: secrets.token_urlsafe(TOKEN_OCTETS),
                    fatal=self._fatal,
                    memory_octets=self._memory.total_octets,
                    elsewhere=partial(self._hash_pool.compute, loop),
                )
                return start_broker(
                    settings,
                    disk,
                    self._worker if self._faults is None else self._faults.worker,
                    host if self._faults is None else self._faults.host(host),
                    progress=progress,
                    ledger_files=self._ledger_files,
                    restored=restored,
                    tap=self._membership.tap if self._membership is not None else None,
                )
        except StartupError:
            # What it has still to do needs the files.
            self._io_pool.shutdown()
            self._ledger_files.close()
            raise
        finally:
            progress.close()

    def _advanced(self) -> None:
        """A step of recovery is done."""
        STOP_SIGNALS.check()
        if self._membership is not None:
            self._membership.advanced()

    def _new_ledger_files(self) -> LedgerFiles:
        settings = self._settings
        return LedgerFiles(
            Path(settings.ledger_dir or settings.data_dir / "ledger"),
            ledger_config_of(settings).broker,
            compresses=settings.ledger_compress == "gz",
            keep_s=settings.ledger_keep_hours * HOUR_S,
            keep_octets=settings.ledger_keep_bytes,
            run=self._io_pool.submit,
            worker=self._worker if settings.ledger_sync == "group" else None,
            calls=self._watch,
        )

    async def _control_server(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: Listening,
        servers: Sequence[asyncio.Server],
    ) -> asyncio.Server | None:
        """Let who owns the data directory look and command."""
        listener = control_listener(self._settings.data_dir)
        if listener is None:
            return None
        commands = control_commands(self._runtime, listening.facts, loop, self._settings)
        stop_listening = partial(close_all, servers)
        connections = self._runtime.connections
        DrainCommand(connections, stop_listening, self._stop, loop.call_later).register(commands)
        if self._membership is not None:
            self._membership.register(commands)
        if self._faults is not None:
            FaultCommands(self._faults, self._runtime).register(commands)
        return await loop.create_unix_server(
            lambda: control_peer.ControlPeer(commands), sock=listener
        )

    def _name_of(self, certificate: Certificate) -> str:
        settings = self._settings
        return user_name(
            certificate, settings.tls_login_from, settings.tls_san_type, settings.tls_san_index
        )

    def _new_connection(self, edge: SocketProtocol, peer: str) -> Connection:
        handshake = self._handshakes.begin(edge.name, peer, edge.certified)
        return Connection(self._runtime.context, self._runtime.connections, edge, handshake)

    def _stop(self, signal_name: str) -> None:
        now = time.monotonic()
        if not self._stop_asked_at:
            self._stop_asked_at = now
            log.info("broker.stopping", signal=signal_name)
            self._stopping.set()
            if self._membership is not None:
                self._membership.wake()
        elif now - self._stop_asked_at >= SAME_SIGNAL_S:
            log.warning(
                "broker.stop_forced",
                signal=signal_name,
                meaning="second signal: the process ends now",
            )
            # As if it had been killed: what was confirmed is on disk, and the next start finds it.
            os._exit(1)

    def _fatal(self, reason: str) -> None:
        log.critical(
            "store.failed",
            reason=reason,
            meaning="nothing is confirmed after this; the broker stops",
        )
        self._exit_code = 1
        self._stopping.set()


def new_handshakes(settings: Settings, runtime: BrokerRuntime) -> Handshakes:
    """With what the broker tells clients of itself, and what it offers them."""
    offer = Offer(
        node=settings.node,
        product=settings.compat_product,
        version=settings.compat_version or VERSION,
        platform=f"Python {platform.python_version()}",
        channel_max=settings.channel_max,
        frame_max=settings.frame_max,
        heartbeat_s=settings.heartbeat_s,
        update_secret_verify=settings.update_secret_verify,
        lacks=frozenset(
            name
            for name, is_off in (
                (IMMEDIATE, settings.compat_reject_immediate),
                (PREFETCH_SIZE, settings.compat_reject_prefetch_size),
                (FLOW, settings.compat_reject_flow),
            )
            if is_off
        ),
    )
    return Handshakes(
        offer.on(runtime.broker.data_directory),
        runtime.authenticator,
        runtime.broker.vhosts.get,
        runtime.connection_limits,
        settings.auth_mechanisms,
    )
