"""The audit on small ledgers: the same as plain Python says, and what faults must be found.

One Spark job costs more than a thousand small ledgers: examples are drawn first, each becomes a
broker with its own id, and all are judged together.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.ledger_reader import seal_faults
from tests.pipeline.audit_reference import Reference
from tests.pipeline.worlds import Event, Order, World, damage, write_files, write_sealed
from vouchmq.spark.audit import audit, incremental, summary_text
from vouchmq.spark.audit.result import Job, Result
from vouchmq.spark.ledger.lines import LedgerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEDGERS = 40
Verdict = dict[str, Any]

pytestmark = [pytest.mark.timeout(600)]


def drawn(count: int, *, faults: bool = True) -> list[tuple[list[Order], list[Order]]]:
    """Orders and faults of ledgers, as hypothesis draws them: the last ones, as it begins small."""
    found: list[tuple[list[Order], list[Order]]] = []
    # Lists as hypothesis makes them are too alike: it chooses the sizes, chance the rest.
    drawing = st.tuples(st.integers(0, 2**32), st.integers(20, 160), st.integers(0, 9))

    @settings(
        max_examples=3 * count,
        database=None,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(drawing)
    def draw(example: tuple[int, int, int]) -> None:
        seed, length, spoilt = example
        chance = random.Random(seed)
        orders = [_order(chance, 100, 20, 20) for _ in range(length)]
        made = [_order(chance, 100, 1000, 30) for _ in range(spoilt)] if faults else []
        found.append((orders, made))

    draw()
    return found[-count:]


def _order(chance: random.Random, act: int, x: int, y: int) -> Order:
    return chance.randrange(act), chance.randrange(x), chance.randrange(y)


def ledgers(examples: Sequence[tuple[list[Order], list[Order]]]) -> list[list[Event]]:
    """The lines of each example's broker."""
    made = []
    for number, (orders, faults) in enumerate(examples):
        world = World(f"broker-{number:03d}", loses_ends=True)
        world.follow(orders)
        lines = damage(world.lines, faults)
        if lines:
            made.append(lines)
    return made


def forgetful(count: int) -> list[list[Event]]:
    """Ledgers without a delivery, or a confirm, that fell out with their numbers closed up."""
    made = []
    for number in range(count):
        chance = random.Random(number)
        world = World(f"forgetful-{number:03d}")
        world.follow([_order(chance, 100, 20, 20) for _ in range(300)])
        made.append(damage(world.lines, [(14, chance.randrange(1000), 0)]))
    return made


def tampered(directory: Path) -> list[list[Event]]:
    """Lines of sealed ledgers, each of which somebody has changed in another way."""
    made = []
    for number, change in enumerate((None, *CHANGES)):
        chance = random.Random(number)
        world = World(f"sealed-{number}")
        world.follow([_order(chance, 100, 20, 20) for _ in range(150)])
        paths = write_sealed(world.lines, directory, chance)
        if change is not None:
            change(sorted(paths, key=lambda path: -path.stat().st_size))
        texts = [line for path in paths for line in path.read_text().splitlines()]
        made.append([json.loads(text) for text in texts])
    return made


def _rewrite(path: Path, change: Callable[[list[str]], object]) -> None:
    lines = path.read_text().splitlines(keepends=True)
    change(lines)
    path.write_text("".join(lines))


def _swap(paths: list[Path]) -> None:
    one, other = paths[0].read_text(), paths[1].read_text()
    paths[0].write_text(other)
    paths[1].write_text(one)


CHANGES: tuple[Callable[[list[Path]], object], ...] = (
    lambda paths: _rewrite(paths[0], lambda lines: lines.pop(7)),
    lambda paths: _rewrite(paths[0], lambda lines: lines.insert(3, lines.pop(9))),
    lambda paths: _rewrite(
        paths[0],
        lambda lines: lines.__setitem__(5, lines[5].replace('"t":1770000', '"t":1769999', 1)),
    ),
    lambda paths: _rewrite(paths[0], lambda lines: lines.pop()),
    _swap,
)


def verdict(spark: SparkSession, out: Path) -> Verdict:
    """What the tables say, in the words of the reference."""
    copies = spark.read.parquet(str(out / "copies")).select("b", "qid", "lsn", "state").collect()
    found: set[tuple[Any, ...]] = set()
    for row in spark.read.parquet(str(out / "findings")).where("kind != 'tampered'").collect():
        if row["kind"] in ("over_prefetch", "unknown_consumer"):
            number = re.search(r"consumer (\d+)", row["detail"])
            assert number
            found.add((row["b"], row["o"], int(number[1]), row["kind"]))
        elif row["kind"] == "clock":
            found.add((row["b"], row["o"], row["n"], row["kind"]))
        elif row["lsn"] is None:
            number = re.search(r"publish (\d+)", row["detail"])
            assert number
            found.add((row["b"], 0, int(number[1]), row["kind"]))
        else:
            found.add((row["b"], row["qid"], row["lsn"], row["kind"]))
    epochs = spark.read.parquet(str(out / "completeness")).collect()
    return {
        "states": {(row["b"], row["qid"], row["lsn"]): row["state"] for row in copies},
        "findings": found,
        "missing": {(row["b"], row["o"]): row["missing"] for row in epochs},
    }


def expected(brokers: Sequence[Sequence[Event]]) -> Verdict:
    """What plain Python says."""
    reference = Reference([line for lines in brokers for line in lines])
    return {
        "states": reference.states,
        "findings": reference.findings,
        "missing": {
            (broker, number): reference.missing(broker, number)
            for broker, epochs in reference.epochs.items()
            for number in epochs
        },
    }


def summary_of(result: Result) -> dict[str, str]:
    """The lines of the summary, by their first words."""
    return {line.split()[0]: line for line in summary_text.summary(result, ())}


def assert_same(found: Verdict, wanted: Verdict) -> None:
    """Compare, and name the first differences."""
    for name in ("missing", "states", "findings"):
        one, other = found[name], wanted[name]
        keys = (
            set(one) ^ set(other)
            if isinstance(one, set)
            else {key for key in {*one, *other} if one.get(key) != other.get(key)}
        )
        sample = sorted(keys, key=str)[:10]
        assert not keys, (
            name,
            [
                (
                    k,
                    k in one,
                    one.get(k) if isinstance(one, dict) else "",
                    other.get(k) if isinstance(other, dict) else "",
                )
                for k in sample
            ],
        )


def test_spark_says_what_plain_python_says(spark: SparkSession, tmp_path: Path) -> None:
    brokers = [*ledgers(drawn(LEDGERS)), *forgetful(20)]
    for lines in brokers:
        write_files(lines, tmp_path / "ledger", [60, 25, 200])
    sealed = tmp_path / "ledger" / "sealed"
    brokers += tampered(sealed)
    result = audit.run(spark, Job((str(tmp_path / "ledger"),), tmp_path / "out"))
    wanted = expected(brokers)
    assert_same(verdict(spark, tmp_path / "out"), wanted)
    found = spark.read.parquet(str(tmp_path / "out" / "findings")).where("kind = 'tampered'")
    told = {(row["b"], row["detail"].partition(": ")[0]) for row in found.collect()}
    # Files that do not follow each other are told at the end of the one, or the begin of the other.
    changed = [fault.split()[0] for fault in seal_faults(sealed) if "not what was sealed" in fault]
    assert len(changed) == 4
    assert {place for _, place in told} >= set(changed)
    assert {broker for broker, _ in told} == {f"sealed-{number + 1}" for number in range(5)}
    assert result.exit_code(("tampered",)) == 1
    assert {head.broker for head in result.seals.heads} == {f"sealed-{n}" for n in range(6)}
    # The faults are such that there is something to be found.
    assert len(set(wanted["states"].values())) > 9, set(wanted["states"].values())
    kinds = {kind for *_, kind in wanted["findings"]}
    assert len(kinds) > 7
    assert {"acked_undelivered", "unanswered", "clock"} <= kinds
    assert sum(result.states.values()) == len(wanted["states"])


def test_an_honest_broker_has_no_findings() -> None:
    """Also where a crash and a full disk undo ends of the same copy, in either order."""
    for lines in (*ledgers(drawn(400, faults=False)), *eager(200)):
        reference = Reference(lines)
        assert not reference.findings, (lines[0]["b"], reference.findings)
        assert "LOST" not in reference.states.values()


def test_incremental_is_full_in_any_split(spark: SparkSession, tmp_path: Path) -> None:
    """Files come in some order, late ones among them, in three runs; the tables are the same."""
    brokers = ledgers(drawn(LEDGERS // 3))
    chance = random.Random(7)
    files: list[Path] = []
    for lines in brokers:
        files += write_files(lines, tmp_path / "all", [25, 60])
    shuffled = chance.sample(files, len(files))
    in_order = sorted(files, key=lambda path: path.name.split("-")[2:])
    runs = [in_order[: len(files) // 3], in_order[len(files) // 3 : len(files) // 2]]
    runs.append([path for path in shuffled if path not in runs[0] and path not in runs[1]])
    place = tmp_path / "ledger"
    place.mkdir()
    job = Job((str(place),), tmp_path / "out")
    for batch in runs:
        for path in batch:
            shutil.copy(path, place / path.name)
        incremental.run(spark, job)
    assert_same(verdict(spark, tmp_path / "out"), expected(brokers))


class Leaders(World):
    """Brokers of one log that lead in turn; each gives its consumer all that it may have."""

    def __init__(self, name: str) -> None:
        super().__init__(name, loses_ends=True)
        for _ in range(4):
            self.publish(0, 4)
        self.sync(0, 0)
        self.fill()

    def fill(self, more: int = 0) -> None:
        """Deliver up to the prefetch, and so many more."""
        for _ in range(2):
            self.deliver(0, 3)
        for _ in range(more):
            lsn = self.ready[1].pop(0)
            self.put("dlv", qid=1, cid=10, tag=1, i=[[lsn, lsn]], r=0, na=0)
            self.unacked[1, 10].append(lsn)

    def lose(self, ends: int) -> None:
        """Another one leads, who does not know of the last ends, and whose clock is behind."""
        self.restart(3, ends)


def ended_again(world: Leaders) -> None:
    """The next leader delivers again what the first has dropped, and it is acked."""
    world.reject(0, 3)
    world.fill()
    world.lose(4)
    world.fill()
    world.ack(0, 3)


def ended_at_once(world: Leaders) -> None:
    """The next leader delivers none of it: it expires."""
    world.reject(0, 3)
    world.fill()
    world.lose(4)
    world.expire(0, 1)
    world.expire(0, 1)
    world.fill()


def acked_before(world: Leaders) -> None:
    """What the next leader drops was acked by the clock of the first, which is ahead."""
    world.ack(0, 3)
    world.lose(5)
    world.fill()
    world.reject(0, 3)
    world.fill()


def kept(world: Leaders) -> None:
    """A full disk does not take the dead letters; the consumer does not have them meanwhile."""
    world.reject(0, 6)
    world.fill()
    world.move_kept(0, 0)


def lost_twice(world: Leaders) -> None:
    """Two leaders drop it, in vain; what was over is taken up again each time."""
    for _ in range(2):
        world.reject(0, 3)
        world.fill()
        world.lose(4)
        world.fill()
    world.reject(0, 2)
    world.fill()
    world.lose(0)


def too_many(world: Leaders) -> None:
    """The first leader has dropped some, and delivers one more than it may."""
    world.reject(0, 3)
    world.fill(more=1)
    world.lose(4)
    world.expire(0, 1)
    world.fill()


def too_many_later(world: Leaders) -> None:
    """The next one does."""
    world.reject(0, 3)
    world.fill()
    world.lose(4)
    world.fill()
    world.reject(0, 2)
    world.fill(more=1)


HONEST: tuple[Callable[[Leaders], None], ...] = (
    *(ended_again, ended_at_once, acked_before, kept, lost_twice),
)
OVER: dict[Callable[[Leaders], None], int] = {too_many: 1, too_many_later: 2}
"""With the leader that delivers too much."""


def led(what: Callable[[Leaders], None], name: str) -> list[Event]:
    """The lines of such leaders."""
    world = Leaders(name)
    what(world)
    return world.lines


def eager(count: int) -> list[list[Event]]:
    """Ledgers of leaders that lose ends, and whose consumers have all they may most of the time."""
    made = []
    for number in range(count):
        chance = random.Random(number)
        world = World(f"eager-{number:03d}", loses_ends=True)
        orders: list[Order] = []
        for _ in range(60):
            orders.append(_order(chance, 100, 20, 20))
            orders += [(chance.choice((0, 2, 9, 10)), chance.randrange(20), chance.randrange(20))]
            orders += [(5, queue, 3) for queue in (0, 0, 4, 4)]
            orders += [(13, 3, chance.randrange(12))] * (chance.random() < 0.08)
        world.follow(orders)
        made.append(world.lines)
    return made


def over_prefetch(of: Verdict) -> set[tuple[str, int]]:
    """Brokers and epochs."""
    return {(broker, number) for broker, number, _, kind in of["findings"] if "over_pre" in kind}


def test_an_end_that_was_lost_with_a_leader_counts_for_its_prefetch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Whatever became of the message later, and whoever delivers too much is still found."""
    brokers = [led(what, what.__name__) for what in (*HONEST, *OVER)]
    assert over_prefetch(expected(brokers)) == {(what.__name__, o) for what, o in OVER.items()}
    brokers += eager(LEDGERS)
    for lines in brokers:
        write_files(lines, tmp_path / "ledger", [])
    audit.run(spark, Job((str(tmp_path / "ledger"),), tmp_path / "out"))
    assert_same(verdict(spark, tmp_path / "out"), expected(brokers))


def test_it_does_so_however_the_lines_are_split(spark: SparkSession, tmp_path: Path) -> None:
    """Each of them with some splits into three runs, some of them in the midst of an epoch."""
    chance = random.Random(5)
    brokers = [
        led(what, f"{what.__name__}_{number}") for what in (*HONEST, *OVER) for number in range(8)
    ]
    brokers += eager(LEDGERS // 3)
    for lines in brokers:
        low, high = sorted(chance.sample(range(24, len(lines)), 2))
        for run, part in enumerate((lines[:low], lines[low:high], lines[high:])):
            write_files(part, tmp_path / str(run), [])
    job = Job((str(tmp_path / "ledger"),), tmp_path / "out")
    (tmp_path / "ledger").mkdir()
    for run in range(3):
        (tmp_path / str(run)).rename(tmp_path / "ledger" / str(run))
        incremental.run(spark, job)
    assert_same(verdict(spark, tmp_path / "out"), expected(brokers))


BROKERS = ("one", "two", "three")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledgers of three brokers that seal, one of which has lost messages."""
    directory = tmp_path_factory.mktemp("brokers") / "l"
    for number, name in enumerate(BROKERS):
        chance = random.Random(number)
        world = World(name)
        world.follow([_order(chance, 100, 20, 20) for _ in range(150)])
        told = damage(world.lines, [(0, 5, 5), (0, 50, 5)]) if name == "three" else world.lines
        write_sealed(told, directory / name, chance)
    return directory


class TestOneBrokerOfSeveral:
    """What is wrong with the ledger of one is found there, and the others are judged as ever."""

    def judged(self, spark: SparkSession, directory: Path, out: Path) -> tuple[Result, Verdict]:
        result = audit.run(spark, Job((str(directory),), out))
        return result, verdict(spark, out)

    def of(self, found: Verdict, *brokers: str) -> list[list[Any]]:
        return [sorted(map(str, (k for k in found[part] if k[0] in brokers))) for part in found]

    def test_whatever_is_done_to_one_the_others_are_judged(
        self, spark: SparkSession, tmp_path: Path, whole: Path
    ) -> None:
        """Each edit is of a broker of its own, in one directory."""
        directory = tmp_path / "l"
        shutil.copytree(whole, directory)
        for number, edit in enumerate(ENDS_ALL):
            world = World(f"edited-{number}")
            chance = random.Random(number)
            world.follow([_order(chance, 100, 20, 20) for _ in range(120)])
            edit(write_sealed(world.lines, directory / world.broker, chance))
        _, before = self.judged(spark, whole, tmp_path / "before")
        result, after = self.judged(spark, directory, tmp_path / "out")
        told = {fault.broker for fault in result.seals.faults if fault.kind == "tampered"}
        wanted = {f"edited-{number}" for number in range(len(ENDS_ALL))}
        assert told == wanted
        table = spark.read.parquet(str(result.job.out / "findings")).where("kind = 'tampered'")
        assert {row["b"] for row in table.collect()} == wanted
        assert self.of(after, *BROKERS) == self.of(before, *BROKERS)
        assert result.exit_code(("tampered",)) == 1
        assert any("format 7 of the ledger is not known" in each for each in result.facts.broken)

    def test_seals_that_are_gone_are_evidence_that_is_missing(
        self, spark: SparkSession, tmp_path: Path, whole: Path
    ) -> None:
        directory = tmp_path / "l"
        shutil.copytree(whole, directory)
        shutil.rmtree(directory / "three")
        before, _ = self.judged(spark, directory, tmp_path / "before")
        assert before.exit_code(("tampered",)) == 0
        for path in (directory / "one").glob("*.jsonl"):
            _rewrite(path, _strip)
        result, _ = self.judged(spark, directory, tmp_path / "out")
        assert result.findings["tampered"] == len(list((directory / "one").glob("*.jsonl")))
        assert result.exit_code(("tampered",)) == 3
        told = summary_of(result)
        assert "seals were removed from the ledger of one" in told["verdict"]
        assert "every confirmed message" not in told["verdict"]
        assert " 0 places changed since" in told["sealed"]

    def test_of_two_that_contradict_each_other_the_sealed_one_is_believed(
        self, spark: SparkSession, tmp_path: Path, whole: Path
    ) -> None:
        directory = tmp_path / "l"
        shutil.copytree(whole, directory)
        path, at, line = next(
            (path, at, json.loads(text))
            for path in sorted((directory / "one").glob("*.jsonl"))
            for at, text in enumerate(path.read_text().splitlines())
            if '"e":"pub"' in text and '"lsn":[' in text
        )
        line.pop("seal", None)
        forged = {**line, "lsn": [900_000, 900_000 + line["s"][1] - line["s"][0]]}
        other = directory / "one" / f"0-one-{line['o']:08}-00000099.jsonl"
        other.write_text(json.dumps(forged, separators=(",", ":")) + "\n")
        _, before = self.judged(spark, whole, tmp_path / "before")
        result, after = self.judged(spark, directory, tmp_path / "out")
        assert_same(after, before)
        details = [fault.detail for fault in result.seals.faults if fault.kind == "tampered"]
        assert any(f"{other}:1: not the same as in {path}:{at + 1}" in each for each in details)

    def test_incrementally_too(self, spark: SparkSession, tmp_path: Path, whole: Path) -> None:
        """A forged line and a damaged file that come later, with a broker that nobody can read."""
        directory = tmp_path / "l"
        shutil.copytree(whole, directory)
        job = Job((str(directory),), tmp_path / "out")
        incremental.run(spark, job)
        before = verdict(spark, job.out)
        path = sorted((directory / "one").glob("*.jsonl"))[0]
        _say_twice([path.with_name("one-00000001-00000077.jsonl")], path)
        packed = directory / "four-00000001-00000001.jsonl.gz"
        packed.write_bytes(gzip.compress(path.read_bytes())[:-20])
        result = incremental.run(spark, job)
        assert {fault.broker for fault in result.seals.faults} == {"one", "four"}
        assert_same(verdict(spark, job.out), before)
        assert result.exit_code(("tampered",)) == 1


def _strip(lines: list[str]) -> None:
    lines[:] = [re.sub(r'(,"prev_seal":"\w*")?,"seal":"\w*"', "", line) for line in lines]


def _forged(line: str) -> str:
    """The same number, and other contents."""
    told = json.loads(line)
    told.pop("seal", None)
    told.pop("prev_seal", None)
    return json.dumps({**told, "t": told["t"] + 1}, separators=(",", ":")) + "\n"


def _say_twice(paths: list[Path], of: Path | None = None) -> None:
    """A line with the number of another one in a file of its own, or beside it."""
    line = _forged((of or paths[0]).read_text().splitlines()[4])
    if of is None:
        _rewrite(paths[0], lambda lines: lines.insert(5, line))
    else:
        paths[0].write_text(line)


def _pack_badly(paths: list[Path]) -> None:
    packed = bytearray(gzip.compress(paths[0].read_bytes()))
    packed[len(packed) // 2] ^= 4
    paths[0].with_name(paths[0].name + ".gz").write_bytes(packed)
    paths[0].unlink()


def _go_on(paths: list[Path]) -> None:
    """The first epoch has a line behind its end, which the next one does not know of."""
    last = [path for path in paths if "-00000001-" in path.name][-1]
    line = json.loads(_forged(last.read_text().splitlines()[-1]))
    line |= {"n": line["n"] + 1, "t": line["t"] + 10**12}
    _rewrite(last, lambda lines: lines.append(json.dumps(line, separators=(",", ":")) + "\n"))


def _be_another(paths: list[Path]) -> None:
    """A second broker of this name has written beside it."""
    world = World(paths[0].parent.name, start_t=1_780_000_000_000_000)
    world.follow([(number, 3, 4) for number in range(60)])
    write_sealed(world.lines, paths[0].parent / "other", random.Random(3))


def _claim(paths: list[Path]) -> None:
    """Lines that claim to be of another broker, one that is there and one that is not."""
    line = _forged(paths[0].read_text().splitlines()[3])
    own = f'"b":"{paths[0].parent.name}"'
    more = [line.replace(own, f'"b":"{name}"') for name in ("two", "nobody")]
    _rewrite(paths[0], lambda lines: lines.extend(more))


ENDS_ALL: tuple[Callable[[list[Path]], object], ...] = (
    *(_say_twice, _pack_badly, _go_on, _be_another, _claim),
    lambda paths: _rewrite(paths[0], lambda lines: lines.__setitem__(0, "{}\n")),
    lambda paths: _rewrite(
        paths[0], lambda lines: lines.__setitem__(0, lines[0].replace('"fmt":1', '"fmt":7'))
    ),
    lambda paths: [path.write_bytes(b"\xff\x00\n" * 9) for path in paths[1:]],
)
"""Edits of the files of a broker of which each once ended the audit of all, or might."""


class TestBadInput:
    """One ledger with everything that can be wrong with files, and one that must be refused."""

    def world(self) -> World:
        world = World("one@host")
        chance = random.Random(3)
        world.follow([(chance.randrange(100), 3, chance.randrange(20)) for _ in range(80)])
        return world

    def test_files_may_be_torn_broken_packed_and_there_twice(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        lines = self.world().lines
        written = write_files(lines, tmp_path / "l", [25])
        # The newest is still written to; one is packed and there as it was, too; one is damaged.
        newest = written[-1]
        newest.write_bytes(newest.read_bytes() + b'{"b":"one@host","o"')
        newest.rename(newest.with_name(f".{newest.name}.open"))
        written[0].with_suffix(".jsonl.gz").write_bytes(gzip.compress(written[0].read_bytes()))
        (tmp_path / "l" / "again").mkdir()
        shutil.copy(written[1], tmp_path / "l" / "again" / written[1].name)
        text = written[2].read_bytes().splitlines(keepends=True)
        damaged = json.loads(text[4])
        text[4] = b"\0" * 40 + b"\n"
        written[2].write_bytes(b"".join(text))
        result = audit.run(spark, Job((str(tmp_path / "l"),), tmp_path / "out"))
        assert result.facts.torn == 1
        assert result.facts.broken == [f"{written[2]}:5"]
        assert result.facts.missing() == 1
        rest = [line for line in lines if (line["o"], line["n"]) != (damaged["o"], damaged["n"])]
        assert_same(verdict(spark, tmp_path / "out"), expected([rest]))

    def test_a_broken_last_line_leaves_no_number_out_and_proves_nothing(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        *_, written = write_files(self.world().lines, tmp_path / "l", [])
        with written.open("ab") as file:
            file.write(b'{"b":"one@host","o"\n[]\n')
        result = audit.run(spark, Job((str(tmp_path / "l"),), tmp_path / "out"))
        assert (result.facts.missing(), result.facts.lost()) == (0, 0)
        # Spark makes no row of an array that is empty.
        assert result.facts.broken_count == len(result.facts.broken) == 2
        assert result.exit_code(()) == 3

    def test_an_epoch_that_is_absent_is_something_missing(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        """Its lines are not counted, as nobody knows how many there were."""
        world = World("one@host")
        for _ in range(3):
            world.follow([(0, 0, 5)] * 3)
            world.restart(0, 0)
        whole = world.lines
        assert {line["o"] for line in whole} >= {1, 2, 3}
        lines = [line for line in whole if line["o"] != 2]
        write_files(lines, tmp_path / "l", [])
        result = audit.run(spark, Job((str(tmp_path / "l"),), tmp_path / "out"))
        assert (result.facts.missing(), result.facts.unseen()) == (0, 1)
        assert result.exit_code(()) == 3
        told = summary_of(result)
        assert "times without a ledger 1" in told["complete"]
        assert "not provable" in told["verdict"]
        # What was published in it is not taken for what was there before the ledger.
        states = verdict(spark, tmp_path / "out")
        assert_same(states, expected([lines]))
        assert "known" not in states["states"].values()

    def test_another_format_is_refused(self, spark: SparkSession, tmp_path: Path) -> None:
        lines = World("one").lines
        lines[0]["fmt"] = 2
        write_files(lines, tmp_path / "l", [])
        with pytest.raises(LedgerError, match="format 2 of the ledger is not known"):
            audit.run(spark, Job((str(tmp_path / "l"),), tmp_path / "out"))

    def test_files_that_went_by_their_age_are_nothing_missing(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        """What was published in them and is still there is known, and nothing else changes."""
        world = World("one@host")
        for number in range(30):
            world.follow([(0, number % 3, 2), (2, 0, 0), (3, 0, 0), (5, number, 1), (7, 0, 3)])
        world.follow([(12, 0, 0)])
        files = write_files(world.lines, tmp_path / "l", [20])
        assert len(files) > 4
        whole = audit.run(spark, Job((str(tmp_path / "l"),), tmp_path / "whole"))
        assert whole.exit_code(()) == 0
        for path in files[:2]:
            path.unlink()
        result = audit.run(spark, Job((str(tmp_path / "l"),), tmp_path / "out"))
        assert (result.facts.missing(), result.facts.unseen()) == (0, 0)
        assert result.exit_code(()) == 0, (result.states, result.findings)
        assert "older files are gone" in summary_of(result)["complete"]
        before, after = verdict(spark, tmp_path / "whole"), verdict(spark, tmp_path / "out")
        assert set(after["states"]) < set(before["states"])
        for copy, state in after["states"].items():
            assert state == before["states"][copy] or state == "known", copy
        # Without the one behind them a file is missing indeed.
        files[3].unlink()
        result = audit.run(spark, Job((str(tmp_path / "l"),), tmp_path / "hole"))
        assert result.facts.missing() == 20
        assert result.exit_code(()) == 3
