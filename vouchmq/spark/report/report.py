"""The audit's tables as one page: the verdict first, then what it rests on, plots and tables.

    from vouchmq.spark.report.report import write
    write(Path("audit-tables"), Path("report.html"))

One file that needs no network, follows light and dark, and can be read on a telephone. `tables.py`
reads the small tables, `plots.py` draws, `page.py` and `report.html` make HTML, `sections.py` puts
the plots over time together; here are the parts that judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from markupsafe import Markup

from vouchmq.spark.audit.verdicts import PHRASES, sentence
from vouchmq.spark.report import page as page
from vouchmq.spark.report import plots as plots
from vouchmq.spark.report import sections as sections
from vouchmq.spark.report.page import Cells, Section
from vouchmq.spark.report.plots import Bar, Span, instant
from vouchmq.spark.report.tables import Row, Tables, micros

MOST_EPOCHS: Final = 40
BY_RANK: Final = [("rank", "ascending")]
GOOD, BAD, UNSURE = "good", "bad", "unsure"
COLOURS: Final = {GOOD: plots.GOOD, BAD: plots.BAD, UNSURE: plots.UNSURE, "": plots.LINES[0]}
STATES: Final = {
    "LOST": (BAD, "persistent and confirmed, no end, and not in the queue afterwards"),
    "double_end": (BAD, "more than one of ack, dead letter, drop, delivery without ack"),
    "orphan": (BAD, "events, but never published"),
    "unproven": (UNSURE, "would be lost, but lines of the ledger are missing there"),
    "resurrected": (UNSURE, "ended, and in the queue again after a crash: its ack was not synced"),
    "open": (UNSURE, "published after the newest inventory of its queue: no verdict yet"),
    "acked": (GOOD, "acknowledged"),
    "dead_lettered": (GOOD, "dead-lettered"),
    "dropped": (GOOD, "expired, over a limit, purged, or deleted with its queue"),
    "delivered_no_ack": (GOOD, "delivered to a consumer that does not acknowledge"),
    "queued": (GOOD, "in the newest inventory of its queue"),
    "transient_gone": ("", "not persistent, gone with a restart"),
    "unconfirmed_gone": ("", "never confirmed, so it may be lost"),
    "known": ("", "was there before the ledger was switched on"),
}


ENDS: Final = {
    "stop": (GOOD, "", "stopped cleanly"),
    "off": (GOOD, "", "ledger switched off"),
    "crash": (UNSURE, "crash", "crash: another epoch follows, and this one has no last line"),
    None: (GOOD, "still running", "none yet: it was running when the ledger was read"),
}


def write(tables: Path, out: Path) -> None:
    """Write the report of an audit's tables as one HTML file; replaced at once when it is whole.

    Args:
        tables: what the audit wrote
        out: the page

    Raises:
        ReportError: there are no tables
        OSError: they cannot be read, or the page cannot be written
    """
    made = Tables(tables)
    text = page.page("VouchMQ audit", header(made), [_section(made, *each) for each in SECTIONS])
    partial = out.with_name(f".{out.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(out)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _section(
    tables: Tables, identity: str, title: str, make: Callable[[Tables], Markup]
) -> Section:
    return Section(identity, title, make(tables))


def header(tables: Tables) -> Markup:
    """The verdict as a sentence, in figures, and what was looked at."""
    states, found = tables.states(), finding_counts(tables)
    epochs = tables.rows("completeness")
    missing = sum(lacking(row) for row in epochs)
    broken = int(tables.summary().get("broken") or 0)
    unseen = sum(int(row["unseen"] or 0) for row in epochs)
    kind, word, text = verdict(states, found, (missing, broken, unseen))
    return page.header(kind, word, text, facts(tables, states, epochs))


def verdict(
    states: Counter[str], found: Counter[str], lacks: tuple[int, int, int]
) -> tuple[str, str, str]:
    """Which colour, which headline, which sentence.

    Args:
        states: how many copies have each
        found: how many findings of each kind
        lacks: lines that the ledgers lack, lines that cannot be read, times without a ledger
    """
    missing, broken, unseen = lacks
    bad = found + Counter({name: states[name] for name in of_colour(BAD) if name not in found})
    bad = Counter({name: count for name, count in bad.items() if count and name in failing(found)})
    copies = sum(states.values())
    if bad:
        listed = ", ".join(f"{count:,} {name}" for name, count in bad.most_common())
        said = said_in_words(bad)
        return BAD, f"{said[0].upper()}{said[1:]}", f"Of {copies:,} copies of messages: {listed}."
    if any(lacks) or states["unproven"]:
        unread = f", {broken:,} cannot be read" if broken else ""
        unread += f", of {unseen:,} stretches of time there is no ledger" if unseen else ""
        return (
            UNSURE,
            "Not provable",
            f"Nothing wrong was found in {copies:,} copies of messages, but {missing:,} lines of "
            f"the ledgers are missing{unread} and {states['unproven']:,} copies have no proof.",
        )
    if not copies:
        return UNSURE, "Nothing to judge", "No message of the ledgers is in the scope."
    if waiting := states["open"]:
        return (
            UNSURE,
            "No verdict yet",
            f"Of {copies:,} copies of messages {waiting:,} have no inventory of their queue after "
            "them; nothing wrong was found in the others.",
        )
    back = states["resurrected"]
    allowed = f" {back:,} came back after a crash, as their acks were not synced." if back else ""
    return GOOD, "Clean", f"Each of {copies:,} copies of messages is accounted for.{allowed}"


def said_in_words(bad: Counter[str]) -> str:
    """Findings as a sentence; those of states that are not in the table of findings, too."""
    told = sentence(bad)
    unknown = sum(count for name, count in bad.items() if name not in PHRASES)
    more = f"{unknown:,} other findings" if unknown else ""
    return "; ".join(part for part in (told, more) if part)


def failing(found: Counter[str]) -> set[str]:
    """Kinds of findings that are wrong wherever they occur, and states that are."""
    return {*of_colour(BAD), *found} - {"resurrected", "unproven", "unknown_consumer"}


def of_colour(colour: str) -> list[str]:
    """The states of a colour."""
    return [name for name, (kind, _) in STATES.items() if kind == colour]


def finding_counts(tables: Tables) -> Counter[str]:
    """How many findings there are of each kind."""
    counts: Counter[str] = Counter()
    found = tables.table("findings")
    if found is not None:
        for each in found.group_by(["kind"]).aggregate([([], "count_all")]).to_pylist():
            counts[each["kind"]] = int(each["count_all"])
    return counts


def facts(tables: Tables, states: Counter[str], epochs: list[Row]) -> list[tuple[str, str]]:
    """What was read, as a list of terms."""
    summary = tables.summary()
    shown: list[tuple[str, str]] = []
    if epochs:
        first = min(micros(row["first_t"]) for row in epochs)
        last = max(micros(row["last_t"]) for row in epochs)
        shown.append(("period (UTC)", f"{instant(first)} to {instant(last)}"))
        brokers = sorted({str(row["b"]) for row in epochs})
        named = page.joined((page.name(each) for each in brokers[:10]), ", ")
        more = f" and {len(brokers) - 10:,} more" if len(brokers) > 10 else ""
        shown.append(("brokers", named + more))
        events = sum(int(row["events"] or 0) for row in epochs)
        noun = "epoch" if len(epochs) == 1 else "epochs"
        shown.append(("events", f"{events:,} in {len(epochs):,} {noun}"))
    shown.append(("copies", f"{sum(states.values()):,}"))
    if paths := summary.get("paths"):
        listed = page.joined((page.code(each) for each in list(paths)[:10]), ", ")
        shown.append(("ledgers", listed))
    for term, key in (("since", "since"), ("until", "until"), ("version", "version")):
        if summary.get(key):
            shown.append((term, str(summary[key])))
    shown.append(("tables", page.code(tables.directory)))
    return shown


def verdicts(tables: Tables) -> Markup:
    """The states of all copies, and the queues that have the worst."""
    states = tables.states()
    if not states:
        return page.paragraph("The ledgers tell of no message.")
    names = [name for name in [*STATES, *sorted(states.keys() - STATES.keys())] if states[name]]
    bars = [Bar(name, states[name], COLOURS[STATES.get(name, ("", ""))[0]]) for name in names]
    svg = plots.bars("states", "Copies by state", bars, "copies (log)", logarithmic=True)
    shown: list[Cells] = [
        [word(name), states[name], STATES.get(name, ("", ""))[1]] for name in names
    ]
    return (
        page.plot(svg, "Copies of messages by state: one message in three queues is three copies.")
        + page.behind("What the states mean", ["state", "copies", "meaning"], shown, "states")
        + queues(tables)
    )


def word(state: str) -> Markup:
    """A state in its colour."""
    colour = STATES.get(state, ("", ""))[0]
    return Markup('<span class="word {}">{}</span>').format(colour, page.name(state))


def queues(tables: Tables) -> Markup:
    """How the queues stand, those with the worst states first."""
    by_queue: dict[tuple[str, str, str], Counter[str]] = {}
    for row in tables.rows("states"):
        key = (str(row["b"]), str(row.get("v", "")), str(row["queue"]))
        by_queue.setdefault(key, Counter())[row["state"]] += int(row["count"])
    wrong, unsure = of_colour(BAD), of_colour(UNSURE)
    found = findings_by_queue(tables)

    def badness(entry: tuple[tuple[str, str, str], Counter[str]]) -> tuple[int, int, int, int]:
        key, counts = entry
        return (
            -sum(counts[name] for name in wrong),
            -sum(found[key].values()) if key in found else 0,
            -sum(counts[name] for name in unsure),
            -sum(counts.values()),
        )

    shown: list[Cells] = []
    for (broker, vhost, queue), counts in sorted(by_queue.items(), key=badness)[: page.SHOWN_ROWS]:
        present = [name for name in STATES if counts[name]]
        told = page.joined((word(name) + f" {counts[name]:,}" for name in present), ", ")
        copies = sum(counts.values())
        kinds = found.get((broker, vhost, queue), Counter())
        listed = ", ".join(f"{kinds[kind]:,} {kind}" for kind in [*PHRASES] if kinds[kind])
        names = [page.name(broker), page.name(vhost), page.name(queue)]
        shown.append([*names, copies, sum(kinds.values()), listed, told])
    headings = ["broker", "vhost", "queue", "copies", "findings", "kinds", "states"]
    return page.behind(
        f"Queues ({len(by_queue):,})", headings, shown, "states", total=len(by_queue)
    )


def findings_by_queue(tables: Tables) -> dict[tuple[str, str, str], Counter[str]]:
    """How many findings of each kind a queue has."""
    counts: dict[tuple[str, str, str], Counter[str]] = {}
    found = tables.table("findings")
    if found is None:
        return counts
    keys = ["b", "v", "queue", "kind"]
    for row in found.group_by(keys).aggregate([([], "count_all")]).to_pylist():
        key = (str(row["b"]), str(row["v"]), str(row["queue"]))
        counts.setdefault(key, Counter())[row["kind"]] += int(row["count_all"])
    return counts


def completeness(tables: Tables) -> Markup:
    """Which epochs of which brokers were read, and what they lack."""
    rows = tables.rows("completeness", [("b", "ascending"), ("o", "ascending")])
    if not rows:
        return page.paragraph("No line of any ledger was read.")
    spans = []
    for row in drawn_epochs(rows):
        lack = lacking(row)
        mark = f"{lack:,} missing" if lack else ENDS[row["ended"]][1]
        mark += ", then no ledger for a time" if row["unseen"] else ""
        colour = plots.BAD if lack or row["unseen"] else COLOURS[ENDS[row["ended"]][0]]
        first, last = micros(row["first_t"]), micros(row["last_t"])
        spans.append(Span(f"{row['b']} · {row['o']}", first, last, colour, mark))
    svg = plots.timeline("epochs", "Epochs of the brokers over time", spans)
    shown: list[Cells] = [
        (
            *(page.name(row["b"]), row["o"], instant(micros(row["first_t"]))),
            *(instant(micros(row["last_t"])), row["events"], row["missing"], row["gaps"]),
            ENDS[row["ended"]][2],
        )
        for row in rows
    ]
    headings = ["broker", "epoch", "first event (UTC)", "last event (UTC)", "events"]
    headings += ["missing", "gaps", "end"]
    caption = "From a broker's start to its end. Lines of a ledger are numbered without a hole."
    if len(rows) > MOST_EPOCHS:
        caption += f" {MOST_EPOCHS} of {len(rows):,} epochs, those that lack something first."
    return page.plot(svg, caption) + page.behind("Epochs", headings, shown, "completeness")


def drawn_epochs(rows: list[Row]) -> list[Row]:
    """As many as fit into a plot, in order: those that lack lines, then those that crashed."""
    worst = sorted(rows, key=lambda row: (-lacking(row), row["ended"] != "crash"))[:MOST_EPOCHS]
    return sorted(worst, key=lambda row: (str(row["b"]), row["o"]))


def lacking(row: Row) -> int:
    """How many lines of an epoch are not there: numbers that are missing, events dropped."""
    return int(row["missing"] or 0) + int(row["gaps"] or 0)


def findings(tables: Tables) -> Markup:
    """What is wrong, by kind, and the lives of the worst."""
    counts = finding_counts(tables)
    if not counts:
        return page.paragraph("None.")
    rows = tables.rows("findings", BY_RANK, page.SHOWN_ROWS)
    bars = [
        Bar(kind, count, COLOURS[BAD if kind in failing(counts) else UNSURE])
        for kind, count in counts.most_common()
    ]
    svg = plots.bars("findings-kinds", "Findings by kind", bars, "findings", logarithmic=False)
    shown: list[Cells] = [
        (
            *(row["kind"], page.name(row["b"]), page.name(row["queue"] or page.NONE)),
            *(row.get("lsn"), instant(micros(row["t"])) if row["t"] else None, row["o"], row["n"]),
            page.name(row["detail"] or ""),
        )
        for row in rows
    ]
    headings = ["kind", "broker", "queue", "LSN", "at (UTC)", "epoch", "line", "detail"]
    return (
        page.plot(svg, "Findings by kind.")
        + page.behind(
            "Findings, the worst first", headings, shown, "findings", sum(counts.values())
        )
        + lives(tables)
    )


def lives(tables: Tables) -> Markup:
    """The whole life of the message with the worst finding of each kind, each folded away."""
    parts: list[Markup] = []
    told = list(tables.events())
    kinds = tables.kinds([rank for rank, _ in told])
    for rank, events in told:
        first = events[0]
        names = (page.name(first[key] or page.NONE) for key in ("b", "v", "queue"))
        lsn = f", LSN {first['lsn']}" if first["lsn"] is not None else ""
        title = page.joined((word(kinds.get(rank, "message")), *names), " ") + lsn
        shown: list[Cells] = [
            [instant(micros(row["t"])), row["o"], row["n"], page.name(row["what"])]
            for row in events
        ]
        inside = page.table(["at (UTC)", "epoch", "line", "what happened"], shown)
        parts.append(page.folded(title, inside, is_open=not parts))
    return page.joined([Markup("<h3>The worst of each kind</h3>"), *parts]) if parts else Markup("")


SECTIONS: Final[tuple[tuple[str, str, Callable[[Tables], Markup]], ...]] = (
    ("verdict", "Verdict", verdicts),
    ("findings", "Findings", findings),
    ("completeness", "Completeness", completeness),
    ("throughput", "Throughput", sections.throughput),
    ("latency", "Latency", sections.latency),
    ("redeliveries", "Redeliveries", sections.redeliveries),
    ("unacked", "Unacked age", sections.unacked),
    ("letters", "Dead letters", sections.dead_letters),
)
