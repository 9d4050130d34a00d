"""The two promises of the engine that the log rests on, against three real servers.

E1: what is acknowledged at a sequence stays there, for every reader. E2: of all messages that
expect a sequence at most one gets the next one, and none gets another. This is the short version
of `python -m tests.engine`, which is to be run with each new version of the engine.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.engine.campaign import Report, run_faults, run_partition
from tests.engine.networks import PARTITIONS, why_not
from tests.engine.servers import MISSING, SUBJECTS, loopback_cluster, program
from tests.engine.talk import Questions
from vouchmq.server.replication import monitoring
from vouchmq.server.replication.settings_check import find_faults

pytestmark = [pytest.mark.slow, pytest.mark.skipif(program() is None, reason=MISSING)]


async def test_kills_and_pauses(tmp_path: Path) -> None:
    report = Report()
    kinds = ["kill", "pause", "kill", "pause"]
    await run_faults(tmp_path / "data", kinds, report, random.Random(1), print, purges=True)
    assert report.wrong == []
    assert report.records + report.purged >= report.acked > 100


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
@pytest.mark.parametrize("name", ["leader from others", "no answers from leader"])
async def test_partitions(name: str, tmp_path: Path) -> None:
    report = Report()
    partition = next(each for each in PARTITIONS if each.name == name)
    await run_partition(tmp_path / "data", partition, report, random.Random(1), print)
    assert report.wrong == []
    assert report.records >= report.acked > 100


async def test_settings_of_a_cluster(tmp_path: Path) -> None:
    """What `stream_settings` makes on servers that sync always is what is wanted."""
    cluster = loopback_cluster(tmp_path)
    try:
        await asyncio.to_thread(cluster.start)
        async with Questions(cluster.addresses) as questions:
            await questions.create_stream(3)
            info = await questions.wait_until_current()
        reports = {
            each.monitor: await asyncio.to_thread(monitoring.ask, each.monitor)
            for each in cluster.servers
        }
        assert find_faults(info, SUBJECTS, reports, 600_000) == []
        del reports[cluster.servers[1].monitor]
        [fault] = find_faults(info, SUBJECTS, reports, 600_000)
        assert fault.startswith("server n2 holds the stream")
    finally:
        cluster.stop()
