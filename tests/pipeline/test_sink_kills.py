"""Programs that write to a sink fail or are killed: no row is lost, and where asked none is twice.

One exchange feeds two queues: one that de-duplicates by the ids that the sink gives, where the
broker can, and one that shows what was really published.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.broker_process import BrokerProcess
from tests.pipeline import peer
from tests.pipeline.conftest import Referee
from tests.pipeline.sink_hooks import CONFIRMED
from tests.pipeline.sink_jobs import JOB_LIMIT_S, SinkJob, files

KEY = "x-deduplication-header"
# As `sink_job` has set Spark.
BATCH_ROWS = 200
ROWS = 2000
KILLS = 20

told = logging.getLogger(__name__)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * JOB_LIMIT_S)]


class Ends:
    """An exchange with its queues on one broker."""

    def __init__(self, broker: BrokerProcess | Referee, fresh: Callable[[str], str]) -> None:
        self.url = broker.url
        self.exchange = fresh("x")
        self.all = fresh("all")
        self.once = "" if broker.is_referee else fresh("once")
        with peer.channel(self.url) as channel:
            channel.exchange_declare(self.exchange, "fanout")
            channel.declare(self.all)
            channel.bind(self.all, self.exchange)
            if self.once:
                channel.declare(self.once, arguments={"x-message-deduplication": True})
                channel.bind(self.once, self.exchange)

    def options(self) -> dict[str, str]:
        """Those of the sink."""
        return {"url": self.url, "exchange": self.exchange, "dedupeHeader": KEY}

    def grows(self) -> Callable[[], bool]:
        """Tells whether more is published than there is now."""
        before = peer.count(self.url, self.all)
        return lambda: peer.count(self.url, self.all) > before

    def judge(self, rows: int) -> int:
        """How many rows were published more than once; no row is lost, nor twice where it counts.

        A copy has the id of the first: whoever reads can tell.
        """
        published = peer.drain(self.url, self.all)
        ids: dict[bytes, str | None] = {}
        for each in published:
            assert each.id is not None
            assert each.headers[KEY] == each.id
            assert ids.setdefault(each.body, each.id) == each.id
        assert sorted(map(int, ids)) == list(range(rows))
        assert len(set(ids.values())) == rows
        if self.once:
            once = peer.drain(self.url, self.once)
            assert sorted(int(each.body) for each in once) == list(range(rows))
        with peer.channel(self.url) as channel:
            channel.exchange_delete(self.exchange)
        return len(published) - rows


def queries(brokers: list[Ends], tmp_path: Path, count: int) -> dict[str, Any]:
    """A query to each broker."""
    return {
        "rows": str(files(tmp_path / "rows", count, ROWS, "")),
        "queries": [
            {"options": ends.options(), "checkpoint": str(tmp_path / f"checkpoint-{number}")}
            for number, ends in enumerate(brokers)
        ],
    }


def test_queries_killed_in_the_middle_of_a_batch_and_tasks_that_fail(
    vouch: BrokerProcess, rabbit: Referee, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    """The second run goes on with the queries, and then has tasks that fail twice."""
    brokers = [Ends(vouch, fresh), Ends(rabbit, fresh)]
    written = Ends(vouch, fresh)
    files_count = 3
    job = queries(brokers, tmp_path, files_count)
    reached = tmp_path / "reached"
    reached.mkdir()
    paused = {**job, "hooks": {"SINK_PAUSE_AT": "1", "SINK_REACHED": str(reached)}}
    failing = {"master": "local[2,4]", "hooks": {"SINK_FAILURES": "2"}}
    log = tmp_path / "job.log"
    with SinkJob(paused, log) as run:
        run.wait_for(lambda: len(list(reached.iterdir())) == len(brokers))
        run.kill()
    with SinkJob({**job, **failing, "options": written.options()}, log) as run:
        run.finish()
    # The batch in which it was killed is published again, with the same ids.
    again = CONFIRMED * BATCH_ROWS
    assert [ends.judge(files_count * ROWS) for ends in brokers] == [again] * len(brokers)
    # Spark has made some tasks of the files, and each has failed twice.
    twice = written.judge(files_count * ROWS)
    assert twice > 0
    assert twice % (2 * again) == 0


@pytest.mark.campaign
@pytest.mark.timeout(40 * JOB_LIMIT_S)
def test_queries_killed_at_any_time(
    vouch: BrokerProcess, rabbit: Referee, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    chance = random.Random(5)
    brokers = [Ends(vouch, fresh), Ends(rabbit, fresh)]
    batches = 5 * KILLS
    job = queries(brokers, tmp_path, batches)
    log = tmp_path / "job.log"
    for _ in range(KILLS):
        with SinkJob(job, log) as run:
            run.wait_for(brokers[0].grows())
            time.sleep(chance.uniform(0, 2.0))
            assert run.is_running, "it was through before it could be killed"
            run.kill()
    with SinkJob(job, log) as run:
        run.finish(10 * JOB_LIMIT_S)
    twice = [ends.judge(batches * ROWS) for ends in brokers]
    told.info("%d kills: lost 0, published twice %s of %d rows", KILLS, twice, batches * ROWS)
