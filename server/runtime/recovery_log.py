"""What the log says of a recovery: the events that `docs/operate/log-events.md` lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from vouchmq.store.recovery.recover import RecoveryReport

log = structlog.get_logger(__name__)


def tell_recovered(report: RecoveryReport, duration_s: float) -> None:
    """Log what the start has found, and what it could not read.

    Args:
        report: of recovery
        duration_s: how long it took
    """
    log.info(
        "journal.recovered",
        segments=report.segments,
        blocks=report.blocks,
        count=report.messages,
        duration_ms=int(duration_s * 1000),
        clean=report.is_sealed,
    )
    _tell_damage(report)


def _tell_damage(report: RecoveryReport) -> None:
    """Log what the start could not read of what was once on disk."""
    if report.truncated_bytes or report.quarantined:
        log.warning("journal.truncated", size_bytes=report.truncated_bytes, kept=report.quarantined)
    for damage in report.damaged:
        log.error("journal.damaged", damage=str(damage))
    if report.unroutable_lsns is not None:
        first_lsn, last_lsn = report.unroutable_lsns
        log.error(
            "journal.messages_unroutable",
            count=report.unroutable_messages,
            first_lsn=first_lsn,
            last_lsn=last_lsn,
        )
