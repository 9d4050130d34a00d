"""Files are kept for a copy: until its end, its maker's end, a limit, or a disk alarm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.sim_disk import SimDisk
from tests.unit.server.admin.listings import Reader
from tests.unit.store.journals import open_on, sync
from vouchmq.server.admin import backup
from vouchmq.server.admin.backup import BackupCommands
from vouchmq.server.admin.commands import ControlCommands
from vouchmq.server.broker.data_directory import DataDirectory
from vouchmq.store.journal.journal import Journal


class Copier(Reader):
    """Who makes a backup, and what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, Any] = {}

    def send(self, content: Any) -> None:
        super().send(content)
        self.told |= content.get("backup", {})

    def go(self) -> None:
        for job in self.gone:
            job()


class Alarms:
    def __init__(self) -> None:
        self.is_disk_low = False
        self.is_storage_failing = False


class Broker:
    """One that only makes backups."""

    def __init__(self) -> None:
        self.now = 0.0
        self.journal: Journal = open_on(SimDisk())[0]
        self.alarms = Alarms()
        self.syncs = 0
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._soon: list[Callable[[], None]] = []
        directory = DataDirectory()
        directory.begin(0, lambda: "identity")
        self.commands = ControlCommands()
        BackupCommands(
            self.journal,
            directory,
            self.alarms,
            request_sync=self._synced,
            later=self._soon.append,
            call_later=lambda delay_s, job: self._timers.append((self.now + delay_s, job)),
            clock=lambda: self.now,
        ).register(self.commands)

    def _synced(self) -> None:
        self.syncs += 1

    def ask(self, command: str, **arguments: object) -> Copier:
        copier = Copier()
        self.commands.run({"command": command, **arguments}, copier)
        while self._soon:
            self._soon.pop(0)()
        return copier

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.now += 1.0
            due = [job for at, job in self._timers if at <= self.now]
            self._timers = [(at, job) for at, job in self._timers if at > self.now]
            for job in due:
                job()

    def is_held(self) -> bool:
        return self.journal.chain.is_held


def code_of(copier: Copier) -> object:
    """Why a command was refused; None while it has no answer."""
    return copier.facts["code"] if copier.facts else None


def test_files_are_kept_to_the_end() -> None:
    broker = Broker()
    for _ in range(30):
        broker.journal.append_run((1,), b"tail", [b"x" * 1000])
        sync(broker.journal)
    copier = broker.ask("backup begin")
    assert broker.is_held()
    assert code_of(copier) is None
    assert [line["generation"] for line in copier.lines] == broker.journal.chain.generations
    assert copier.told["data_directory"] == "identity"
    assert tuple(copier.told["end"]) == broker.journal.end()
    broker.pass_time(100)
    assert broker.is_held()
    ended = broker.ask("backup end", number=copier.told["number"])
    assert ended.facts == copier.facts == {"ok": True}
    assert not broker.is_held()
    assert broker.syncs == 0, "nothing waits to be removed"


def test_what_waited_is_removed_behind_a_sync() -> None:
    broker = Broker()
    first = broker.journal.append_run((1,), b"tail", [b"x" * 1000])
    for _ in range(30):
        broker.journal.append_run((1,), b"tail", [b"x" * 1000])
        sync(broker.journal)
    copier = broker.ask("backup begin")
    broker.journal.settle(1, range(first, first + 31))
    for _ in range(3):
        sync(broker.journal)
    broker.ask("backup end", number=copier.told["number"])
    assert broker.syncs == 1


def give_up_by_alarm(broker: Broker, _: Copier) -> None:
    broker.alarms.is_disk_low = True
    broker.pass_time(1)


def give_up_by_failing_disk(broker: Broker, _: Copier) -> None:
    broker.alarms.is_storage_failing = True
    broker.pass_time(1)


def give_up_by_time(broker: Broker, _: Copier) -> None:
    broker.pass_time(60)


def give_up_by_death(_: Broker, copier: Copier) -> None:
    copier.go()


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (give_up_by_alarm, "the disk alarm was raised"),
        (give_up_by_failing_disk, "the disk alarm was raised"),
        (give_up_by_time, "it took too long"),
        (give_up_by_death, "whoever made it has gone"),
    ],
)
def test_a_backup_that_is_given_up_says_so(
    cause: Callable[[Broker, Copier], None], reason: str
) -> None:
    broker = Broker()
    copier = broker.ask("backup begin", limit_s=60)
    cause(broker, copier)
    assert not broker.is_held()
    refused = {"ok": False, "error": f"the backup was given up: {reason}", "code": backup.GONE}
    assert copier.facts == refused
    assert broker.ask("backup end", number=copier.told["number"]).facts == refused
    broker.alarms = Alarms()


def test_there_is_one_at_a_time() -> None:
    broker = Broker()
    first = broker.ask("backup begin")
    assert code_of(broker.ask("backup begin")) == backup.CONFLICT
    first.go()
    assert code_of(broker.ask("backup begin")) is None
    # What is left of the first one ends nothing.
    first.go()
    assert code_of(broker.ask("backup end", number=first.told["number"])) == backup.GONE
    assert broker.is_held()


def test_a_disk_that_runs_full_keeps_nothing() -> None:
    broker = Broker()
    broker.alarms.is_disk_low = True
    assert code_of(broker.ask("backup begin")) == backup.CONFLICT
    assert not broker.is_held()
