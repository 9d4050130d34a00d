"""The sections with plots over time: throughput, latency, redeliveries, unacked, dead letters.

Each asks the tables, draws, and puts the table behind the drawing. A section whose table has no
rows says so in a sentence: an empty plot would leave open whether nothing happened or nothing was
looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from vouchmq.spark.report import page as page
from vouchmq.spark.report import plots as plots
from vouchmq.spark.report.page import Cells
from vouchmq.spark.report.plots import Bar, Series, instant
from vouchmq.spark.report.tables import BINS_PER_OCTAVE, KINDS, Heat, Row, Tables, micros

MOST_BARS: Final = 15
SHOWN_QUANTILES: Final = ("p50", "p95", "p99", "max")
RATES: Final = ("published", "confirmed", "delivered", "acked")
TROUBLE: Final = ("redelivered", "requeued", "nacked", "dead_lettered", "dropped")
WORST: Final = [("p99", "descending"), ("queue", "ascending")]


def throughput(tables: Tables) -> Markup:
    """Messages a second by what happened to them."""
    rows = tables.sums("rates", ["t", "width_s"], [*RATES, *TROUBLE])
    if not rows:
        return page.paragraph("No message was published or delivered.")
    width_s = int(rows[0]["width_s"])
    times, filled = every_bucket(rows, width_s)
    series = [
        Series(name, [(row[name] or 0) / width_s if row else 0.0 for row in filled])
        for name in RATES
    ]
    svg = plots.lines("rates", "Messages a second over time", times, series, "messages / s")
    shown: list[Cells] = [
        [instant(micros(row["t"])), *(whole(row[name]) for name in RATES)] for row in rows
    ]
    caption = f"Messages a second, of all brokers together, in steps of {width_s} s."
    return page.plot(svg, caption) + page.behind(
        f"Messages in each step of {width_s} s", ["from (UTC)", *RATES], shown, "rates"
    )


def every_bucket(rows: Sequence[Row], width_s: int) -> tuple[list[int], list[Row | None]]:
    """The rows with the buckets in which nothing happened: a line must fall to zero there."""
    by_time = {micros(row["t"]): row for row in rows}
    times = grid(list(by_time), width_s * 1_000_000)
    return times, [by_time.get(time_us) for time_us in times]


def grid(times: Sequence[int], step: int) -> list[int]:
    """All times from the first to the last in steps; just those given if they are of no grid."""
    made = list(range(min(times), max(times) + 1, step)) if step > 1 else []
    return made if set(times) <= set(made) else sorted(times)


def latency(tables: Tables) -> Markup:
    """How long confirms, first deliveries and acks took: over time, and as a heat map."""
    found = {kind: heat for kind in KINDS if (heat := tables.heat(kind)).cells}
    if not found:
        return page.paragraph("Nothing was confirmed, delivered or acknowledged.")
    panels = [(KINDS[kind], *_quantile_lines(heat)) for kind, heat in found.items()]
    svg = plots.latencies("latency", "Percentiles of latency over time", panels)
    parts = [page.plot(svg, "Percentiles over time; each is the upper edge of a bin 19 % wide.")]
    for kind, heat in found.items():
        shown: list[Cells] = [
            [instant(time_us), count, *(plots.duration(value) for value in values)]
            for time_us, count, values in heat.quantiles()
        ]
        headings = ["from (UTC)", "count", *SHOWN_QUANTILES]
        parts.append(page.behind(f"Percentiles: {KINDS[kind]}", headings, shown, "heat"))
    for kind, heat in found.items():
        caption = f"How many took how long: {KINDS[kind]}. Stronger is more, logarithmically."
        parts.append(page.plot(heat_map(kind, heat), caption))
    return page.joined([*parts, slowest_queues(tables)])


def _quantile_lines(heat: Heat) -> tuple[list[int], list[Series]]:
    """A line for each percentile, with a gap where nothing was measured."""
    found = {time_us: values for time_us, _, values in heat.quantiles()}
    times = grid(list(found), heat.width_us)
    series = [
        Series(name, [found[time_us][place] if time_us in found else None for time_us in times])
        for place, name in enumerate(SHOWN_QUANTILES)
    ]
    return times, series


def heat_map(kind: str, heat: Heat) -> Markup:
    """The heat map of one kind of latency."""
    title = f"Heat map: {KINDS[kind]}"
    return plots.heat(
        f"heat-{kind}", title, heat.times_us, heat.width_us, heat.cells, BINS_PER_OCTAVE
    )


def slowest_queues(tables: Tables) -> Markup:
    """The queues whose hours were worst, exactly: these percentiles are the audit's own."""
    names = ("p50", "p95", "p99", "p999", "max")
    parts = []
    for kind, title in KINDS.items():
        shown: list[Cells] = [
            (
                *(instant(micros(row["hour"])), page.name(row["b"]), page.name(row["queue"])),
                *(row["count"], *(plots.duration(row[name]) for name in names)),
            )
            for row in tables.rows("latency", WORST, page.SHOWN_ROWS, kind=kind)
        ]
        if shown:
            headings = ["hour (UTC)", "broker", "queue", "count", *names]
            total = tables.count("latency", kind=kind)
            parts.append(page.behind(f"Slowest queues: {title}", headings, shown, "latency", total))
    return page.joined(parts)


def redeliveries(tables: Tables) -> Markup:
    """What came more than once, and why."""
    rows = tables.sums("rates", ["t", "width_s"], [*RATES, *TROUBLE])
    total: Counter[str] = Counter()
    for row in rows:
        total.update({name: int(row[name] or 0) for name in ("delivered", *TROUBLE)})
    if not total["redelivered"] and not total["requeued"]:
        return page.paragraph("Nothing was delivered twice or requeued.")
    width_s = int(rows[0]["width_s"])
    times, filled = every_bucket(rows, width_s)
    series = [
        Series(name, [(row[name] or 0) / width_s if row else 0.0 for row in filled])
        for name in ("redelivered", "requeued")
    ]
    svg = plots.lines("redelivered", "Redeliveries over time", times, series, "messages / s")
    share = total["redelivered"] / max(1, total["delivered"])
    shown: list[Cells] = [
        [instant(micros(row["t"])), whole(row["redelivered"]), whole(row["requeued"])]
        for row in rows
        if row["redelivered"] or row["requeued"]
    ]
    headings = ["from (UTC)", "redelivered", "requeued"]
    return (
        page.paragraph(
            f"{total['redelivered']:,} of {total['delivered']:,} deliveries ({share:.2%}) "
            "were not the first of their message."
        )
        + page.plot(svg, "Redeliveries and requeues a second.")
        + page.behind("Steps with a redelivery or requeue", headings, shown, "rates")
        + requeues(tables)
        + poison(tables)
    )


def requeues(tables: Tables) -> Markup:
    """Why messages went back into their queues."""
    reasons: Counter[str] = Counter()
    found = tables.table("consumers")
    for each in found.column("requeues").to_pylist() if found is not None else []:
        reasons.update(dict(each or {}))
    if not reasons:
        return Markup("")
    shown: list[Cells] = [[page.name(why), count] for why, count in reasons.most_common()]
    return page.behind("Requeues by reason", ["reason", "messages"], shown, "consumers")


def poison(tables: Tables) -> Markup:
    """Messages that were delivered again and again."""
    rows = tables.rows("poison", [("n_dlv", "descending")], page.SHOWN_ROWS)
    if not rows:
        return Markup("")
    shown: list[Cells] = [
        [row["b"], page.name(row["queue"]), row["lsn"], row["n_dlv"], row["n_req"], row["state"]]
        for row in rows
    ]
    headings = ["broker", "queue", "LSN", "deliveries", "requeued", "end"]
    return page.behind(
        "Messages delivered again and again", headings, shown, "poison", tables.count("poison")
    )


def unacked(tables: Tables) -> Markup:
    """How long consumers keep what they were given, and how much of it."""
    rows = tables.rows("consumers", [("oldest_unacked_us", "descending")], page.SHOWN_ROWS)
    if not rows:
        return page.paragraph("There was no consumer.")
    worst: dict[str, float] = {}
    for row in rows:
        label = f"{row['queue']} · {row['g']}"
        worst[label] = max(worst.get(label, 0.0), (row["oldest_unacked_us"] or 0) / 1e6)
    shown_bars = [Bar(label, seconds) for label, seconds in list(worst.items())[:MOST_BARS]]
    svg = plots.bars("unacked", "Oldest unacked", shown_bars, "seconds", logarithmic=False)
    names = ("deliveries", "redeliveries", "acks", "unacked_mean", "unacked_max", "prefetch")
    shown: list[Cells] = [
        (
            *(instant(micros(row["hour"])), page.name(row["queue"]), page.name(row["g"])),
            *(row[name] for name in names),
            *(percent(row["utilisation"]), plots.duration(row["oldest_unacked_us"] or 0)),
        )
        for row in rows
    ]
    headings = ["hour (UTC)", "queue", "consumer", "deliveries", "again", "acks", "unacked mean"]
    headings += ["unacked max", "prefetch", "utilisation", "oldest"]
    caption = "The longest that a consumer kept a message unacked, worst consumers first" + (
        f" ({MOST_BARS} of {tables.count('consumers'):,})." if len(worst) > MOST_BARS else "."
    )
    return page.plot(svg, caption) + page.behind(
        "Consumers", headings, shown, "consumers", tables.count("consumers")
    )


def dead_letters(tables: Tables) -> Markup:
    """What was dead-lettered: from where, why, to where."""
    rows = tables.sums("dead_letters", ["queue", "why", "target"], ["count"])
    if not rows:
        return page.paragraph("Nothing was dead-lettered.")
    rows.sort(key=lambda row: -row["count"])
    bars = [Bar(f"{row['queue']} · {row['why']}", row["count"]) for row in rows[:MOST_BARS]]
    svg = plots.bars("letters", "Dead letters", bars, "messages", logarithmic=False)
    shown: list[Cells] = [
        [
            page.name(row["queue"]),
            row["why"],
            page.name(row["target"] or page.NONE),
            row["count"],
        ]
        for row in rows[: page.SHOWN_ROWS]
    ]
    headings = ["queue", "reason", "to", "messages"]
    return page.plot(svg, "Dead letters by queue and reason.") + page.behind(
        "Dead letters", headings, shown, "dead_letters", len(rows)
    )


def whole(value: object) -> int:
    """A sum as a whole number; nothing is 0."""
    return int(value) if isinstance(value, int | float) else 0


def percent(value: object) -> str:
    """A share from 0 to 1 as a text in percent."""
    return f"{value:.0%}" if isinstance(value, int | float) else page.NONE
