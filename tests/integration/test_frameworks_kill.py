"""A broker that is killed while tasks of a framework wait in it: all are done when they are due."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

from tests.integration.broker_process import BrokerProcess
from tests.integration.frameworks.celery_client import Celery
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

DELAY_S: Final = 4
# Celery asks again for a broker that is gone after 2, 4, 6 … seconds.


def test_celery_tasks_that_wait_and_run(own_broker: BrokerProcess, tmp_path: Path) -> None:
    """Countdowns on their way through delay queues, and late acks, over `kill -9`."""
    celery = Celery(own_broker.url, tmp_path)
    notes = tmp_path / "notes"
    try:
        with (
            celery.worker("quorum", "--hostname", "waiting@%h"),
            celery.worker("careful", "--hostname", "running@%h"),
        ):
            began = time.time()
            waiting = celery.app("quorum").tasks["note"]
            for number in range(10):
                text = f"{number}-waited"
                waiting.apply_async((str(notes), text), countdown=DELAY_S + number % 2)
            running = celery.app("careful").tasks["note"]
            for number in range(10):
                running.apply_async((str(notes), f"{number}-ran", 0.2))
            wait_until(notes.exists)
            own_broker.restart()
            wanted = {f"{number}-{kind}" for number in range(10) for kind in ("waited", "ran")}
            wait_until(lambda: set(notes.read_text().split()) == wanted, notes.read_text)
            done = notes.read_text().split()
        assert time.time() - began >= DELAY_S
        # The task that ran when the connection broke may have been done twice, and no other.
        assert len(done) <= len(wanted) + 1
        assert [text for text in done if text.endswith("waited")] == list(
            dict.fromkeys(text for text in done if text.endswith("waited"))
        )
    finally:
        celery.close()
