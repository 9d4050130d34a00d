"""Machines with disks that lose what was not synced: one leads, and the others mirror it.

The log keeps what it has acknowledged, and purges what it is told to. Unlike in `world.py` there is
no doubt about answers here, but what a leader has sent may be committed without its knowing.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from random import Random

from tests.simulation.sim_disk import PowerCut, SimDisk
from vouchmq.store.errors import WriteFailed
from vouchmq.store.journal.journal import Journal
from vouchmq.store.recovery.recover import open_journal
from vouchmq.store.replication import record
from vouchmq.store.replication.leader_position import LeaderPosition
from vouchmq.store.replication.log_writer import EPOCH_LSNS, LogWriter
from vouchmq.store.replication.mirror import Mirror
from vouchmq.store.replication.record import Subjects
from vouchmq.store.replication.standby_syncs import StandbySyncs
from vouchmq.store.replication.watermark import Watermark

LOG_ID = b"log of machines."
SUBJECTS = Subjects("m")
SEGMENT_BYTES = 3000
RECORD_BYTES = 600
QUEUE = 1
# Of all ends, those in which the machine goes on.
KILLED = 0.3


class PurgeableLog:
    """Messages by sequence, with their subjects."""

    def __init__(self) -> None:
        self.messages: dict[int, tuple[str, bytes]] = {}
        self.last = 0
        self.append(SUBJECTS.lasting, record.origin(LOG_ID))

    def append(self, subject: str, raw: bytes) -> None:
        self.last += 1
        self.messages[self.last] = (subject, raw)

    def behind(self, sequence: int) -> list[tuple[int, bytes]]:
        return [(at, raw) for at, (_, raw) in self.messages.items() if at >= sequence]

    def purge(self, subject: str) -> None:
        self.messages = {at: each for at, each in self.messages.items() if each[0] != subject}

    def segments(self) -> dict[int, bytes]:
        """What segments are made of the records that are left."""
        found: dict[int, bytes] = {}
        generation = whole = 0
        for _, raw in self.behind(1):
            one = record.open_record(raw)
            assert one is not None
            if one.header.kind == record.CLAIM and generation:
                # A block that its leader has not finished is none.
                found[generation] = found[generation][:whole]
            if one.header.kind != record.BLOCKS:
                continue
            generation = one.header.generation
            before = found.get(generation, b"")
            assert len(before) == one.header.offset
            found[generation] = before + one.body
            if one.header.part == one.header.parts:
                whole = len(found[generation])
        return found


class Machine:
    """One node with its disk; as the leader it may wait for a standby."""

    def __init__(
        self, log: PurgeableLog, name: str, seed: int, *, needs_standby: bool = False
    ) -> None:
        self.name = name
        self.standby_syncs: StandbySyncs | None = None
        self._needs_standby = needs_standby
        self.disk = SimDisk(seed)
        self.mirror: Mirror | None = None
        self.journal: Journal | None = None
        self.writer: LogWriter | None = None
        self.published: dict[bytes, int] = {}
        self.confirmed: set[bytes] = set()
        self.settled: dict[bytes, int] = {}
        self.position_count = 0
        self.has_rotted = False
        self._log = log
        self._sent: tuple[int, str, int, bytes] | None = None
        self.position: LeaderPosition | None = None
        self._watermark: Watermark | None = None
        self._random = Random(seed)

    @property
    def is_leading(self) -> bool:
        return self.journal is not None

    # As a standby.

    def start(self) -> None:
        """Open the directory as a mirror."""
        self.mirror = Mirror(self.disk, LOG_ID)
        assert self.has_rotted or not self.mirror.damaged, "its position speaks for too much"

    def read(self, most: int) -> None:
        """Read so many messages at most; to the end if there are fewer."""
        mirror = self.mirror
        assert mirror is not None
        for generation in mirror.damaged:
            healing = mirror.heal(generation)
            for subject, raw in self._log.messages.values():
                one = record.open_record(raw)
                if subject == SUBJECTS.of_segment(generation) and one is not None:
                    healing.put(one.header.offset, one.body)
            mirror.healed(healing)
        # What was declared gone meanwhile is damaged again at a start, until that is synced.
        self.has_rotted = self.has_rotted or bool(mirror.damaged)
        found = self._log.behind(mirror.next_sequence)
        for sequence, raw in found[:most]:
            mirror.found(sequence, raw)
        if len(found) <= most:
            mirror.ended(self._log.last)

    def end(self) -> None:
        """End: often with the power, else as a killed process, which loses nothing by itself.

        What is on its way to the log may arrive.
        """
        if self._sent is not None and self._random.random() < 0.5:
            self._arrive()
        self.mirror = self.journal = self.writer = self._sent = self._watermark = None
        self.position = self.standby_syncs = None
        if self._random.random() < KILLED:
            self.disk.kill()
        else:
            self.disk.crash(self._random.getrandbits(32))

    def take_over(self) -> None:
        """Claim, and recover from what was mirrored, as after a crash."""
        mirror = self.mirror
        assert mirror is not None
        assert mirror.is_complete
        mirror.sync()
        self.writer = LogWriter(self, self, SUBJECTS, mirror.at, record_bytes=RECORD_BYTES)
        self.writer.claim(self.name, self._random.randbytes(record.NONCE_SIZE))
        self.deliver()
        assert self.writer.is_leading
        mirror.close()
        self.mirror = None
        self.journal, recovered = open_journal(
            self.disk,
            segment_size_bytes=SEGMENT_BYTES,
            wall_ms=lambda: 1,
            # Summaries are believed wherever there are any.
            whole_bytes=0,
            tap=self.writer,
        )
        self.journal.take(EPOCH_LSNS)
        self.position = LeaderPosition(self.disk)
        assert recovered.report.damaged == []
        queue = recovered.queues.get(QUEUE)
        found = {raw: lsn for lsn, raw, _ in queue.messages} if queue else {}
        self.published, self.confirmed, self.settled = found, set(), {}
        self._watermark = Watermark(
            self.journal.written_lsn, self.passed, needs_standby=self._needs_standby
        )
        if self._needs_standby:
            self.standby_syncs = StandbySyncs(self._watermark.synced_on_standby)

    def reported(self) -> tuple[int, int]:
        """Number and checksum of the record up to which its directory has everything."""
        assert self.mirror is not None
        return self.mirror.synced.number, self.mirror.synced.checksum

    def has_durable(self, raw: bytes) -> bool:
        """Whether a message is on its disk after any crash."""
        return any(raw in inode.durable for inode in self.disk.visible.values())

    # As the leader.

    def publish(self, raw: bytes) -> None:
        journal, writer = self.journal, self.writer
        assert journal is not None
        assert writer is not None
        lsn = journal.append_run((QUEUE,), b"tail", [raw])
        try:
            journal.write()
        except WriteFailed:
            return
        self.published[raw] = lsn
        writer.request()

    def settle(self, raw: bytes) -> None:
        journal = self.journal
        assert journal is not None
        journal.settle(QUEUE, [self.published.pop(raw)])
        while True:
            with suppress(WriteFailed):
                journal.write()
                break
        self.settled[raw] = journal.chain.number - 1

    def sync(self) -> None:
        """Sync the journal, or what was mirrored."""
        if self.mirror is not None:
            self.mirror.sync()
            if generation := self.mirror.next_summary():
                self.mirror.summarize(generation)
            self.has_rotted = bool(self.mirror.damaged or self.mirror.view.jumps)
        elif self.journal is not None and self._watermark is not None:
            ticket = self.journal.begin_sync()
            for target in ticket.targets:
                target.sync()
            for file in self.journal.end_sync(ticket):
                file.close()
            self._watermark.synced_here(ticket.lsn)

    def tell_position(self) -> None:
        """Have the position file say up to where the log and the disk have everything."""
        assert self.position is not None
        assert self.journal is not None
        assert self.writer is not None
        job = self.position.next_job(self.writer.whole, self.journal.chain.safe_number)
        if job is not None:
            self.position_count += 1
            # Without room the position before stays.
            with suppress(OSError):
                job()

    def settled_safely(self) -> set[bytes]:
        """What may not come back."""
        if self.journal is None:
            return set()
        safe = self.journal.chain.safe_number
        return {raw for raw, number in self.settled.items() if number <= safe}

    # As a LogEdge, and as the owner of its writer.

    def send(self, token: int, subject: str, expected: int, parts: Sequence[bytes]) -> None:
        self._sent = (token, subject, expected, b"".join(parts))

    def read_from(self, token: int, sequence: int) -> None:
        raise AssertionError(f"no doubt arises here: {token}, {sequence}")

    def purge(self, subject: str) -> None:
        self._log.purge(subject)

    def deliver(self) -> None:
        """Let what was sent arrive, and the answer too."""
        if self._sent is not None and self.writer is not None:
            token, *_ = self._sent
            self._arrive()
            self.writer.acked(token, self._log.last)

    def _arrive(self) -> None:
        assert self._sent is not None
        _, subject, expected, raw = self._sent
        self._sent = None
        assert expected == self._log.last
        self._log.append(subject, raw)

    def claimed(self) -> None:
        pass

    def committed(self, block: int, lsn: int) -> None:
        assert self.journal is not None
        assert self._watermark is not None
        self.journal.committed(block)
        self._watermark.committed(lsn)
        if self.standby_syncs is not None and self.writer is not None:
            self.standby_syncs.committed(self.writer.at, self.writer.committed_bytes)

    def passed(self, lsn: int) -> None:
        self.confirmed.update(raw for raw, at in self.published.items() if at <= lsn)

    def deposed(self, epoch: int) -> None:
        raise AssertionError(f"deposed by epoch {epoch}, without a claim")

    def handed_over(self) -> None:
        raise AssertionError("nobody hands over")

    def broken(self, reason: str) -> None:
        raise AssertionError(reason)


class MachineRoom:
    """Three machines and a log; `run` takes random steps, with power cuts, and judges.

    If confirms wait for a standby, two disks have to have what is confirmed.
    """

    def __init__(self, seed: int, *, needs_standby: bool = False) -> None:
        self.needs_standby = needs_standby
        self.random = random = Random(seed)
        self.log = PurgeableLog()
        self.machines = [
            Machine(self.log, f"m{i}", random.getrandbits(32), needs_standby=needs_standby)
            for i in range(3)
        ]
        self.leader: Machine | None = None
        self.count = 0
        # Of all leaders until now: what was confirmed, and what was taken out of the queue.
        self.confirmed: set[bytes] = set()
        self.settled: set[bytes] = set()
        self.settled_safely: set[bytes] = set()
        self.seen: set[bytes] = set()
        self.take_overs = self.cuts = self.heals = 0

    def run(self, steps: int = 250) -> None:
        for machine in self.machines:
            machine.start()
        for _ in range(steps):
            machine = self.machines[int(self.random.random() * len(self.machines))]
            if self.random.random() < 0.02:
                machine.disk.crash_after = int(self.random.random() * 12)
            try:
                self._step(machine)
            except PowerCut:
                self._cut(machine)
        for machine in self.machines:
            if machine is not self.leader:
                machine.disk.crash_after = None
                self.judge(machine)

    def _step(self, machine: Machine) -> None:
        random = self.random
        if machine is self.leader:
            self._lead(machine)
        elif machine.mirror is None:
            self._restart(machine)
        elif self.leader is None and random.random() < 0.3:
            self._take_over(machine)
        elif random.random() < 0.15:
            machine.sync()
            self._report(machine)
        elif random.random() < 0.03:
            self._cut(machine)
        else:
            machine.read(int(random.random() * 8))
            self._report(machine)

    def _restart(self, machine: Machine) -> None:
        names = [name for name in machine.disk.listdir() if name.endswith(".journal")]
        if names and self.random.random() < 0.2:
            # Something has rotted meanwhile.
            name = names[int(self.random.random() * len(names))]
            inode = machine.disk.visible[name]
            if size := min(len(inode.durable), len(inode.visible)):
                at = int(self.random.random() * size)
                for octets in (inode.visible, inode.durable):
                    octets[at] ^= 0x20
                machine.has_rotted = True
        machine.start()
        assert machine.mirror is not None
        self.heals += bool(machine.mirror.damaged)

    def _lead(self, leader: Machine) -> None:
        random = self.random
        chance = random.random()
        if random.random() < 0.05:
            leader.disk.fail_next("write", errno.ENOSPC)
        if chance < 0.4:
            self.count += 1
            size = 1500 if random.random() < 0.1 else int(random.random() * 300)
            raw = b"%d " % self.count + bytes(size)
            self.seen.add(raw)
            leader.publish(raw)
        elif chance < 0.65 and leader.published:
            raw = next(iter(leader.published))
            self.settled.add(raw)
            leader.settle(raw)
        elif chance < 0.75:
            leader.sync()
        elif chance < 0.8:
            leader.tell_position()
        elif chance < 0.97:
            leader.deliver()
        else:
            self._cut(leader)
        self._note(leader)

    def _report(self, machine: Machine) -> None:
        """A standby tells the leader up to where it has synced, if that gets there."""
        leader = self.leader
        if leader is not None and leader.standby_syncs is not None and self.random.random() < 0.8:
            leader.standby_syncs.reported(machine.name, *machine.reported())
            self._note(leader)

    def _note(self, leader: Machine) -> None:
        if self.needs_standby:
            for raw in leader.confirmed - self.confirmed:
                count = sum(each.has_durable(raw) for each in self.machines)
                assert count > 1, f"confirmed, and on {count} disk: {raw[:9]!r}"
        self.confirmed |= leader.confirmed
        self.settled_safely |= leader.settled_safely()

    def _cut(self, machine: Machine) -> None:
        self.cuts += 1
        if machine is self.leader:
            self._note(machine)
            self.leader = None
        machine.end()

    def _take_over(self, machine: Machine) -> None:
        machine.read(1 << 30)
        if machine.mirror is None or not machine.mirror.is_complete:
            return
        self.judge(machine)
        try:
            machine.take_over()
        finally:
            if machine.is_leading:
                self.leader = machine
                self.take_overs += 1
        found = set(machine.published)
        lost = self.confirmed - self.settled - found
        assert not lost, f"confirmed, and lost: {sorted(lost)}"
        assert not self.settled_safely & found, "settled for good, and back again"
        assert found <= self.seen

    def judge(self, machine: Machine) -> None:
        """Have a standby read to the end, and compare its segments with the log's."""
        if machine.mirror is None:
            machine.start()
        mirror = machine.mirror
        assert mirror is not None
        machine.read(1 << 30)
        machine.read(1 << 30)
        assert mirror.is_complete, (mirror.damaged, mirror.view.jumps)
        mirror.sync()
        for generation, octets in self.log.segments().items():
            name = f"{generation:016d}.journal"
            if name in machine.disk.visible:
                found = bytes(machine.disk.visible[name].visible)
                # In front of its position a former leader keeps the room that it had reserved,
                # and what may have rotted there.
                assert found[: len(octets)] == octets, name
            else:
                assert mirror.own.is_gone(generation) or mirror.own.says_gone(generation), name
