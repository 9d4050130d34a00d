"""The judge of witnesses: known stories, random ones against the plain reference, bad input."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.witness_reference import Line, judge
from vouchmq.kit.witness import Witness
from vouchmq.spark.ledger import events as ledger_events
from vouchmq.spark.ledger.lines import LedgerError
from vouchmq.spark.witness import witness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from vouchmq.spark.witness.witness import WitnessResult


pytestmark = pytest.mark.timeout(300)


def write(directory: Path, lines: Sequence[Line], name: str = "w.jsonl") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(each) + "\n" for each in lines)
    (directory / name).write_text(text, encoding="utf-8")


def line(event: str, message_id: str, t: int, **more: Any) -> Line:
    return {"w": "w1", "e": event, "m": message_id, "k": "q", "t": t, "r": 0, **more}


def found(result: WitnessResult, spark: SparkSession) -> set[tuple[str, str]]:
    rows = spark.read.parquet(str(result.out / "findings")).select("kind", "m").collect()
    return {(row["kind"], row["m"]) for row in rows}


def states(result: WitnessResult, spark: SparkSession) -> dict[str, str]:
    rows = spark.read.parquet(str(result.out / "messages")).select("m", "state").collect()
    return {row["m"]: row["state"] for row in rows}


def test_each_message_has_its_state(spark: SparkSession, tmp_path: Path) -> None:
    with Witness(tmp_path / "in", "publisher") as publisher:
        told = ("good", "lost", "left", "back", "refused", "nobody knows", "twice", "again")
        publisher.sent(told, "q")
        publisher.confirmed(("good", "lost", "left", "back", "twice", "again"), "q")
        publisher.returned(["back"], "q")
        publisher.nacked(["refused"], "q")
    with Witness(tmp_path / "in", "consumer") as consumer:
        consumer.received(["good", "twice", "twice", "again", "never sent"], "q")
        consumer.acked(["good", "again"], "q")
        consumer.received(["again"], "q", redelivered=True)
        consumer.drained(["left"], "q")
        consumer.emptied("q")
    result = witness.run(spark, [tmp_path / "in"], tmp_path / "out")
    assert states(result, spark) == {
        "good": "received",
        "lost": "LOST",
        "left": "drained",
        "back": "returned",
        "refused": "nacked",
        "nobody knows": "unconfirmed",
        "twice": "received",
        "again": "received",
        "never sent": "orphan",
    }
    told_of = {("LOST", "lost"), ("duplicate", "twice"), ("orphan", "never sent")}
    assert found(result, spark) - {("received_after_ack", "again")} == told_of
    assert result.exit_code() == 1
    assert result.exit_code(["clock"]) == 0
    assert result.worst[0] == "LOST: lost"
    assert [each.split()[1:] for each in result.worst[1:3]] == [
        ["sent", "q", "by", "publisher"],
        ["confirmed", "q", "by", "publisher"],
    ]
    assert "findings: LOST 1, duplicate 1, orphan 1" in "\n".join(result.summary())
    assert len(result.summary()) <= 10


def random_lines(chance: random.Random, message_id: str) -> list[Line]:
    """Anything that could be written of one message, likely or not."""
    events = [*witness.EVENTS, "sent", "confirmed", "received", "received"]
    count = chance.choice((1, 2, 3, 4, 6))
    told = [chance.choice(events) for _ in range(count)]
    if chance.random() < 0.8:
        told.insert(0, "sent")
    return [
        line(
            event,
            message_id,
            chance.randrange(1000),
            w=chance.choice(("w1", "w2")),
            k=chance.choice(("q", "q", "other")),
            r=chance.randrange(2) if event in ("received", "drained") else 0,
        )
        for event in told
    ]


@pytest.mark.parametrize("seed", range(4))
def test_random_messages_are_judged_as_the_reference_does(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    lines = [each for number in range(1500) for each in random_lines(chance, f"m{number}")]
    chance.shuffle(lines)
    if seed % 2:
        # A queue was found empty in the middle of it all.
        lines.append(line("drained", "", 500))
    numbers = {"w1": 0, "w2": 0}
    for each in lines:
        each |= {"o": 7, "n": numbers[each["w"]]}
        numbers[each["w"]] += 1
    if seed >= 2:
        del lines[chance.randrange(len(lines) - 100)]
    # A file that is given twice changes nothing.
    again = lines[: len(lines) // 3]
    write(tmp_path / "in" / "a", lines[::2])
    write(tmp_path / "in" / "b", lines[1::2])
    write(tmp_path / "in" / "c", again)
    result = witness.run(spark, [tmp_path / "in"], tmp_path / "out")
    expected_states, expected_findings = judge([*lines, *again])
    assert states(result, spark) == expected_states
    assert found(result, spark) == expected_findings
    # The lot holds every state that can be, or this shows little.
    verdict = "unproven" if seed >= 2 else "LOST"
    most = {verdict, "received", "drained", "returned", "nacked", "unconfirmed", "orphan"}
    assert most <= set(expected_states.values())
    kinds = {kind for kind, _ in expected_findings}
    later = {"confirm_unknown", "ack_unknown"}
    assert kinds == set(witness.FINDINGS) - later - ({"LOST"} if seed >= 2 else set())


def test_missing_lines_make_it_unproven(spark: SparkSession, tmp_path: Path) -> None:
    lines = [line("sent", "m", 1, o=1, n=0), line("confirmed", "m", 2, o=1, n=2)]
    write(tmp_path / "in", lines)
    result = witness.run(spark, [tmp_path / "in"], tmp_path / "out")
    assert result.states == {"unproven": 1}
    assert (result.seen.missing, result.exit_code()) == (1, 3)
    assert "1 missing" in result.summary()[1]


def test_of_two_lines_with_one_number_neither_is_believed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Whichever was forged; the same line twice is one line."""
    told = [
        line("sent", "a", 1, o=1, n=0),
        line("confirmed", "a", 2, o=1, n=1),
        line("confirmed", "b", 2, o=1, n=1),
    ]
    write(tmp_path / "in", [*told, told[0]])
    result = witness.run(spark, [tmp_path / "in"], tmp_path / "out")
    assert (result.seen.broken_count, result.exit_code()) == (2, 3)
    assert states(result, spark) == {"a": "unconfirmed"}
    write(tmp_path / "in", [*told[:2], told[0]])
    result = witness.run(spark, [tmp_path / "in"], tmp_path / "out")
    assert (result.seen.broken_count, result.exit_code()) == (0, 1)


def test_lines_of_other_programs_need_no_numbers(spark: SparkSession, tmp_path: Path) -> None:
    lines = [line("sent", "m", 1), line("confirmed", "m", 2), line("received", "m", 3)]
    del lines[0]["r"]
    write(tmp_path / "in", lines)
    result = witness.run(spark, [tmp_path / "in"], tmp_path / "out")
    assert (result.states, result.findings, result.exit_code()) == ({"received": 1}, {}, 0)


def test_half_a_line_of_a_killed_client_is_forgiven(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", [line("sent", "m", 1, o=1, n=0)])
    with (tmp_path / "in" / "w.jsonl").open("a") as file:
        file.write('{"w":"w1","o":1,"n":1,"e":"confi')
    result = witness.run(spark, [tmp_path / "in"], tmp_path / "out")
    assert (result.seen.torn, result.seen.broken_count, result.exit_code()) == (1, 0, 0)
    assert result.states == {"unconfirmed": 1}


BROKEN = (
    "no json",
    '{"w":"w1","e":"lost","m":"m","k":"q","t":5,"r":0}',
    '{"w":"w1","e":"received","k":"q","t":5,"r":0}',
    '{"w":"w1","e":"received","m":"m","k":"q","t":"soon","r":0}',
    '{"w":"w1","e":"received","m":"m","k":"q","t":5,"n":1,"r":0}',
    '{"w":"w1","e":"received","m":"m","k":"q","t":5,"r":2}',
)


def test_broken_lines_are_counted_and_their_files_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "in", [line("sent", "m", 1), line("confirmed", "m", 2)])
    for number, text in enumerate(BROKEN):
        good = json.dumps(line("sent", f"good {number}", 1))
        (tmp_path / "in" / f"bad {number}.jsonl").write_text(f"{text}\n{good}\n{text}\n")
    result = witness.run(spark, [tmp_path / "in"], tmp_path / "out")
    assert result.seen.broken == tuple(
        f"{tmp_path}/in/bad {number}.jsonl (2)" for number in range(len(BROKEN))
    )
    assert result.seen.broken_count == 2 * len(BROKEN)
    assert (result.states, result.exit_code()) == ({"unproven": 1, "unconfirmed": 6}, 3)


def test_what_is_no_input_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="nowhere is not there"):
        witness.run(spark, [tmp_path / "nowhere"], tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(LedgerError, match="empty holds no lines of witnesses"):
        witness.run(spark, [tmp_path / "empty"], tmp_path / "out")
    write(tmp_path / "in", [])
    with pytest.raises(LedgerError, match="no line of a witness can be read"):
        witness.run(spark, [tmp_path / "in"], tmp_path / "out")


def event(kind: str, number: int, **keys: Any) -> Line:
    return {"b": "b1", "o": 1, "n": number, "t": 1000 * number, "e": kind, **keys}


def test_both_sides_are_held_against_each_other(spark: SparkSession, tmp_path: Path) -> None:
    ids = ["both", "no cnf", "no ack", "held", "came again", "nacked"]
    with Witness(tmp_path / "in", "w") as clients:
        clients.sent(ids, "q")
        clients.confirmed(ids[:5], "q")
        clients.nacked(ids[5:], "q")
        clients.received(ids, "q")
        clients.acked(ids, "q")
    with Witness(tmp_path / "in", "later") as clients:
        clients.received(["came again"], "q", redelivered=True)
    end = 10**16
    events = [
        event("boot", 0, fmt=1, w="clean", wm=0),
        event("pub", 1, rt=1, c=1, h=1, s=["1", "6"], p=1, lsn=[11, 16], to=[5], m=json.dumps(ids)),
        event("cnf", 2, c=1, h=1, i=[[1, 1], [3, 5]], ok=1, wm=16),
        event("cnf", 3, c=1, h=1, i=[[6, 6]], ok=0, wm=16),
        event("ack", 4, qid=5, cid=1, i=[[11, 12], [16, 16]]),
        event("inv", 5, qid=5, i=[[14, 15]], w="stop", part=1, parts=1) | {"t": end},
        event("inv", 6, qid=5, i=[[13, 13]], w="boot", part=1, parts=1) | {"t": 5},
    ]
    lines = spark.createDataFrame(
        [tuple(each.get(key.name) for key in ledger_events.KEYS) for each in events],
        ledger_events.SCHEMA_DDL,
    ).selectExpr("*", "false AS broken")
    result = witness.run(spark, [tmp_path / "in"], tmp_path / "out", lines)
    assert found(result, spark) == {
        ("confirm_unknown", "no cnf"),
        ("ack_unknown", "no ack"),
        ("received_after_ack", "came again"),
        ("nacked_received", "nacked"),
    }
    assert result.exit_code() == 1
