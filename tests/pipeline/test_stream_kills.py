"""Stream mode under SIGKILL: a little of the campaign with every run, all of it with --campaign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.broker_process import RefereeBroker
from tests.pipeline.stream_campaign import VICTIMS, campaign

# Each round that kills the JVM starts another one.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def verdict(found: dict[str, Any]) -> tuple[int, int, int, int]:
    """Lost, twice, from nowhere, and confirmed but not in the table."""
    assert found["in_table"] == found["in_stream"] >= found["confirmed"] > 0
    return found["lost"], found["twice"], found["strange"], found["confirmed_not_in_table"]


def test_nothing_is_lost_or_twice_when_everything_is_killed(tmp_path: Path) -> None:
    found = campaign(1, tmp_path, None, seed=3, victims=["all"])
    assert verdict(found) == (0, 0, 0, 0)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_twenty_kills(tmp_path: Path) -> None:
    found = campaign(20, tmp_path, None, seed=4)
    assert verdict(found) == (0, 0, 0, 0)
    assert {each["victim"] for each in found["rounds"]} == set(VICTIMS)


@pytest.mark.campaign
@pytest.mark.referee
@pytest.mark.timeout(3600)
def test_kills_beside_rabbitmq(tmp_path: Path, rabbit: RefereeBroker) -> None:
    found = campaign(8, tmp_path, rabbit.url, seed=5)
    assert verdict(found) == (0, 0, 0, 0)
