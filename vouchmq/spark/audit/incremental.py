"""An audit that goes on: each run folds the ledger files that are new into what was open.

    new files ──▶ Structured Streaming ──▶ a step: (state N + new lines) ──▶ copies that are over
                                                                        └──▶ state N+1

Everything that a step makes is below its number and replaced when the step is repeated, and the
source gives a repeated step the same files: so each line counts once, whatever is killed. A copy
that is over may still be told of again; its row is then taken up once more. A file that comes late
(lines before ones that are known) has everything folded again. Must not know what a verdict is.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vouchmq.spark.audit import audit
from vouchmq.spark.audit import copies as c
from vouchmq.spark.audit.audit import Parts, TableCache, apart, write_json
from vouchmq.spark.audit.result import Job, Result
from vouchmq.spark.audit.step import Folded, State, facts_before, fold
from vouchmq.spark.ledger import lines, seals
from vouchmq.spark.ledger.collect import Batch, gather
from vouchmq.spark.ledger.facts import Facts
from vouchmq.spark.ledger.lines import LedgerError
from vouchmq.spark.ledger.seals import Look

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEP_BYTES: Final = 1 << 30
STATES_KEPT: Final = 3
HELD_US: Final = 60_000_000
"""A copy that is over but not confirmed stays open for so long: its confirm may be on the way."""
FRAMES: Final = tuple(
    field.name for field in fields(State) if field.name not in ("facts", "copies")
)
# Parts that are kept for good, each step's below its number.
TOLD, CLOSED, REOPENED = "told", "closed", "reopened"
# The names on disk of directories that an incremental audit keeps; the last is the older word.
FINDINGS, HOURS, RATES, DEAD_LETTERS = "findings", "hours", "rates", "letters"


@dataclass(frozen=True, slots=True)
class Step:
    """The note that a step leaves when it is done.

    Attributes:
        number: of the step
        base: parts of steps before this one count no longer
        facts: of all lines so far
        has_positions: some line tells where copies stand in their queue
    """

    number: int
    base: int
    facts: Facts
    has_positions: bool


class StepStore:
    """Where steps keep what they make, below the output directory."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self.directory = directory

    def note(self, number: int) -> Step | None:
        """The note of a step, if it was done."""
        path = self._note_path(number)
        if not path.exists():
            return None
        told = json.loads(path.read_text(encoding="utf-8"))
        facts = Facts.from_json(told["facts"])
        return Step(number, told["base"], facts, told["has_positions"])

    def last(self) -> Step | None:
        """The note of the last step that was done."""
        numbers = [int(path.stem) for path in (self.directory / "notes").glob("*.json")]
        return self.note(max(numbers)) if numbers else None

    def _note_path(self, number: int) -> Path:
        return self.directory / "notes" / f"{number:08d}.json"

    def leave_note(self, step: Step) -> None:
        """Say that a step is done; drop states that nobody goes back to."""
        write_json(
            self._note_path(step.number),
            {
                "base": step.base,
                "facts": step.facts.to_json(),
                "has_positions": step.has_positions,
            },
        )
        old = step.number - STATES_KEPT
        shutil.rmtree(self.directory / "state" / f"{old:08d}", ignore_errors=True)
        self._note_path(old).unlink(missing_ok=True)

    def put(self, part: str, number: int, frame: DataFrame) -> DataFrame:
        """Keep a part of a step for good; returns it, read from there."""
        return TableCache(self._spark, self.directory / part).keep(f"step={number}", frame)

    def part(self, name: str, schema: Any, base: int, until: int) -> DataFrame:
        """A part of the steps from `base` to before `until`, with the column `step`."""
        path = self.directory / name
        path.mkdir(parents=True, exist_ok=True)
        told = self._spark.read.schema(_with_step(schema)).parquet(str(path))
        return told.where(f"step >= {base} AND step < {until}")

    def state(self, number: int) -> TableCache:
        """Where the state after a step is."""
        return TableCache(self._spark, self.directory / "state" / f"{number:08d}")

    def load(self, step: Step) -> State:
        """The state after a step."""
        directory = self.directory / "state" / f"{step.number:08d}"
        frames = {
            name: self._spark.read.parquet(str(directory / name))
            for name in (*FRAMES, "copies")
            if (directory / name).exists()
        }
        return State(step.facts, **frames)


def _with_step(schema: Any) -> Any:
    from pyspark.sql.types import IntegerType, StructType

    names = [field for field in schema.fields if field.name != "step"]
    return StructType(names).add("step", IntegerType())


def run(spark: SparkSession, job: Job) -> Result:
    """Audit the files that have come since the last run into the same directory.

    Raises:
        LedgerError: the input cannot be judged, or belongs to another audit
    """
    with apart(spark) as own:
        return _run(own, job)


def _run(spark: SparkSession, job: Job) -> Result:
    began = time.monotonic()
    _check(job)
    step_store = StepStore(spark, job.internal)
    stream = (
        spark.readStream.schema(lines.reading_schema())
        .option("columnNameOfCorruptRecord", lines.BROKEN_TEXT)
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "*.jsonl*")
        .option("maxBytesPerTrigger", STEP_BYTES)
        # Else Spark passes over files that are a week older than the newest, without a word.
        .option("maxFileAge", "36500d")
        .option("ignoreCorruptFiles", "true")
        .json(_glob(job.paths))
    )
    stream = stream.withColumn("f", stream["_metadata.file_path"])
    failed: list[Exception] = []

    def step(frame: DataFrame, number: int) -> None:
        try:
            take(frame, number, job)
        except Exception as error:
            failed.append(error)
            raise

    query = (
        stream.writeStream.foreachBatch(step)
        .option("checkpointLocation", str(job.internal / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except Exception:
        if failed and isinstance(failed[0], LedgerError):
            raise failed[0] from None
        raise
    return tell(spark, job, step_store, began)


def _check(job: Job) -> None:
    for path in job.paths:
        if not Path(path).is_dir():
            raise LedgerError(f"{path} is not a directory: --incremental follows directories")
    lines.find(job.paths)
    note = job.internal / "incremental.json"
    wanted = {"paths": sorted(str(Path(each).resolve()) for each in job.paths)}
    if note.exists():
        if json.loads(note.read_text(encoding="utf-8")) != wanted:
            raise LedgerError(
                f"{job.out} belongs to an audit of other directories: choose another --out"
            )
        return
    # What a full audit has left is no beginning of this one.
    shutil.rmtree(job.internal, ignore_errors=True)
    write_json(note, wanted)


def _glob(paths: tuple[str, ...]) -> str:
    escaped = [
        "".join(f"\\{each}" if each in "{}[]*?,\\" else each for each in str(Path(path).resolve()))
        for path in paths
    ]
    return escaped[0] if len(escaped) == 1 else "{" + ",".join(escaped) + "}"


def take(frame: DataFrame, number: int, job: Job) -> None:
    """Fold the lines of a step; called again with the same ones if it was cut short."""
    spark = frame.sparkSession
    step_store = StepStore(spark, job.internal)
    last = step_store.note(number - 1)
    size = sum(Path(path).stat().st_size for path in lines.find(job.paths).closed)
    audit.tune(spark, size)
    scratch = TableCache(spark, job.internal / "scratch")
    bronze = scratch.keep("lines", lines.shape_streamed(frame))
    facts = Facts() if last is None else step_store.load(last).facts
    base = 0 if last is None else last.base
    before = facts_before(facts)
    audit.note_broken(bronze, facts)
    older = None if last is None else told(step_store, bronze, 0, number)
    batch = gather(bronze, facts)
    fresh = step_store.put(TOLD, number, batch.lines)
    has_positions = batch.has_positions or (last is not None and last.has_positions)
    batch = Batch(fresh, facts, batch.is_late, has_positions)
    if last is None or batch.is_late:
        if older is not None:
            fresh = older.select(*fresh.columns).unionByName(fresh)
        base = number
        batch = Batch(fresh, facts, is_late=False, has_positions=has_positions)
        folded = fold(State(facts), Facts(), batch, scratch.keep)
    else:
        folded = fold(
            step_store.load(last),
            before,
            batch,
            scratch.keep,
            older,
            _closed(step_store, base, number),
        )
    _keep(step_store, number, folded, batch, scratch)
    step_store.leave_note(Step(number, base, facts, has_positions))


def told(step_store: StepStore, like: DataFrame, base: int, until: int) -> DataFrame:
    """Lines of earlier steps, each once, with `bk` and `line`."""
    from pyspark.sql.types import IntegerType, LongType, StructType

    schema = StructType(list(like.schema.fields))
    schema = schema.add("bk", IntegerType()).add("line", LongType())
    return step_store.part(TOLD, schema, base, until).drop("step")


def _closed(step_store: StepStore, base: int, until: int) -> Callable[[DataFrame], DataFrame]:
    """Looks up copies that were over; notes that they no longer are."""

    def look_up(keys: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        found = over(step_store, base, until).join(f.broadcast(keys), [*c.KEY], "left_semi")
        kept = TableCache(keys.sparkSession, step_store.directory / "scratch").keep("found", found)
        step_store.put(REOPENED, until, kept.select(*c.KEY))
        return kept

    return look_up


def over(step_store: StepStore, base: int, until: int) -> DataFrame:
    """Rows of copies that are over, without those that were taken up again."""
    from pyspark.sql import functions as f

    schema = c.schema()
    keys = type(schema)([field for field in schema.fields if field.name in c.KEY])
    rows = step_store.part(CLOSED, schema, base, until)
    again = step_store.part(REOPENED, keys, base, until).withColumnRenamed("step", "later")
    newest = again.groupBy(*c.KEY).agg(f.max("later").alias("later"))
    return rows.join(newest, [*c.KEY], "left").where("later IS NULL OR later <= step")


def _keep(
    step_store: StepStore, number: int, folded: Folded, batch: Batch, scratch: TableCache
) -> None:
    state = folded.state
    parts = audit.parts_of(folded, batch, scratch)
    if (
        not (step_store.directory / REOPENED / f"step={number}").exists()
        and state.copies is not None
    ):
        step_store.put(REOPENED, number, state.copies.select(*c.KEY).limit(0))
    is_over = _is_over(parts.rows, state)
    step_store.put(CLOSED, number, is_over.where("is_over").select(*c.COLUMNS))
    for name, frame in {
        FINDINGS: parts.findings,
        HOURS: parts.hours,
        RATES: parts.rates,
        DEAD_LETTERS: parts.dead_letters,
    }.items():
        step_store.put(name, number, frame)
    cache = step_store.state(number)
    cache.keep("copies", is_over.where("NOT is_over").select(*c.COLUMNS))
    for name in FRAMES:
        frame = getattr(state, name)
        if frame is not None:
            cache.keep(name, _still_open(frame, state) if name == "publishes" else frame)


def _last_t(frame: DataFrame, facts: Facts) -> DataFrame:
    newest: dict[int, int] = {}
    for code, _, _, epoch in facts.epochs():
        newest[code] = max(newest.get(code, 0), epoch.last_t or 0)
    return frame.sparkSession.createDataFrame(list(newest.items()), "bk int, newest_t bigint")


def _is_over(rows: DataFrame, state: State) -> DataFrame:
    from pyspark.sql import functions as f

    if state.queues is None:
        raise TypeError("a state without its frames")
    streams = state.queues.select("bk", "qid", "is_stream")
    ends = (
        f"CASE WHEN is_stream = 1 THEN 0 ELSE {c.first('n_ends')} + {c.second('n_ends')} END + "
        f"{c.second('n_more')} + {c.third('n_more')} - {c.third('n_ends')}"
    )
    answered = f"(flags & {c.ACKED | c.NACKED | c.MOVED}) != 0"
    told = rows.fillna(0, ["n_ends", "n_more", "flags"])
    marked = (
        told.join(f.broadcast(streams), ["bk", "qid"], "left")
        .join(f.broadcast(_last_t(rows, state.facts)), ["bk"])
        .fillna(0, ["is_stream"])
    )
    return marked.withColumn(
        "is_over",
        f.expr(f"{ends} >= 1 AND ({answered} OR t_any < newest_t - {HELD_US})"),
    )


def _still_open(publishes: DataFrame, state: State) -> DataFrame:
    """Publishes that are so new that their confirms may be on the way; older ones are looked up."""
    from pyspark.sql import functions as f

    newest = _last_t(publishes, state.facts)
    return (
        publishes.join(f.broadcast(newest), ["bk"])
        .where(f"t >= newest_t - {HELD_US}")
        .drop("newest_t")
    )


def tell(spark: SparkSession, job: Job, step_store: StepStore, began: float) -> Result:
    """Write the tables of all steps."""
    last = step_store.last()
    if last is None:
        raise LedgerError(f"{', '.join(job.paths)}: no line of a ledger can be read")
    audit.tune(spark, 1 << 40)
    state = step_store.load(last)
    if state.copies is None:
        raise TypeError("a state without its frames")
    until = last.number + 1
    rows = over(step_store, last.base, until).select(*c.COLUMNS)

    def part(name: str) -> DataFrame:
        one = spark.read.parquet(str(step_store.directory / name / f"step={last.number}"))
        return step_store.part(name, one.schema, last.base, until).drop("step")

    rows = rows.unionByName(state.copies.select(*c.COLUMNS))
    parts = Parts(rows, *(part(name) for name in (FINDINGS, HOURS, RATES, DEAD_LETTERS)))
    cache = TableCache(spark, job.internal / "scratch")
    looks = look(job)
    found = audit.judge(looks, state.facts)
    written = audit.write_tables(spark, job, state, parts, found, cache)
    lines_of_all = spark.read.parquet(str(step_store.directory / TOLD))
    return audit.finish(spark, job, state.facts, found, lines_of_all, rows, written, began)


def look(job: Job) -> list[Look]:
    """What seals of all files have said so far: those that are new are read."""
    note = job.internal / "seals.json"
    told = json.loads(note.read_text(encoding="utf-8")) if note.exists() else []
    known = {each["path"]: Look.from_json(each) for each in told}
    # One that was packed since is the same as it was.
    stems = {path.removesuffix(".gz") for path in known}
    fresh = [
        path for path in lines.find(job.paths).closed if str(path).removesuffix(".gz") not in stems
    ]
    looks = [*known.values(), *audit.look(fresh)]
    write_json(note, seals.to_json(looks))
    return looks
