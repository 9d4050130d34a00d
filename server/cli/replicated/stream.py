"""`vouchmq ha create` and `resize`: the stream that several brokers share as their log."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from vouchmq.server.cli.program import EXIT_MISTAKE, CommandFailed
from vouchmq.server.edge.logging import configure_logs
from vouchmq.server.edge.replicated import engine as e
from vouchmq.server.errors import SettingsError
from vouchmq.server.replication.jetstream import WRONG_LAST_SEQUENCE, JetStreamError
from vouchmq.store.replication.record import ID_SIZE

if TYPE_CHECKING:
    from vouchmq.server.settings.settings import Settings

# Room is made by whole segments, the one that is being written stays, and compaction needs another.
LEAST_SEGMENTS: Final = 4


def create(settings: Settings, *, replicas: int, max_bytes: int) -> dict[str, object]:
    """Make the stream of the settings; gives what it is.

    Raises:
        SettingsError: the settings name no log
        CommandFailed: it cannot be made
    """
    engine = _engine(settings, max_bytes)
    log_id = secrets.token_bytes(ID_SIZE)
    try:
        asyncio.run(e.create(engine, replicas=replicas, max_bytes=max_bytes, log_id=log_id))
    except JetStreamError as error:
        if error.code == WRONG_LAST_SEQUENCE:
            raise CommandFailed(f"the stream {engine.stream} exists and has records") from None
        raise CommandFailed(f"the stream {engine.stream} cannot be made: {error.text}") from None
    return {"stream": engine.stream, "replicas": replicas, "log": log_id.hex()}


def resize(settings: Settings, *, max_bytes: int) -> dict[str, object]:
    """Set the largest size of the log; gives that, and how much of it is used.

    Raises:
        SettingsError: the settings name no log
        CommandFailed: it cannot be set
    """
    engine = _engine(settings, max_bytes)
    try:
        info = asyncio.run(e.resize(engine, max_bytes))
    except JetStreamError as error:
        raise CommandFailed(f"the stream {engine.stream} cannot be resized: {error.text}") from None
    size = info.size()
    return {"stream": engine.stream, "bytes": size["bytes"], "max_bytes": size["max_bytes"]}


def require_size(max_bytes: int, settings: Settings) -> None:
    """See that a log of this size can ever have room again once it is full.

    Raises:
        CommandFailed: it cannot
    """
    least = LEAST_SEGMENTS * settings.segment_size_bytes
    if 0 <= max_bytes < least:
        raise CommandFailed(
            f"--max-bytes: expected at least {least}, {LEAST_SEGMENTS} segments of the journal,"
            f" not {max_bytes}: a log has room again when a whole segment is not needed any more",
            EXIT_MISTAKE,
        )


def _engine(settings: Settings, max_bytes: int) -> e.Engine:
    if not settings.ha_log:
        raise SettingsError("ha_log: name the servers of the log, such as nats://host:4222")
    # Brokers need to know the monitoring addresses; to change the stream nobody does.
    engine = e.engine_of(replace(settings, ha_unsafe_log=True))
    require_size(max_bytes, settings)
    configure_logs("warning", "auto")
    return engine
