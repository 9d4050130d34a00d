"""The ledger of a broker with every feature in use, over crashes, against a reader in plain Python.

The world is that of the simulation; here its broker also keeps a ledger, and after each history
every copy must have had exactly the fate that its queue says.
"""

from __future__ import annotations

import pytest

from tests.simulation import history
from tests.simulation.ledger import Violation
from vouchmq.server.ledger.recorder import QueueEventRecorder


@pytest.mark.parametrize("is_rough", [False, True])
@pytest.mark.parametrize("first", [0, 5])
def test_every_copy_has_the_outcome_that_its_queue_says(first: int, is_rough: bool) -> None:
    kinds: set[str] = set()
    for seed in range(first, first + 5):
        outcome = history.run_ledger(7000 + seed, is_rough=is_rough)
        if outcome.failure is not None:
            raise AssertionError(seed) from outcome.failure
        kinds |= outcome.ledger_kinds
    # Histories that show nothing prove nothing.
    wanted = {"boot", "que", "rte", "con", "pub", "cnf", "syn", "dlv", "ack", "req", "drp", "inv"}
    assert wanted <= kinds


def test_a_ledger_that_forgets_an_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueEventRecorder, "back", lambda self, messages: None)
    outcomes = (history.run_ledger(seed, is_rough=True) for seed in (9005, 9018))
    assert any(isinstance(outcome.failure, Violation) for outcome in outcomes)
