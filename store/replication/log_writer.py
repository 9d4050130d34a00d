"""The leader's side of the shared log: one record under way, each a fence for the one before.

A node that claims the lead and, if it gets it, appends the journal's blocks. What comes back is
what is committed, which is one integer as for a sync.

    appended ─▶ request ─▶ LogEdge.send ─▶ acked ─▶ LogOwner.committed
                               ▲            refused, lost, tick
                               └─ ended ◀── found ◀── LogEdge.read_from ◀┘

- **W1** One record is under way, sent with the sequence up to which this writer has read the log
  as its expectation. Blocks that come meanwhile are the next record.
- **W2** A record is committed when it is acknowledged with exactly the next sequence, or when
  reading finds it there.
- **W3** After a refusal, the loss of the connection, or when the record under way has become old,
  the writer reads what stands behind its position. It finds its own record: committed. A claim
  of a higher epoch: it is deposed, and ends. Nothing: it sends the same bytes once more.
- **T1** A claim is such a record as well. Its expectation is the end to which the node has read and
  applied the log. Anything else that counts at that place means that the claim has failed.

The invariant: *at the moment of a claim everything of earlier epochs stands below it, and nothing
of them ever comes to stand above*. Let a claim stand at sequence c. A writer of an earlier epoch
aims at a sequence only when it has read all before it (W1, W2: what it was acknowledged at the next
sequence is as good as read), so as long as it has not read the claim it aims at c or below. What it
aims at c is refused, whenever it arrives and however often it was sent (E2); what it aimed below c
stands there or nowhere. Once it has read the claim it sends nothing. So its records, committed or
not, stand below c, and the claimant has applied all of them (T1). Two leaders that both commit
would need two claims each of which is the last. Nothing of this rests on a clock, on who is alive,
or on what anybody believes: only on E1 and E2 of `log_edge.py`.

Two attempts of one record cannot both land: they aim at the same sequence. If something void stands
there, the second aims behind it, where the first cannot land. So the engine need not drop copies.

Why one under way: with several the sequence is no fence. The old leader's A aims at m+1 and its B
at m+2; a claim takes m+1, A is refused, and *B fits and is acknowledged*. That was seen with a real
engine, and `tests/replication/` shows it with a bug planted here. It can be repaired (an ack counts
only behind its predecessor's, readers take what does not continue the chain as void, writers wait
for all answers before they read), but there is nothing to gain: what waits shares the next record,
and with 1, 2, 4 and 8 under way a broker confirmed the same number of messages a second.

What was tried: a time-out of *quiet* instead of the record's *age* never came while new blocks kept
breaking the quiet. So `tick` counts for the record under way, whatever else happens. To compare
claims by their content alone made the loser take the winner's for its own.

Whoever has a window answers confirms with as many messages. Sent at once, what came while a record
was under way would be the next one, and the answers to that record the one after: half of a window
in each, and a record costs the engine more than what is in it. So the next record waits for the
answers (`gather`), until as much waits as was committed and waiting when the last one ended, and no
longer than the answers take. Where they do not come that is left out, for more and more records.

What it costs: a block for which nobody waits (`request`) goes with the next record, as it goes with
the next sync; else a lone confirm would wait for the record with the ack of the message before.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from vouchmq.store.errors import LogBroken, UnsupportedFormat
from vouchmq.store.replication import record
from vouchmq.store.replication.cutting import Cutter
from vouchmq.store.replication.log_view import LogView
from vouchmq.store.replication.record import RecordHeader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vouchmq.store.replication.log_edge import LogEdge
    from vouchmq.store.replication.log_view import Position
    from vouchmq.store.replication.record import Record, Subjects

# More in one record buys no throughput, less costs some; an engine takes 1 MiB unless told else.
RECORD_BYTES: Final = 512 * 1024
# A new leader leaves out so many LSNs behind what it has recovered (`Journal.take`): none that the
# old one has given to a message which is not in the log is given again.
EPOCH_LSNS: Final = 1 << 32
# A record under way is read for at this tick after it was sent, so it is older than one interval.
_OLD_TICKS: Final = 2
# So many readings may end behind messages that are gone: a later one finds the claim of who
# purged them.
_HOLES: Final = 2
# A record waits for seven of eight answers: not all come at the same time.
_GATHERED: Final = 7
_OF_GATHERED: Final = 8
# After so many in a row whose answers did not come, 63 records wait for none.
_MOST_MISSES: Final = 6


class LogOwner(Protocol):
    """Who is told what becomes of a writer; after the last three it says nothing more."""

    def claimed(self) -> None:
        """The claim is committed: this node leads."""

    def committed(self, block: int, lsn: int) -> None:
        """All blocks up to this number, and LSNs up to this one, are in the log for good."""

    def deposed(self, epoch: int) -> None:
        """Another leads, by its claim of this epoch, or the claim has failed."""

    def handed_over(self) -> None:
        """The handover, or what completes a copy, is committed: whoever reads it may claim."""

    def broken(self, reason: str) -> None:
        """The log has lost or changed what it had acknowledged."""


class _UnderWay:
    """The record that was sent last and is not known to be committed."""

    __slots__ = ("checksum", "first_token", "header", "holes", "parts", "size", "subject", "ticks")

    def __init__(self, header: RecordHeader, body: Sequence[bytes], subject: str) -> None:
        head, self.checksum = record.seal(header, body)
        self.header = header
        self.parts = [head, *body]
        self.size = sum(map(len, body))
        self.subject = subject
        self.first_token = 0
        self.ticks = 0
        self.holes = 0


class LogWriter:
    """One epoch of one node, from its claim to its end; another needs another writer.

    Args:
        edge: the engine
        owner: is told what becomes of it
        subjects: names of what a record has
        at: where the node has read and applied the log to, all of it
        record_bytes: most that is in a record
        gather: calls back after as long as answers to what was committed take; without it each
            record takes what waits
    """

    def __init__(
        self,
        edge: LogEdge,
        owner: LogOwner,
        subjects: Subjects,
        at: Position,
        *,
        record_bytes: int = RECORD_BYTES,
        gather: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self.has_ended = False
        self.is_leading = False
        # Where the last committed record ended that ends with a whole block; None before any.
        self.whole: Position | None = None
        # Of the blocks that were appended, and at first of those that the log had.
        self.last_number = self._wanted_number = at.block
        # Of the blocks that are committed, and how many of them wait for something else.
        self.committed_bytes = self.held_bytes = 0
        # Readings, and attempts beyond the first of each record.
        self.reading_count = 0
        self.repeat_count = 0
        self._edge = edge
        self._owner = owner
        self._subjects = subjects
        self._view = LogView(at)
        self._cutter = Cutter(record_bytes, at.block, at.lsn)
        self._under_way: _UnderWay | None = None
        self._token = 0
        # Token of the reading that is awaited, or 0.
        self._reading = 0
        # Kind of the record that ends this epoch, when everything before it is committed; or 0.
        self._last_kind = 0
        self._gather = gather
        # Of the last block that was appended, and the one that the next record waits for, or 0.
        self._last_lsn = at.lsn
        self._awaited_lsn = 0
        # Of callbacks: those of earlier records tell nothing.
        self._gathering = 0
        # Records in a row whose answers did not come; how many are yet to be sent without waiting.
        self._misses = self._skips = 0

    @property
    def at(self) -> Position:
        """Up to where the log is known."""
        return self._view.at

    @property
    def waiting_bytes(self) -> int:
        """What has been appended to the journal and is not known to be committed."""
        under_way = self._under_way
        return self._cutter.size_bytes + (under_way.size if under_way is not None else 0)

    @property
    def unsafe_bytes(self) -> int:
        """What has been appended to the journal, and of which nobody may be told yet."""
        return self.waiting_bytes + self.held_bytes

    @property
    def is_under_way(self) -> bool:
        """Whether a record was sent that is not known to be committed."""
        return self._under_way is not None

    # What the node asks for.

    def claim(self, name: str, nonce: bytes) -> None:
        """Try to become the leader: `claimed` or `deposed` follows, when the engine answers.

        Args:
            name: of the node
            nonce: chance, so that nobody else makes the same claim
        """
        self._begin(record.CLAIM, [record.claim_body(name, nonce)], self.at.epoch + 1)

    def appended(
        self, generation: int, offset: int, number: int, lsn: int, body: Sequence[bytes]
    ) -> None:
        """Take in a block that was written to the journal."""
        cutter = self._cutter
        cutter.add(generation, offset, number, lsn, body)
        self.last_number, self._last_lsn = number, lsn
        if cutter.size_bytes >= cutter.limit_bytes:
            self._next()

    def request(self) -> None:
        """Have everything that was appended until now committed: at once, or with the next one."""
        self._wanted_number = self.last_number
        self._next()

    def beat(self) -> None:
        """Say that the leader is there, with what waits or, where nothing does, with a record."""
        if self._under_way is None and self.is_leading and not self.has_ended:
            if self._cutter.size_bytes:
                self.request()
            else:
                self._begin(record.BEAT, (), self.at.epoch)

    def hand_over(self) -> None:
        """Step down when everything that was appended until now is committed."""
        self._last_kind = record.HANDOVER
        self.request()

    def complete(self) -> None:
        """The same of who has copied a directory's journal: it is complete with that."""
        self._last_kind = record.COMPLETE
        self.request()

    def purge(self, generation: int) -> None:
        """Remove a segment's records: a committed block declares it gone."""
        if not self.has_ended:
            self._edge.purge(self._subjects.of_segment(generation))

    def tick(self) -> None:
        """Take in that some time has passed, as long as an answer may take."""
        under_way = self._under_way
        if under_way is not None and not self.has_ended:
            under_way.ticks += 1
            if not under_way.ticks % _OLD_TICKS:
                self._read()

    def look(self) -> None:
        """Read what stands behind the last known record although none is under way: a claim?"""
        if self._under_way is None and not self._reading and self.is_leading and not self.has_ended:
            self._read()

    # What the engine says: LogAnswers.

    def acked(self, token: int, sequence: int) -> None:
        """The engine has acknowledged an attempt (W2)."""
        under_way = self._under_way
        if under_way is None or token < under_way.first_token or self.has_ended:
            return
        if sequence == self.at.sequence + 1:
            self._commit(under_way)
        else:
            self._doubt()

    def refused(self, token: int) -> None:
        """The engine has refused an attempt: that, or an earlier one, may stand there even so."""
        under_way = self._under_way
        if under_way is not None and token >= under_way.first_token and not self.has_ended:
            self._doubt()

    def lost(self) -> None:
        """The connection is gone, and with it all answers."""
        self._reading = 0
        if self._under_way is not None and not self.has_ended:
            self._read()

    def found(self, token: int, sequence: int, raw: bytes) -> None:
        """Something stands behind the last known record (W3)."""
        under_way = self._under_way
        if token != self._reading or self.has_ended:
            return
        is_next = sequence == self.at.sequence + 1
        if under_way is not None and is_next and raw == b"".join(under_way.parts):
            self._commit(under_way)
            return
        try:
            other = self._view.found(sequence, raw)
        except (LogBroken, UnsupportedFormat) as error:
            self._break(str(error))
            return
        if other is not None:
            self._met(other)

    def ended(self, token: int, last: int) -> None:
        """Nothing else stands there: the record under way is sent again."""
        under_way = self._under_way
        if token != self._reading or self.has_ended:
            return
        self._reading = 0
        try:
            self._view.ended(last)
        except LogBroken as error:
            self._break(str(error))
            return
        if under_way is None:
            return
        if last == self.at.sequence:
            self.repeat_count += 1
            self._send(under_way)
            return
        under_way.holes += 1
        if under_way.holes < _HOLES:
            self._read()
        else:
            self._break(
                f"the log ends with sequence {last}, and has nothing behind {self.at.sequence}"
            )

    def _met(self, other: Record) -> None:
        """A record that counts stands where this writer's should."""
        header = other.header
        if header.kind == record.CLAIM or not self.is_leading:
            self.has_ended = True
            self._owner.deposed(header.epoch)
        else:
            self._break(f"the log has a record of epoch {header.epoch} that its leader never sent")

    def _break(self, reason: str) -> None:
        self.has_ended = True
        self._owner.broken(reason)

    # Records.

    def _next(self) -> None:
        """Send the next record if somebody waits for it, or if it is a full one."""
        if self._under_way is not None or not self.is_leading or self.has_ended:
            return
        cutter = self._cutter
        size = cutter.size_bytes
        if size and (
            size >= cutter.limit_bytes
            or self._last_kind
            or (cutter.next_number <= self._wanted_number and self._last_lsn >= self._awaited_lsn)
        ):
            self._begin_blocks()
        elif self._last_kind:
            self._begin(self._last_kind, (), self.at.epoch)

    def _begin_blocks(self) -> None:
        if 0 < self._awaited_lsn <= self._last_lsn:
            self._misses = 0
        self._awaited_lsn = 0
        at = self.at
        generation, offset, block, lsn, part, parts, body = self._cutter.cut()
        header = RecordHeader(
            record.BLOCKS,
            *(at.checksum, at.epoch, at.number + 1, at.number),
            *(generation, offset, block, lsn, part, parts),
        )
        self._start(header, body)

    def _await_answers(self, committed: int) -> None:
        """Have the next record wait until as many messages came as were committed just now."""
        if self._skips:
            self._skips -= 1
            return
        at = self.at.lsn
        expected = self._last_lsn - at + committed
        if self._gather is None or expected <= 1:
            return
        self._awaited_lsn = at - (-expected * _GATHERED // _OF_GATHERED)
        self._gathering += 1
        self._gather(partial(self._gathered, self._gathering))

    def _gathered(self, gathering: int) -> None:
        """Answers have had their time: what has come goes now."""
        if gathering != self._gathering or not self._awaited_lsn:
            return
        if self._last_lsn < self._awaited_lsn:
            self._misses = min(self._misses + 1, _MOST_MISSES)
            self._skips = (1 << self._misses) - 1
        self._awaited_lsn = 0
        self._next()

    def _begin(self, kind: int, body: Sequence[bytes], epoch: int) -> None:
        """Send a record without blocks."""
        at = self.at
        header = RecordHeader(
            kind,
            *(at.checksum, epoch, at.number + 1, at.number),
            *(at.generation, at.offset, at.block, at.lsn),
        )
        self._start(header, body)

    def _start(self, header: RecordHeader, body: Sequence[bytes]) -> None:
        self._under_way = _UnderWay(header, body, self._subjects.of(header))
        self._under_way.first_token = self._token + 1
        # The answers to a look tell nothing of it.
        self._reading = 0
        self._send(self._under_way)

    def _send(self, under_way: _UnderWay) -> None:
        self._token += 1
        self._edge.send(self._token, under_way.subject, self.at.sequence, under_way.parts)

    def _doubt(self) -> None:
        """Read, unless a reading for this record is on its way."""
        if not self._reading:
            self._read()

    def _read(self) -> None:
        self._token += 1
        self.reading_count += 1
        self._reading = self._token
        self._edge.read_from(self._reading, self.at.sequence + 1)

    def _commit(self, under_way: _UnderWay) -> None:
        """The record under way stands at the next sequence.

        The one behind it is sent first, so that the log works while confirms are written.
        """
        header = under_way.header
        lsn = self.at.lsn
        self._view.advance(self.at.sequence + 1, header, under_way.checksum, under_way.size)
        at = self.at
        self._under_way = None
        # An answer to it would be about a log without this record.
        self._reading = 0
        if header.kind == self._last_kind:
            self.has_ended = True
            self._owner.handed_over()
            return
        if header.kind == record.CLAIM:
            self.is_leading = True
            self._owner.claimed()
        if header.kind == record.BLOCKS:
            self.committed_bytes += under_way.size
            self._await_answers(at.lsn - lsn)
        self._next()
        if header.kind == record.BLOCKS:
            if header.part == header.parts:
                self.whole = at
            self._owner.committed(header.block, header.lsn)
