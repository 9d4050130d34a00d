"""Journals on a simulated disk for the store's unit tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.simulation.sim_disk import SimDisk
from vouchmq.store.journal.journal import Journal
from vouchmq.store.journal.notes import Recall
from vouchmq.store.recovery.recover import Recovered, open_journal
from vouchmq.store.sync.group_commit import GroupCommit
from vouchmq.store.sync.worker import SyncInline

SEGMENT_SIZE_BYTES = 4096


@dataclass
class Owner:
    """Who knows what is wanted of the state that recovery found."""

    known: Callable[[], Sequence[bytes]]
    wanted: Recall

    def definitions(self) -> list[bytes]:
        return list(self.known())

    def recall(self, scope_id: int, key: bytes) -> bytes | None:
        return self.wanted(scope_id, key)

    def position_of(self, queue_id: int, lsn: int) -> int | None:
        """No queue here numbers its messages."""


def open_on(
    disk: SimDisk,
    *,
    size: int = SEGMENT_SIZE_BYTES,
    definitions: list[bytes] | None = None,
    wall_ms: Callable[[], int] = lambda: 1,
    recall: Recall | None = None,
) -> tuple[Journal, Recovered]:
    """Recover; the journal has an owner to ask if `definitions` or `recall` are given."""
    journal, recovered = open_journal(disk, segment_size_bytes=size, wall_ms=wall_ms)
    if definitions is not None or recall is not None:
        journal.ask(Owner(lambda: definitions or (), recall or (lambda _scope_id, _key: None)))
    return journal, recovered


def sync(journal: Journal) -> None:
    """Write and sync as group commit does it, until nothing more is wanted."""
    failures: list[int] = []
    commit = GroupCommit(
        journal,
        SyncInline(),
        on_synced=lambda _: None,
        on_failed=failures.append,
        clock=lambda: 0.0,
    )
    journal.write()
    commit.request()
    while not commit.is_idle and not failures:
        commit.on_readable()
    assert failures == []


def seal(journal: Journal) -> None:
    """Stop in order."""
    for _ in range(9):
        if journal.seal():
            journal.close()
            return
        sync(journal)
    raise AssertionError("it takes more than nine syncs")


def publish(journal: Journal, queue_id: int, *raws: bytes) -> list[int]:
    """Append, write and sync each message in a block of its own; return the LSNs."""
    lsns = []
    for raw in raws:
        lsns.append(journal.append_run((queue_id,), b"tail", [raw]))
        sync(journal)
    return lsns


def raws_of(recovered: Recovered, queue_id: int) -> list[bytes]:
    queue = recovered.queues.get(queue_id)
    return [raw for _, raw, _ in queue.messages] if queue else []


def lsns_of(recovered: Recovered, queue_id: int) -> list[int]:
    queue = recovered.queues.get(queue_id)
    return [lsn for lsn, _, _ in queue.messages] if queue else []


def corrupt(disk: SimDisk, name: str, at: int, size: int = 8) -> None:
    """Change synced octets behind everybody's back."""
    inode = disk.visible[name]
    for octets in (inode.visible, inode.durable):
        octets[at : at + size] = bytes(octet ^ 0xFF for octet in octets[at : at + size])


def segments_on(disk: SimDisk) -> list[str]:
    return sorted(name for name in disk.listdir() if name.endswith(".journal"))
