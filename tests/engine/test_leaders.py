"""Nodes with the product's roles, writer and reader over real servers: the short version."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.engine.servers import MISSING, program
from tests.engine.take_overs import WAYS, run_take_overs

pytestmark = [pytest.mark.slow, pytest.mark.skipif(program() is None, reason=MISSING)]


async def test_leaders_and_servers_are_lost(tmp_path: Path) -> None:
    done = await run_take_overs(tmp_path, WAYS, random.Random(1), print)
    assert done.wrong == []
    assert len({each.partition(" ")[0] for each in done.leads}) > 1
    assert done.promised > 150
