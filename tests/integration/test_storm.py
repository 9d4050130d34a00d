"""Many clients that connect at once: each gets what it would get alone.

Spec: CONN-22, CONN-40, LIMIT-23
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench.abuse.storm import Crowd, play
from bench.client import Address
from tests.integration.broker_process import BrokerProcess

pytestmark = pytest.mark.integration

LIMIT = 20
COUNT = 150
REFUSAL = f"530 NOT_ALLOWED - connection refused: node connection limit ({LIMIT}) is reached"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[Address]:
    """A broker that takes few connections."""
    broker = BrokerProcess(tmp_path, flags=("--connection-max", str(LIMIT)))
    broker.start()
    yield Address("127.0.0.1", broker.port)
    broker.stop()
    assert broker.complaints() == []


@pytest.mark.parametrize("together", [False, True])
def test_no_more_are_opened_than_may_be(address: Address, *, together: bool) -> None:
    with closing(Crowd()) as crowd:
        found = play(crowd, address, COUNT, together=together)
    assert found["storm_served"] == LIMIT
    assert found["storm_failures"] == {REFUSAL: COUNT - LIMIT}


def test_wrong_logins_are_refused_and_right_ones_are_not(address: Address) -> None:
    stranger = Address(address.host, address.port, user="nobody")
    with closing(Crowd()) as strangers, closing(Crowd()) as crowd:
        refused = play(strangers, stranger, COUNT, together=True)
        found = play(crowd, address, LIMIT)
    assert (refused["storm_served"], refused["storm_unserved"]) == (0, 0)
    assert (found["storm_served"], found["storm_failures"]) == (LIMIT, {})
