"""Celery as it is used: quick-start, careful settings, ETA, priorities, quorum queues.

`test_celery.py` holds what needs nothing but the core of the protocol.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pika
import pika.exceptions
import pytest

from tests.integration.broker_process import Broker
from tests.integration.frameworks.celery_client import LIMIT_S, Celery
from tests.waiting import wait_until

# A worker that holds tasks with an ETA raises its prefetch. It does so for its running consumer
# when the broker calls itself something else than RabbitMQ, and with global=1 otherwise (QOS-05).
BROKER_FLAGS: Final = ("--qos-apply-to-existing-consumers", "on")
DELAY_LEVELS: Final = 28


@pytest.fixture(scope="module")
def celery(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Celery]:
    """The applications, for all tests of this module."""
    made = Celery(url, tmp_path_factory.mktemp("celery"))
    yield made
    made.close()


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A file for tasks to write to."""
    return tmp_path / "notes"


def test_quick_start(celery: Celery, notes: Path) -> None:
    """Default settings: results, errors, retries, groups, remote control, revoking."""
    app = celery.app("quickstart")
    with celery.worker("quickstart"):
        results = [app.tasks["add"].apply_async((n, n)) for n in range(20)]
        assert [result.get(timeout=LIMIT_S) for result in results] == [2 * n for n in range(20)]
        with pytest.raises(ValueError, match="on purpose"):
            app.tasks["fail"].apply_async(("on purpose",)).get(timeout=LIMIT_S)
        assert app.tasks["retry"].apply_async().get(timeout=LIMIT_S) == 2
        (answer,) = app.control.ping(timeout=LIMIT_S, limit=1)
        ((worker, pong),) = answer.items()
        assert pong == {"ok": "pong"}
        inspect = app.control.inspect([worker], timeout=LIMIT_S, limit=1)
        assert "add" in inspect.registered()[worker]
        [queue] = inspect.active_queues()[worker]
        assert (queue["name"], queue["durable"]) == (f"{celery.prefix}.quickstart", True)
        stats = inspect.stats()[worker]
        assert stats["total"]["add"] == 20
        assert stats["broker"]["transport"] == "amqp"
        for told in (inspect.active(), inspect.reserved(), inspect.scheduled()):
            assert told == {worker: []}
        assert inspect.query_task(results[0].id) == {worker: {}}
        assert inspect.conf()[worker]["broker_url"].startswith("amqp://")
        later = app.tasks["note"].apply_async((str(notes), "revoked"), countdown=2)
        later.revoke()
        app.tasks["note"].apply_async((str(notes), "not revoked"), countdown=2.2).get(
            timeout=LIMIT_S
        )
        assert notes.read_text() == "not revoked\n"


def test_task_whose_process_is_killed_is_done_again(celery: Celery, notes: Path) -> None:
    """`task_acks_late` with `task_reject_on_worker_lost`: the worker requeues by basic.reject."""
    app = celery.app("careful")
    with celery.worker("careful"):
        result = app.tasks["die-once"].apply_async((str(notes),))
        assert result.get(timeout=LIMIT_S) is True
    assert notes.read_text().split() == ["redelivered=False", "redelivered=True"]


def test_worker_that_is_stopped_finishes_its_task(celery: Celery, notes: Path) -> None:
    """A warm shutdown leaves nothing undone, and nothing is done twice that was acked.

    On a busy machine Celery's pool may wait in vain for its own main process to take the result of
    the task under way (billiard's `_ensure_messages_consumed` gives up after 30 s). The worker then
    ends without an ack, and the broker owes it to somebody else.
    """
    task = celery.app("careful").tasks["note"]
    with celery.worker("careful") as worker:
        results = [task.apply_async((str(notes), f"{number}", 0.1)) for number in range(20)]
        results[0].get(timeout=LIMIT_S)
        assert worker.stop() == 0
    first = [*map(int, notes.read_text().split())]
    assert 1 <= len(first) < 20
    with celery.worker("careful"):
        for result in results:
            result.get(timeout=LIMIT_S)
    again = [*map(int, notes.read_text().split())][len(first) :]
    if again[0] == first[-1]:
        del again[0]
    assert first + again == list(range(20))


def test_waiting_for_an_eta_holds_nobody_up(celery: Celery, notes: Path) -> None:
    """A worker holds tasks with an ETA unacknowledged and asks for more prefetch (QOS-05/06)."""
    app = celery.app("quickstart")
    with celery.worker("quickstart"):
        began = time.time()
        late = [app.tasks["note"].apply_async((str(notes), "late"), countdown=5) for _ in range(12)]
        # Four times more than the worker's prefetch is waiting; this one overtakes all.
        soon = app.tasks["note"].apply_async((str(notes), "soon")).get(timeout=LIMIT_S)
        done = [result.get(timeout=LIMIT_S) for result in late]
        assert soon < min(done)
        assert min(done) >= began + 5
    assert notes.read_text().split() == ["soon"] + 12 * ["late"]


def test_eta_beyond_the_consumer_timeout(
    celery: Celery,
    notes: Path,
    broker: Broker,
) -> None:
    """The worker loses its consumer, connects again, and does the task once, in time.

    RabbitMQ closes the channel instead, and Celery's worker ends with an error (3.10.8 measured,
    with its timeout for the whole node; it does not know this argument).
    """
    app = celery.app("hurried")
    with celery.worker("hurried") as worker:
        began = time.time()
        result = app.tasks["note"].apply_async((str(notes), "in time"), countdown=4)
        assert result.get(timeout=LIMIT_S) >= began + 4
        assert app.tasks["add"].apply_async((2, 3)).get(timeout=LIMIT_S) == 5
        if not broker.is_referee:
            assert "ConsumerCancelled" in worker.text()
    assert notes.read_text().split("\n") == ["in time", ""]


def test_priorities(celery: Celery, notes: Path) -> None:
    app = celery.app("prioritised")
    first = [app.tasks["note"].apply_async((str(notes), "low"), priority=1) for _ in range(3)]
    rest = [
        app.tasks["note"].apply_async((str(notes), "default")),
        app.tasks["note"].apply_async((str(notes), "high"), priority=9),
        app.tasks["note"].apply_async((str(notes), "high"), priority=9),
    ]
    with celery.worker("prioritised"):
        for result in first + rest:
            result.get(timeout=LIMIT_S)
    assert notes.read_text().split() == ["high", "high", "default", "low", "low", "low"]


class TestQuorumQueues:
    """Celery finds out by itself that its queue is one, and changes its ways."""

    @pytest.fixture
    def app(self, celery: Celery) -> Iterator[Any]:
        yield celery.app("quorum")
        with pika.BlockingConnection(pika.URLParameters(celery.url)) as connection:
            channel = connection.channel()
            channel.exchange_delete("celery_delayed_delivery")
            for level in range(DELAY_LEVELS):
                channel.queue_delete(f"celery_delayed_{level}")
                channel.exchange_delete(f"celery_delayed_{level}")

    def waiting(self, url: str) -> dict[int, int]:
        """How many messages wait on which level of the delay queues."""
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            counts = {
                level: channel.queue_declare(
                    f"celery_delayed_{level}", passive=True
                ).method.message_count
                for level in range(DELAY_LEVELS)
            }
        return {level: count for level, count in counts.items() if count}

    def test_waiting_is_left_to_the_broker(self, celery: Celery, app: Any, notes: Path) -> None:
        """Countdowns travel through queues with a TTL of 1, 2, 4 … seconds, one for each bit."""
        with celery.worker("quorum") as worker:
            assert "Global QoS is disabled" in worker.text()
            assert app.tasks["add"].apply_async((2, 3)).get(timeout=LIMIT_S) == 5
            began = time.time()
            three = app.tasks["note"].apply_async((str(notes), "three"), countdown=3)
            one = app.tasks["note"].apply_async((str(notes), "one"), countdown=1)
            first, last = one.get(timeout=LIMIT_S), three.get(timeout=LIMIT_S)
            assert began + 1 <= first < last
            assert last >= began + 3
            # Three quarters of an hour (2048 + 512 + 128 + 8 + 4 s) and half a year: no worker
            # holds them, so that no consumer timeout can strike.
            app.tasks["note"].apply_async((str(notes), "later"), countdown=2700)
            app.tasks["note"].apply_async((str(notes), "much later"), countdown=15_768_000)
            wait_until(lambda: sum(self.waiting(celery.url).values()) == 2)
            assert self.waiting(celery.url) == {11: 1, 23: 1}
            scheduled = app.control.inspect(timeout=LIMIT_S, limit=1).scheduled()
            assert list(scheduled.values()) == [[]]
        assert notes.read_text().split() == ["one", "three"]
