"""A broker with every feature in use that also keeps a ledger, for `feature_world.py`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count

from tests.ledger_reader import Audit, Line
from tests.open_classes import open_journals
from tests.simulation.feature_world import FeatureWorld
from tests.simulation.ledger import Violation
from tests.simulation.sim_disk import SimDisk
from tests.simulation.world import Loop
from vouchmq.server.ledger.ledger import Before, Ledger
from vouchmq.server.runtime.runtime import BrokerRuntime, Host, start_broker
from vouchmq.store.sync.worker import SyncInline


class MemoryFiles:
    """Files of a ledger, in memory: what was written before a crash is there after it."""

    seal = ""

    def __init__(self) -> None:
        self.data = bytearray()
        self.octets = 0
        self.before = Before()
        self.epoch = 0

    def opened(self) -> MemoryFiles:
        """As a broker finds it when it starts."""
        lines = self.lines()
        if lines:
            last = lines[-1]
            lsn = max(
                [line["lsn"][1] for line in lines if line.get("lsn")]
                + [line["wm"] for line in lines if "wm" in line]
            )
            self.before = Before(last["o"], last["n"], lsn, last["e"] == "end")
        return self

    def lines(self) -> list[Line]:
        return [json.loads(line) for line in bytes(self.data).splitlines()]

    def write(self, data: bytes) -> None:
        self.data += data
        self.octets += len(data)

    def failing(self, is_so: bool) -> None:
        raise AssertionError(is_so)

    def begin(self, epoch: int) -> None:
        assert epoch > self.epoch
        self.epoch = epoch

    def rotate(self, lsn: int, done: Callable[[str], None] | None = None) -> None:
        del lsn
        if done is not None:
            done("")

    def end(self, lsn: int, done: Callable[[str], None] | None = None, *, goes_dark: bool) -> None:
        del lsn, goes_dark
        if done is not None:
            done("")


class LedgerWorld(FeatureWorld):
    """One history of a broker with a ledger."""

    files: MemoryFiles | None = None
    is_starting = False

    def start(self) -> None:
        if self.files is None:
            self.files = MemoryFiles()
            self.settings = replace(
                self.settings,
                ledger_enabled=True,
                ledger_detail=random.Random(len(self.settings.node)).choice(("runs", "messages")),
            )
        self.is_starting = True
        super().start()
        self.is_starting = False

    def assemble(self, disk: SimDisk, worker: SyncInline, loop: Loop) -> BrokerRuntime:
        if not self.is_starting or disk is not self.disk or self.files is None:
            self.settings, settings = replace(self.settings, ledger_enabled=False), self.settings
            try:
                return super().assemble(disk, worker, loop)
            finally:
                self.settings = settings
        self.is_starting = False
        tokens = count()
        host = Host(
            call_soon=loop.call_soon,
            call_later=loop.call_later,
            clock=lambda: loop.now,
            wall_ms=lambda: self.base_ms + int(1000 * loop.now),
            random_token=lambda: f"{next(tokens):022}",
            fatal=self._fatal,
        )
        files = self.files.opened()
        with open_journals():
            return start_broker(self.settings, disk, worker, host, ledger_files=files)  # type: ignore[arg-type]

    @property
    def ledger(self) -> Ledger:
        assert self.runtime.ledger is not None
        return self.runtime.ledger

    def take_stock(self) -> None:
        """Take an inventory, and compare it with what is really there."""
        if self.model.has_failed:
            return
        ledger = self.ledger
        ledger.take_inventory(lambda _: None)
        ledger._inventory_job.finish()
        ledger.flush()
        listing = self.listing()
        there: dict[str, set[int]] = {}
        for name, seq in listing.places():
            there.setdefault(name, set()).add(seq >> 1)
        for queue in self.vhost.every_queue():
            name = queue.spec.name
            held = ledger._inventory_job.holding(queue, 0)
            found = {lsn for first, last in held.ranges() for lsn in range(first, last + 1)}
            unread = listing.unread[name]
            missing = there.get(name, set()) - found
            assert not missing, (name, missing)
            # Transient dead letters on their way are in no listing.
            found -= set(self.runtime.dead_letter_publisher.kept_of(queue)) - there.get(name, set())
            assert len(found) == len(there.get(name, set())) + unread, name

    def judge(self) -> Audit:
        """Read the whole ledger: every copy must have had exactly the fate its queue says.

        Raises:
            Violation: one had not
        """
        assert self.files is not None
        audit = Audit(self.files.lines())
        for name, found in (
            ("ledger", audit.faults),
            ("lost", audit.lost),
            ("ended twice", audit.double_ends()),
            ("no fate", [each for each in audit.summary() if each == "?"]),
        ):
            if found:
                raise Violation(f"{name}: {found[:3]}")
        return audit
