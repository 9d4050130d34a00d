"""`vouchmq ha create --from` and `ha rescue`: a stopped broker's directory becomes a log."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TextIO

from vouchmq.server.cli.program import CommandFailed, complain
from vouchmq.server.cli.replicated.stream import require_size
from vouchmq.server.cli.units import amount
from vouchmq.server.edge.logging import configure_logs
from vouchmq.server.edge.progress import RecoveryProgress
from vouchmq.server.edge.replicated.copying import CopyError, NewStream, copy
from vouchmq.server.edge.replicated.engine import engine_of
from vouchmq.server.errors import SettingsError
from vouchmq.server.replication.jetstream import JetStreamError
from vouchmq.store.disk import FileDisk
from vouchmq.store.errors import StoreError
from vouchmq.store.journal.segment import parse_generation
from vouchmq.store.recovery.recover import check_stopped
from vouchmq.store.replication.copy_source import damage_of, undeclared
from vouchmq.store.replication.position_file import read_positions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vouchmq.server.settings.settings import Settings
    from vouchmq.store.recovery.summary_check import SummaryCheck

# Where there is no terminal, a line tells so often how far it is.
LINE_S: Final = 10.0
# So many damaged places are named.
MOST_NAMED: Final = 5


def copy_directory(
    settings: Settings,
    directory: Path,
    command: str,
    *,
    replicas: int,
    max_bytes: int,
    is_rescue: bool,
) -> dict[str, object]:
    """Make a log that begins with a directory, which becomes a node of it; gives what it is.

    Raises:
        SettingsError: the settings name no log
        CommandFailed: it cannot be made
    """
    if not settings.ha_log:
        raise SettingsError("ha_log: name the servers of the log, such as nats://host:4222")
    # Whether the servers can be trusted is for the brokers to see, as with an empty log.
    engine = engine_of(replace(settings, ha_unsafe_log=True))
    require_size(max_bytes, settings)
    if not directory.is_dir():
        raise CommandFailed(f"{directory} is no data directory", 2)
    told = _Told(sys.stderr, time.monotonic)
    try:
        with closing(FileDisk(directory)) as disk:
            disk.lock()
            if is_rescue and not read_positions(disk):
                raise CommandFailed(
                    f"{directory} belongs to no log: vouchmq ha create --from makes one of it"
                )
            checked = _check(disk, directory)
            configure_logs("error", "auto")
            copied = asyncio.run(
                copy(
                    engine,
                    disk,
                    checked,
                    NewStream(replicas, max_bytes, is_replacement=is_rescue),
                    f"vouchmq ha {command}",
                    progress=told.copied,
                    say=told.say,
                )
            )
    except JetStreamError as error:
        raise CommandFailed(f"the log cannot be made: {error.text}") from None
    except (CopyError, StoreError) as error:
        raise CommandFailed(str(error)) from None
    except OSError as error:
        raise CommandFailed(f"{directory}: {error.strerror or error}") from None
    finally:
        told.close()
    return {
        "stream": engine.stream,
        "log": copied.log_id.hex(),
        "directory": str(directory),
        "block": copied.block,
        "lsn": copied.lsn,
        "size_bytes": copied.size_bytes,
        "is_new": copied.is_new,
    }


def _check(disk: FileDisk, directory: Path) -> SummaryCheck:
    """See that nothing is missing in a directory.

    Raises:
        CommandFailed: something is, or there is nothing
        StoreError: a newer program wrote it
        OSError: the disk refused
    """
    if not any(parse_generation(name) is not None for name in disk.listdir()):
        raise CommandFailed(f"{directory} contains no VouchMQ journal", 2)
    bar = RecoveryProgress(sys.stderr, time.monotonic, "checking the journal")
    try:
        checked = check_stopped(disk, bar)
    finally:
        bar.close()
    verdict = checked.verdict
    damage = damage_of(verdict)
    if damage:
        more = f", and {len(damage) - MOST_NAMED} more" if len(damage) > MOST_NAMED else ""
        raise CommandFailed(
            f"{directory} is damaged, so a log of it would lack what was confirmed:"
            f" {'; '.join(damage[:MOST_NAMED])}{more}. Take the directory of another node or a"
            " backup; a broker that is started there without ha_log leaves out what is damaged"
        )
    if not verdict.accepted:
        raise CommandFailed(f"{directory} contains no whole block of a journal", 2)
    gap = undeclared(verdict.accepted)
    if gap is not None:
        raise CommandFailed(
            f"{directory} does not say what became of blocks {gap[0]} to {gap[1]}: start the broker"
            " there once without ha_log, and stop it"
        )
    return checked


class _Told:
    """What is said while the log is made.

    Args:
        out: where
        clock: monotonic seconds
    """

    def __init__(self, out: TextIO, clock: Callable[[], float]) -> None:
        self._out = out
        self._clock = clock
        self._bar = RecoveryProgress(out, clock, "copying the journal")
        self._line_at = clock() + LINE_S
        self._said = ""

    def copied(self, done: int, total: int) -> None:
        """So many of so many bytes are in the log."""
        self._bar(done, total)
        if not self._out.isatty() and self._clock() >= self._line_at:
            self._line_at = self._clock() + LINE_S
            self._out.write(f"{amount(done)} of {amount(total)} copied\n")

    def say(self, reason: str) -> None:
        """Nothing goes on, for this reason."""
        if reason != self._said:
            self._said = reason
            complain(f"waiting for the log: {reason}")

    def close(self) -> None:
        """Remove what is shown of the progress."""
        self._bar.close()
