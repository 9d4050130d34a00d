"""Memory stays near the watermark whatever clients do: the quick part of `memory_hogs`.

Spec: LIMIT-01, LIMIT-10, LIMIT-27, LIMIT-28
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.memory_hogs import ALLOWANCE_BYTES, MIB, broker_for, try_out

pytestmark = pytest.mark.slow

WATERMARK: int = 200 * MIB
WANTED: int = 900 * MIB


@pytest.mark.parametrize(
    "hogs",
    [
        ("partial_contents", "never_acked", "gets"),
        ("partial_contents_of_many", "unread_consumers", "transactions"),
    ],
    ids="+".join,
)
def test_memory_stays_near_the_watermark(
    tmp_path: Path, referee_url: str | None, hogs: tuple[str, ...]
) -> None:
    if referee_url is not None:
        pytest.skip("measures VouchMQ's own process")
    broker = broker_for(tmp_path, str(WATERMARK))
    broker.start(limit_s=30)
    try:
        most, _ = try_out(broker, list(hogs), WANTED, seed=1, hold_s=0.3, push_s=3.0)
        complaints = broker.complaints()
    finally:
        broker.kill9()
    assert complaints == []
    assert most <= WATERMARK + ALLOWANCE_BYTES
