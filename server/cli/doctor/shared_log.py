"""The shared log: whether its servers answer, and whether they and the stream are set up for it.

The same is asked as by a broker that starts; a broker waits for servers that do not answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from vouchmq.server.cli.doctor.findings import Finding, Level
from vouchmq.server.cli.units import amount
from vouchmq.server.edge.logging import configure_logs
from vouchmq.server.edge.replicated import engine as e
from vouchmq.server.errors import StartupError
from vouchmq.server.replication.jetstream import STREAM_NOT_FOUND, JetStreamError
from vouchmq.server.replication.log import HEARD_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vouchmq.server.edge.replicated.engine import Engine, Seen
    from vouchmq.server.settings.settings import Settings

SUBJECT: Final = "shared log"
# Of its limit, as in the alert.
FULL_SHARE: Final = 0.8
LOOK_AT_SERVERS: Final = (
    "a majority of its servers must run and reach each other: look at their logs and at ha_log"
)


def check_log(
    settings: Settings, look: Callable[[Engine], Seen] | None = None
) -> Iterator[Finding]:
    """Whether brokers can use the log that the settings name."""
    if not settings.ha_log and settings.ha_confirm == "log":
        return
    try:
        engine = e.engine_of(settings)
    except StartupError as error:
        text = "; ".join(map(str, error.args))
        yield Finding(Level.ERROR, SUBJECT, text, "mend the settings that begin with ha_")
        return
    try:
        seen = (look or _look)(engine)
    except JetStreamError as error:
        if error.code == STREAM_NOT_FOUND:
            text, mend = f"there is no stream {engine.stream}", "vouchmq ha create makes it, once"
        else:
            text, mend = f"it does not answer: {error.text}", LOOK_AT_SERVERS
        yield Finding(Level.ERROR, SUBJECT, text, mend)
        return
    level = Level.WARNING if settings.ha_unsafe_log else Level.ERROR
    yield from (Finding(level, SUBJECT, each) for each in seen.faults)
    yield from (Finding(Level.WARNING, SUBJECT, each) for each in seen.unseen)
    yield _of_stream(engine, seen)
    yield from _of_size(seen.info.size())


def _of_stream(engine: Engine, seen: Seen) -> Finding:
    name = f"the stream {engine.stream}"
    if not seen.info.hears_majority(HEARD_S):
        text = f"{name} has no majority of its servers"
        return Finding(Level.ERROR, SUBJECT, text, LOOK_AT_SERVERS)
    if seen.log is None:
        text = f"{name} has no log, or has lost its beginning"
        mend = "vouchmq ha create makes one, or vouchmq ha rescue of what a node still has"
        return Finding(Level.ERROR, SUBJECT, text, mend)
    if not seen.log.is_finished:
        mend = "run vouchmq ha create --from or vouchmq ha rescue again"
        return Finding(Level.ERROR, SUBJECT, f"the log in {name} is not complete", mend)
    size = seen.info.size()
    text = f"{size['current_replicas']} of {size['replicas']} servers have all of {name}"
    if size["current_replicas"] < size["replicas"]:
        mend = "look at the servers that do not, or wait until they have caught up"
        return Finding(Level.WARNING, SUBJECT, text, mend)
    return Finding(Level.OK, SUBJECT, text)


def _of_size(size: dict[str, int]) -> Iterator[Finding]:
    used, limit = size["bytes"], size["max_bytes"]
    if limit >= 0 and used > FULL_SHARE * limit:
        text = f"it has {amount(used)} of at most {amount(limit)}; a full one blocks publishers"
        mend = "have messages consumed, or give it more: vouchmq ha resize"
        yield Finding(Level.WARNING, SUBJECT, text, mend)


def _look(engine: Engine) -> Seen:
    configure_logs("critical", "auto")
    return asyncio.run(e.see(engine))
