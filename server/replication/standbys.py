"""The standbys that a leader hears: the newest report of each, and what operators are told of them.

    heard ─▶ the newest report by node ─▶ facts: `vouchmq ha status`, metrics
    look, now and then ─▶ who is silent drops out; `replication.alone`, `replication.lagging`

Nothing here takes part in an argument for safety: whoever may send on the subject can say anything.
What is no report of this log is counted and passed over. Must not know the clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from vouchmq.server.replication.reports import ReportError, parse_report
from vouchmq.server.replication.roles import STANDBY_S

if TYPE_CHECKING:
    from vouchmq.server.replication.reports import Report

log = structlog.get_logger(__name__)

# Nodes that are known at once: each has metrics of its own.
MOST_STANDBYS: Final = 16


@dataclass(slots=True)
class _Standby:
    """What is known of one.

    Args:
        report: the newest
        heard_at: when that came
        lag: records that it did not have then, as the leader counts them
        lag_bytes: of the journal, the same
        is_lagging: that was told
    """

    report: Report
    heard_at: float
    lag: int
    lag_bytes: int
    is_lagging: bool


class Standbys:
    """Those that one leader hears.

    Args:
        name: of the leader itself, whose last report as a standby may arrive when it leads
        log_id: of the log, in hexadecimal
        now: the beginning of the lead
    """

    def __init__(self, name: str, log_id: str, now: float) -> None:
        # Messages that were no reports, or of too many nodes.
        self.ignored_count = 0
        self._name = name
        self._log_id = log_id
        self._nodes: dict[str, _Standby] = {}
        self._heard_at = now
        self._is_alone = False

    def parse(self, payload: bytes) -> Report | None:
        """The report that a message is; None if it is to be passed over."""
        try:
            report = parse_report(payload, self._log_id)
            if report.node not in self._nodes and len(self._nodes) >= MOST_STANDBYS:
                raise ReportError(f"{MOST_STANDBYS} others are heard already")
        except ReportError as error:
            self.ignored_count += 1
            if self.ignored_count == 1:
                log.warning("replication.report_ignored", reason=str(error))
            return None
        return report if report.node != self._name else None

    def heard(
        self, now: float, report: Report, *, lag: int, lag_bytes: int, segment_bytes: int
    ) -> None:
        """Take in a report.

        Args:
            now: when it came
            report: see there
            lag: committed records that this standby does not have
            lag_bytes: of the journal that this standby does not have
            segment_bytes: the lag that is told from there on
        """
        before = self._nodes.get(report.node)
        was_lagging = before is not None and before.is_lagging
        # Told once, and again when it had caught up with half of that in between.
        is_lagging = lag_bytes > (segment_bytes // 2 if was_lagging else segment_bytes)
        self._nodes[report.node] = _Standby(report, now, lag, lag_bytes, is_lagging)
        self._heard_at = now
        self._is_alone = False
        if is_lagging and not was_lagging:
            log.warning("replication.lagging", node=report.node, lag_bytes=lag_bytes)

    def look(self, now: float) -> list[str]:
        """Forget who has not reported for a while, and say so if nobody is left; their names."""
        silent = [name for name, each in self._nodes.items() if now - each.heard_at > STANDBY_S]
        for name in silent:
            del self._nodes[name]
        if now - self._heard_at > STANDBY_S and not self._is_alone:
            self._is_alone = True
            log.warning("replication.alone", meaning="no standby reports, so none can take over")
        return silent

    def facts(self, now: float) -> list[dict[str, object]]:
        """What is known of each, by name."""
        return [
            {
                "node": name,
                "address": each.report.address,
                "epoch": each.report.epoch,
                "sequence": each.report.sequence,
                "synced_sequence": each.report.synced_sequence,
                "synced_lsn": each.report.synced_lsn,
                "lag": each.lag,
                "lag_bytes": each.lag_bytes,
                "lag_s": round(each.report.lag_s, 3),
                "can_take_over": each.report.can_take_over,
                "heard_s": round(now - each.heard_at, 3),
            }
            for name, each in sorted(self._nodes.items())
        ]
