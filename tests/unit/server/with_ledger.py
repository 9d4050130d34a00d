"""A broker in memory whose ledger is on, and is written to memory."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.ledger_reader import Audit, Line
from tests.unit.server.in_memory import World
from vouchmq.server.ledger.ledger import Before, Ledger, LedgerConfig


class MemoryFiles:
    """Files in memory."""

    before = Before()
    octets = 0
    seal = ""

    def __init__(self) -> None:
        self.data = b""
        self.rotations = 0

    def write(self, data: bytes) -> None:
        self.data += data

    def failing(self, is_so: bool) -> None:
        raise AssertionError(is_so)

    def begin(self, epoch: int) -> None:
        assert epoch

    def rotate(self, lsn: int, done: Callable[[str], None] | None = None) -> None:
        self.rotations += 1
        if done is not None:
            done(f"file {lsn}")

    def end(self, lsn: int, done: Callable[[str], None] | None = None, *, goes_dark: bool) -> None:
        del goes_dark
        self.rotate(lsn, done)


class LedgerWorld(World):
    """A broker with a ledger that is on."""

    ledger: Ledger | None = None

    def __init__(self, *, tells_ids: bool = False) -> None:
        super().__init__()
        self.files = MemoryFiles()
        ledger_config = LedgerConfig("b", tells_ids=tells_ids, rotate_s=60, inventory_s=3600)
        clock_us = lambda: int(self.now * 1e6)  # noqa: E731
        self.ledger = Ledger(
            ledger_config,
            self.files,
            self.context,
            self.connections,
            clock_us,
            self.dead_letter_publisher.kept_of,
        )
        self.ledger.switch_on()

    def lines(self, *kinds: str) -> list[Line]:
        """What was written, without what all lines have; `e` only where several are asked for."""
        assert self.ledger is not None
        self.ledger.flush()
        lines = [json.loads(line) for line in self.files.data.splitlines()]
        found = [line for line in lines if line["e"] in kinds]
        drop = {"b", "o", "n", "t"} | ({"e"} if len(kinds) == 1 else set())
        return [{k: v for k, v in line.items() if k not in drop} for line in found]

    def audit(self) -> Audit:
        """Everything adds up to what is there."""
        assert self.ledger is not None
        self.ledger.take_inventory(lambda _: None)
        self.run_turns()
        self.ledger.flush()
        found = Audit([json.loads(line) for line in self.files.data.splitlines()])
        assert found.faults == []
        assert found.double_ends() == []
        return found
