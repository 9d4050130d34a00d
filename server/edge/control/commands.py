"""Everything that a running broker can be asked over its control socket, and the socket itself.

Whoever adds commands (`server/admin`) registers them in `control_commands`.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from typing import TYPE_CHECKING, Final

import structlog

from vouchmq.server.admin.accounts.administration import Administration
from vouchmq.server.admin.accounts.definitions import DefinitionsCommands
from vouchmq.server.admin.accounts.policies import PolicyCommands
from vouchmq.server.admin.accounts.users import UserCommands
from vouchmq.server.admin.accounts.vhosts import VHostCommands
from vouchmq.server.admin.announced import Announcements
from vouchmq.server.admin.backup import BackupCommands
from vouchmq.server.admin.commands import Arguments, ControlCommands, refuse
from vouchmq.server.admin.details import KINDS as DETAILS
from vouchmq.server.admin.details import Details
from vouchmq.server.admin.ledger import LedgerCommands
from vouchmq.server.admin.listing import ListingCommands, RowSender
from vouchmq.server.admin.login import LoginCommands
from vouchmq.server.admin.measures import KINDS as MEASURES
from vouchmq.server.admin.measures import measures_of
from vouchmq.server.admin.numbers.samples import Samples
from vouchmq.server.admin.objects.connections import ConnectionCommands
from vouchmq.server.admin.objects.exchanges import ExchangeCommands
from vouchmq.server.admin.objects.messages import MessageCommands
from vouchmq.server.admin.objects.move import MoveCommands
from vouchmq.server.admin.objects.operator import Operator
from vouchmq.server.admin.objects.peek import PeekCommands
from vouchmq.server.admin.objects.queues import QueueCommands
from vouchmq.server.admin.objects.waiting import WaitCommands, Waits
from vouchmq.server.admin.status import StatusCommand
from vouchmq.server.admin.views import KINDS, Views
from vouchmq.server.admin.watch import WatchCommand
from vouchmq.server.edge.control.client import LISTENERS, NAME
from vouchmq.server.edge.control.peer import listening_socket
from vouchmq.server.edge.listener import RESERVED_DESCRIPTORS
from vouchmq.server.runtime.loop_lag import LoopLag
from vouchmq.server.version import VERSION, build_kind

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping
    from pathlib import Path
    from socket import socket

    from vouchmq.server.admin.commands import Reply
    from vouchmq.server.runtime.runtime import BrokerRuntime
    from vouchmq.server.settings.settings import Settings

log = structlog.get_logger(__name__)

# Of a broker with a shared log, which registers them itself.
LOG_COMMANDS: Final = ("ha status", "ha handover")


def control_commands(
    runtime: BrokerRuntime,
    listeners: Mapping[str, object],
    loop: asyncio.AbstractEventLoop,
    settings: Settings,
) -> ControlCommands:
    """The commands of one broker.

    Args:
        runtime: what they show and change
        listeners: where it listens, for whoever asks
        loop: that of the broker
        settings: with which it was started
    """
    commands = ControlCommands()

    def tell_listeners(_: Arguments, reply: Reply) -> None:
        reply({"ok": True, "version": VERSION, **listeners})

    commands.register(LISTENERS, Arguments, tell_listeners)
    LoginCommands(runtime.authenticator, runtime.broker.vhosts).register(commands)
    facts = facts_of(runtime, listeners, settings)
    announced = Announcements()
    announced.register(commands)
    StatusCommand(facts, settings, loop.time, announced.facts).register(commands)
    administration = Administration(runtime)
    LedgerCommands(runtime, loop.call_soon_threadsafe, administration).register(commands)
    views = Views(runtime.context, runtime.connections, runtime.journal, runtime.commit)
    wall_ms = lambda: time.time_ns() // 1_000_000  # noqa: E731
    # Not the time of the loop, which counts whole milliseconds: a slice takes one.
    samples = Samples(
        views, time.monotonic, wall_ms, runtime.context.budget.put_off, loop.call_later
    )
    details = Details(views, runtime.context.clock, wall_ms, samples)
    samples.start()
    sender = RowSender(runtime.context.budget.put_off, time.monotonic)
    ListingCommands(views.listings, KINDS, sender).register(commands)
    ListingCommands(details.listings, DETAILS, sender).register(commands)
    loop_lag = LoopLag(loop.call_later, time.monotonic)
    loop_lag.start()
    measures = measures_of(runtime, views, loop_lag.histogram)
    ListingCommands(measures.listings, MEASURES, sender).register(commands)
    register_account_commands(commands, administration, sender)
    WatchCommand(runtime.events, wall_ms).register(commands)
    BackupCommands(
        runtime.journal,
        runtime.broker.data_directory,
        runtime.alarms,
        request_sync=runtime.commit.request,
        later=runtime.context.budget.put_off,
        call_later=loop.call_later,
        clock=loop.time,
    ).register(commands)
    waits = Waits.after(runtime.turn, loop.call_later, loop.time)
    register_object_commands(commands, runtime, waits)
    if not settings.ha_log:
        for name in LOG_COMMANDS:
            commands.register(name, Arguments, refuse_without_log)
    return commands


def refuse_without_log(_: Arguments, reply: Reply) -> None:
    """Answer what only a broker of a shared log does."""
    refuse(reply, "this broker has no shared log: ha_log is not set", 406)


def facts_of(
    runtime: BrokerRuntime, listeners: Mapping[str, object], settings: Settings
) -> dict[str, object]:
    """What `status` tells of this process."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    limit = descriptors - RESERVED_DESCRIPTORS
    if settings.connection_max >= 0:
        limit = min(limit, settings.connection_max)
    return {
        "node": settings.node,
        "version": VERSION,
        "build": build_kind(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "data_directory_id": runtime.broker.data_directory.identity,
        "data_directory": str(settings.data_dir.absolute()),
        "listeners": listeners,
        "processors": os.cpu_count() or 1,
        "descriptor_limit": descriptors,
        "connection_limit": limit,
        "auth_mechanisms": list(settings.auth_mechanisms),
    }


def register_object_commands(
    commands: ControlCommands, runtime: BrokerRuntime, waits: Waits
) -> None:
    """Enter the commands that act on what is in virtual hosts, and on connections."""
    operator = Operator(
        runtime.context, runtime.all_connections.commands, runtime.authenticator.find
    )
    ExchangeCommands(operator).register(commands)
    QueueCommands(operator).register(commands)
    MessageCommands(operator).register(commands)
    MoveCommands(operator, runtime.dead_letter_publisher).register(commands)
    PeekCommands(operator, runtime.all_connections).register(commands)
    WaitCommands(operator, waits).register(commands)
    ConnectionCommands(operator, runtime.connections).register(commands)


def register_account_commands(
    commands: ControlCommands, administration: Administration, sender: RowSender
) -> None:
    """Enter the commands that change users, virtual hosts, policies and parameters."""
    UserCommands(administration).register(commands)
    VHostCommands(administration).register(commands)
    PolicyCommands(administration).register(commands)
    DefinitionsCommands(administration, sender).register(commands)


def control_listener(directory: Path) -> socket | None:
    """The control socket of a data directory; None where there can be no sockets."""
    try:
        return listening_socket(directory)
    except OSError as error:
        log.warning("control.unavailable", path=str(directory / NAME), reason=str(error))
        return None
