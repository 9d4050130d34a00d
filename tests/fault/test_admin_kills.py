"""kill -9 while users and virtual hosts are changed: what was answered is there, nothing else."""

from __future__ import annotations

import random
import threading
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.integration.broker_process import BrokerProcess
from tests.waiting import wait_until
from vouchmq.server.edge.control import client as control

ROUNDS = 5
NAMES = ("a", "b", "c")
Key = tuple[str, str]


class Asker:
    """Changes one thing after the other, until the broker is gone."""

    def __init__(self, broker: BrokerProcess, draw: random.Random) -> None:
        self._broker = broker
        self._draw = draw
        self._numbers = count(1)
        # What each thing is by the last answer; None: it is not there.
        self.answered: dict[Key, str | None] = {}
        self.in_flight: tuple[Key, str | None] | None = None
        self.count = 0

    def run(self) -> None:
        """Ask until there is nobody to ask."""
        try:
            while True:
                self._ask()
        except control.NoBrokerError:
            return

    def has_heard(self, count: int) -> bool:
        """Whether so many changes were answered."""
        return self.count >= count

    def _ask(self) -> None:
        kind, name = self._draw.choice(("user", "vhost")), self._draw.choice(NAMES)
        key = (kind, name)
        value: str | None = None
        arguments: dict[str, Any] = {}
        command = f"delete {kind}"
        if self.answered.get(key) is None or self._draw.random() < 0.7:
            value = f"tag{next(self._numbers)}"
            command, arguments = f"put {kind}", {"tags": [value]}
        self.in_flight = (key, value)
        answer = control.ask(self._broker.data_dir, command, name=name, **arguments)
        assert answer["ok"], answer
        self.answered[key] = value
        self.in_flight = None
        self.count += 1

    def judge(self) -> None:
        """Compare with what there is, which is what holds from now on."""
        found: dict[Key, str] = {}
        for kind, listing in (("user", "users"), ("vhost", "vhosts")):
            *rows, _ = control.ask_rows(self._broker.data_dir, f"list {listing}")
            found |= {(kind, row["name"]): ",".join(row["tags"]) for row in rows}
        for key in [(kind, name) for kind in ("user", "vhost") for name in NAMES]:
            allowed = [self.answered.get(key)]
            if self.in_flight is not None and self.in_flight[0] == key:
                allowed.append(self.in_flight[1])
            assert found.get(key) in allowed, key
            self.answered[key] = found.get(key)
        self.in_flight = None


@pytest.mark.parametrize("seed", [1, 2])
def test_no_answered_change_is_lost_by_a_kill(tmp_path: Path, seed: int) -> None:
    """AUTH-07, VHOST-05, DURABLE-02."""
    draw = random.Random(seed)
    # Segments begin again and again, each with all that there is by then.
    broker = BrokerProcess(tmp_path, flags=["--segment-size-bytes", "1048576"])
    broker.start()
    try:
        asker = Asker(broker, draw)
        for _ in range(ROUNDS):
            wanted = asker.count + draw.randrange(1, 60)
            thread = threading.Thread(target=asker.run)
            thread.start()
            wait_until(partial(asker.has_heard, wanted))
            broker.kill9()
            thread.join()
            broker.start()
            asker.judge()
        assert asker.count > ROUNDS
    finally:
        broker.stop()
