"""What people read of an audit: a verdict, ten lines, and a life for each kind of finding.

A life is every line of the ledger that tells of a copy, in the order in which they were written:
its publish, confirms, deliveries, ends, the inventories that list it. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from vouchmq.spark.audit import verdicts
from vouchmq.spark.ledger.facts import LINE_BITS, Facts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from vouchmq.spark.audit.result import Result
    from vouchmq.spark.audit.tables import Scope
    from vouchmq.spark.ledger.seals import Seals
    from vouchmq.spark.ledger.shared_log import Joined

SEALS_MOST: Final = 5
SHOWN_LINES: Final = 25
NAMED_BROKERS: Final = 5
_OVER: Final = ("acked", "dead_lettered", "dropped", "delivered_no_ack")
_HERE: Final = ("queued", "known", "open")
_GONE: Final = ("transient_gone", "unconfirmed_gone", "resurrected")
_ODD: Final = ("LOST", "double_end", "orphan", "unproven")
LIFE: Final = (
    "finding int, b string, v string, queue string, lsn bigint, t timestamp, o bigint, n bigint, "
    "e string, what string"
)


def lives(lines: DataFrame, rows: DataFrame, worst: Sequence[Any], facts: Facts) -> list[Any]:
    """Rows of the table `lives`, as LIFE has them, in the order of findings and lines.

    Args:
        lines: of all batches, with `bk` and `line`
        rows: of copies, which know where a copy was published
        worst: rows of the table of findings
        facts: of brokers
    """
    if not worst:
        return []
    # A life is a message's; what is wrong with the ledger itself has only its line.
    codes = facts.codes()
    wanted = lines.sparkSession.createDataFrame(
        [
            (row["rank"], codes[row["b"]], row["qid"], row["lsn"], row["o"] << LINE_BITS | row["n"])
            for row in worst
        ],
        "finding int, bk int, qid bigint, lsn bigint, own bigint",
    )
    from pyspark.sql import functions as f

    origin = rows.selectExpr(
        *("bk", "qid", "lsn", f"shiftright(o_pub, {LINE_BITS + 10}) AS po", "c AS pc", "h AS ph"),
        "lsn + s_off AS ps",
    )
    sought = wanted.join(origin, ["bk", "qid", "lsn"], "left").withColumnsRenamed(
        {"qid": "sq", "lsn": "sl"}
    )
    inside = "exists(i, x -> sl >= x[0] AND sl <= x[1])"
    published = "exists(i, x -> ps >= x[0] AND ps <= x[1])"
    found = (
        lines.where("e NOT IN ('syn', 'que', 'rte', 'boot', 'end', 'gap')")
        .join(f.broadcast(sought), ["bk"])
        .where(
            "line = own "
            "OR (e IN ('pub', 'mov') AND array_contains(to, sq) AND sl BETWEEN lsn[0] AND lsn[1]) "
            f"OR (e IN ('cnf', 'ret') AND o = po AND c = pc AND h = ph AND {published}) "
            f"OR (e NOT IN ('pub', 'mov', 'cnf', 'ret') AND qid = sq AND {inside})"
        )
        .orderBy("finding", "line")
        .collect()
    )
    names = {row["rank"]: row for row in worst}
    return [
        (
            *(line["finding"], line["b"], names[line["finding"]]["v"]),
            *(names[line["finding"]]["queue"], line["sl"]),
            datetime.fromtimestamp(line["t"] / 1_000_000, UTC),
            *(line["o"], line["n"], line["e"], what(line)),
        )
        for line in found
    ]


def what(line: Any) -> str:
    """A line of the ledger in words."""
    told = _WORDS.get(line["e"])
    return told(line) if told else str(line["e"])


def _published(line: Any) -> str:
    how = "persistent" if line["p"] else "transient"
    to = ", ".join(map(str, line["to"] or ())) or "no queue"
    where = (
        f"on connection {line['c']}, channel {line['h']}, publishes {line['s'][0]}-{line['s'][1]}"
    )
    return f"published {how} {where}, as LSN {_span(line['lsn'])} to {to}"


def _moved(line: Any) -> str:
    return f"published by the broker ({line['w']}) as LSN {_span(line['lsn'])}, from {line['src']}"


def _span(span: Sequence[int] | None) -> str:
    return f"{span[0]}-{span[1]}" if span else "none"


def _confirmed(line: Any) -> str:
    said = "confirmed" if line["ok"] else "nacked"
    return f"{said} on channel {line['h']}, watermark {line['wm']}"


def _delivered(line: Any) -> str:
    to = f"to consumer {line['cid']}" if line["cid"] else "by get"
    marks = [word for key, word in (("r", "redelivered"), ("na", "no ack required")) if line[key]]
    return f"delivered {to}" + "".join(f", {mark}" for mark in marks)


_WORDS: Final[dict[str, Callable[[Any], str]]] = {
    "pub": _published,
    "mov": _moved,
    "ret": lambda line: f"returned with {line['w']}",
    "cnf": _confirmed,
    "dlv": _delivered,
    "ack": lambda line: f"acked by consumer {line['cid']}" if line["cid"] else "acked",
    "req": lambda line: f"requeued ({line['w']})",
    "dle": lambda line: f"dead-lettered ({line['w']}) to exchange {line['x']!r}",
    "drp": lambda line: f"dropped ({line['w']})",
    "uns": lambda line: "its end was undone",
    "inv": lambda line: f"in the inventory of the queue ({line['w']})",
    "con": lambda line: f"consumer {line['id']} {line['w']}",
}


def summary(result: Result, fail_on: Sequence[str]) -> list[str]:
    """The verdict, and the lines that it rests on.

    Args:
        result: of the audit
        fail_on: kinds of findings that fail it
    """
    facts, states = result.facts, result.states
    epochs = list(facts.epochs())
    events = sum(epoch.events for *_, epoch in epochs)
    found = " · ".join(f"{kind} {count:,}" for kind, count in result.findings.items())
    return [
        f"verdict    {verdict(result, fail_on)} (exit {result.exit_code(fail_on)})",
        f"ledger     {_count(len(facts.brokers), 'broker')}, {_count(len(epochs), 'epoch')}, "
        f"{_count(events, 'line')}{_period(facts.times())}",
        *_joined(result.joined),
        f"copies     {result.copies:,}",
        f"over       {_states(states, _OVER)}",
        f"here       {_states(states, _HERE)}",
        f"gone       {_states(states, _GONE)}",
        f"in doubt   {_states(states, _ODD)}",
        f"findings   {found or 'none'}",
        f"complete   {_complete(facts)}",
        *_seals(result.seals),
        f"took       {_latencies(result.overall)}",
    ]


def _joined(joined: Joined | None) -> Iterator[str]:
    """Whose epochs those of the one broker are."""
    if joined is not None:
        brokers = len({name for name, _ in joined.numbers})
        yield f"joined     {_count(brokers, 'broker')} of one log; summary.json has their epochs"


def _seals(found: Seals) -> Iterator[str]:
    """Whether lines are as they were sealed, and the last seal of each broker."""
    broken = sum(fault.kind == "tampered" for fault in found.faults) - len(found.stripped)
    told = f"{found.sealed:,} lines sealed · {_count(broken, 'place')} changed since"
    yield f"sealed     {told} · {found.unsealed:,} lines without a seal"
    for head in found.heads[:SEALS_MOST]:
        yield f"last seal  {head.seal}  {head.broker} {head.epoch}/{head.n}"
    if len(found.heads) > SEALS_MOST:
        yield f"last seal  … of {len(found.heads):,} brokers in summary.json"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _period(times: Sequence[int]) -> str:
    if not times:
        return ""
    first, last = (datetime.fromtimestamp(t // 1_000_000, UTC) for t in (min(times), max(times)))
    return f", {first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC"


def _states(states: Mapping[str, int], names: Iterable[str]) -> str:
    return " · ".join(f"{name} {states.get(name, 0):,}" for name in names)


def _complete(facts: Facts) -> str:
    unseen = facts.unseen()
    if not (facts.missing() or facts.lost() or facts.broken_count or facts.torn or unseen):
        since_us = facts.cut_at()
        if since_us is None:
            return "every line is there"
        since = datetime.fromtimestamp(since_us // 1_000_000, UTC)
        return f"no line is missing from {since:%Y-%m-%d %H:%M:%S} UTC on; older files are gone"
    return (
        f"missing {facts.missing():,} lines · dropped by the broker {facts.lost():,} · "
        f"broken {facts.broken_count:,} · torn at the end {facts.torn:,} · "
        f"times without a ledger {unseen:,}"
    )


def _latencies(rows: Iterable[Any]) -> str:
    told = {row["kind"]: row for row in rows}
    names = {"confirm": "to confirm", "delivery": "to deliver", "ack": "to ack"}
    parts = [
        f"{name} p50 {duration(told[kind]['p50'])}, p99 {duration(told[kind]['p99'])}"
        for kind, name in names.items()
        if kind in told
    ]
    return " · ".join(parts) or "nothing to measure"


def duration(us: int) -> str:
    """Microseconds as people say them."""
    for limit, unit, size in (
        (1_000, "µs", 1),
        (1_000_000, "ms", 1_000),
        (120_000_000, "s", 10**6),
    ):
        if us < limit:
            return f"{us / size:.3g} {unit}"
    return f"{us / 60_000_000:,.0f} min"


def verdict(result: Result, fail_on: Sequence[str]) -> str:
    """What has been found, in one sentence.

    Args:
        result: of the audit
        fail_on: kinds of findings that fail it
    """
    code = result.exit_code(fail_on)
    if code == 1:
        failing = result.failing(fail_on)
        others = sum(result.findings.values()) - sum(failing.values())
        more = f"; {_count(others, 'other finding')}" if others else ""
        return f"{verdicts.sentence(failing)}{more}"
    waiting = result.states.get("open", 0)
    told = []
    if not result.copies:
        told.append(f"nothing to judge: {_nothing(result.job.scope)}")
    if code == 3:
        told.append("not provable: evidence is missing; nothing worse was found")
        told += _stripped(result.seals)
    if waiting:
        told.append(
            f"{waiting:,} {'has' if waiting == 1 else 'have'} no verdict yet "
            "(no inventory after them: --data-dir asks a running broker for one)"
        )
    remaining = {kind: n for kind, n in result.failing(list(result.findings)).items() if n}
    told = told or ["every confirmed message is accounted for"]
    told += [verdicts.sentence(remaining)] if remaining else []
    return "; ".join(told)


def _stripped(found: Seals) -> Iterator[str]:
    """Whose seals are not there."""
    brokers = sorted({each.broker for each in found.stripped})
    if brokers:
        more = f" and {len(brokers) - NAMED_BROKERS:,} more" * (len(brokers) > NAMED_BROKERS)
        yield f"seals were removed from the ledger of {', '.join(brokers[:NAMED_BROKERS])}{more}"


def _nothing(scope: Scope) -> str:
    """Why there is no copy: what was asked for, or the ledger as a whole."""
    times = {"--since": scope.since_us, "--until": scope.until_us}
    given = [
        f"{name} {datetime.fromtimestamp(us / 1_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"
        for name, us in times.items()
        if us is not None
    ]
    texts = {"--vhost": scope.vhost, "--queue": scope.queue}
    given += [f"{name} {text}" for name, text in texts.items() if text is not None]
    return f"no message fits {' '.join(given)}" if given else "the ledger contains no message"


def worst_lives(findings: Sequence[Any], lives: Sequence[Any]) -> list[str]:
    """The worst finding of each kind with the whole life of its message, as text."""
    told: list[str] = []
    for row in findings:
        copy = f" LSN {row['lsn']}" if row["lsn"] is not None else ""
        queue = f"{row['v']} {row['queue']}" if row["queue"] is not None else "no queue"
        queue = "the ledger" if row["kind"] in verdicts.OF_LEDGER else queue
        told.append(f"{row['kind']}  {row['b']}  {queue}{copy}: {row['detail']}")
        life = [line for line in lives if line[0] == row["rank"]]
        told += [
            f"  {line[5]:%H:%M:%S.%f}  {line[6]:>3}/{line[7]:<8} {line[8]:<4} {line[9]}"
            for line in life[:SHOWN_LINES]
        ]
        if len(life) > SHOWN_LINES:
            told.append(f"  … {len(life) - SHOWN_LINES} more lines in the table `lives`")
    return told


def lives_table(spark: SparkSession, rows: Sequence[Any]) -> DataFrame:
    """These rows, one for each event of a life, as the table `lives`."""
    return spark.createDataFrame(list(rows), LIFE)
