"""`vouchmq ha create`: makes the stream that several brokers share as their log."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from vouchmq.server.cli.program import CommandFailed
from vouchmq.server.edge.logging import configure_logs
from vouchmq.server.edge.replicated import engine as e
from vouchmq.server.errors import SettingsError
from vouchmq.server.replication.jetstream import WRONG_LAST_SEQUENCE, JetStreamError
from vouchmq.store.replication.record import ID_SIZE

if TYPE_CHECKING:
    from vouchmq.server.settings.settings import Settings


def create(settings: Settings, *, replicas: int, max_bytes: int) -> dict[str, object]:
    """Make the stream of the settings; gives what it is.

    Raises:
        SettingsError: the settings name no log
        CommandFailed: it cannot be made
    """
    if not settings.ha_log:
        raise SettingsError("ha_log: name the servers of the log, such as nats://host:4222")
    # Brokers need to know the monitoring addresses; to make the stream nobody does.
    engine = e.engine_of(replace(settings, ha_unsafe_log=True))
    configure_logs("warning", "auto")
    log_id = secrets.token_bytes(ID_SIZE)
    try:
        asyncio.run(e.create(engine, replicas=replicas, max_bytes=max_bytes, log_id=log_id))
    except JetStreamError as error:
        if error.code == WRONG_LAST_SEQUENCE:
            raise CommandFailed(f"the stream {engine.stream} exists and has records") from None
        raise CommandFailed(f"the stream {engine.stream} cannot be made: {error.text}") from None
    return {"stream": engine.stream, "replicas": replicas, "log": log_id.hex()}
