"""Holds what clients saw against what the broker wrote: every confirm and every ack in both.

Needs a ledger with message ids (`ledger.detail = messages`). Must not know how either came to be
written, nor judge a message that only one side speaks of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def differences(messages: DataFrame, ledger_lines: DataFrame) -> DataFrame:
    """(kind, m, t, detail) of what the clients were told, or said, and the broker knows nothing of.

    An ack that was on its way when the broker was killed is no difference: such a message is
    received again, or is in a later inventory.

    Args:
        messages: judged, as `vouchmq.spark.witness.witness` makes them
        ledger_lines: as `vouchmq.spark.ledger.lines.read` makes them
    """
    lines = ledger_lines.where("NOT broken").cache()
    published = publishes(lines)
    confirmed = published.join(confirms(lines), ["b", "o", "c", "h", "number"], "left_semi")
    unknown = (
        messages.where("n_cnf > 0")
        .join(confirmed.select("m"), "m", "left_anti")
        .selectExpr(
            "'confirm_unknown' AS kind", "m", "t_cnf AS t", "concat('route ', route) AS detail"
        )
    )
    copies = published.where("lsn IS NOT NULL").select("m", "b", "lsn").distinct()
    acked = copies.join(lsns(lines, "ack"), ["b", "lsn"], "left_semi").select("m")
    # Still there, by a list that was made after the ack.
    held = (
        copies.join(lsns(lines, "inv"), ["b", "lsn"])
        .join(messages.select("m", "t_ack"), "m")
        .where("at_t > t_ack")
        .select("m")
    )
    unheard = (
        messages.where("n_ack > 0 AND NOT came_after_ack")
        .join(acked, "m", "left_anti")
        .join(held, "m", "left_anti")
        .selectExpr("'ack_unknown' AS kind", "m", "t_ack AS t", "concat('queue ', queue) AS detail")
    )
    return unknown.unionByName(unheard)


def publishes(lines: DataFrame) -> DataFrame:
    """(b, o, c, h, number, lsn, m): one row for each publish whose id the ledger has."""
    return (
        lines.where("e = 'pub' AND m IS NOT NULL")
        .selectExpr(
            *("b", "o", "c", "h", "CAST(s[0] AS bigint) AS first", "lsn[0] AS first_lsn"),
            "posexplode(from_json(m, 'array<string>')) AS (place, m)",
        )
        .where("m IS NOT NULL")
        .selectExpr(
            *("b", "o", "c", "h", "first + place AS number", "first_lsn + place AS lsn", "m")
        )
    )


def confirms(lines: DataFrame) -> DataFrame:
    """(b, o, c, h, number) of what was confirmed."""
    return (
        lines.where("e = 'cnf' AND ok = 1")
        .selectExpr("b", "o", "c", "h", "explode(i) AS run")
        .selectExpr("b", "o", "c", "h", "explode(sequence(run[0], run[1])) AS number")
    )


def lsns(lines: DataFrame, kind: str) -> DataFrame:
    """(b, lsn, at_t) of the copies that lines of this kind speak of."""
    return (
        lines.where(f"e = '{kind}'")
        .selectExpr("b", "t AS at_t", "explode(i) AS run")
        .selectExpr("b", "at_t", "explode(sequence(run[0], run[1])) AS lsn")
    )
