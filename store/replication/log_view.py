"""What a reader makes of the shared log: which records count, and whether anything is missing.

Every node reads the log by the same rules and comes to the same result, whatever it was doing
before. They are the whole agreement: there is no list of members, no lock and no clock.

- **R1** A reader keeps the epoch of the last claim that counted. A claim counts if its epoch is
  higher. Any other record counts if it has the epoch that was kept; one of an earlier epoch is void
  and passed over.
- **R2** What counts continues the chain: its number is the next one, and it has the checksum of the
  record before. If not, or if it has an epoch whose claim is nowhere, or if the log ends before
  what was read already, then the log has lost, swapped or changed something. The reader says so and
  stops. It must not take the lead, because what it misses may have been confirmed to somebody.

So damage of the log is told from a leader's death by the records alone, as a torn tail is told from
damage in the journal. What is no record at all is damage too: it may have been one. To pass over it
would be friendlier to who publishes there by hand, but a last record that has rotted would then be
dropped without a word.

A segment that has become superfluous is purged, so its sequences are missing. For a reader that had
not come so far this is a *jump*: the chain goes on behind it, with a claim, with the first block of
a segment, or with what completes a copied log. Whether the segments in between were declared gone
is for whoever reads blocks to say (`excuse`). Until then the reader is not complete, and must not
take the lead either.

What was tried: with several records under way void ones are ordinary, as the sequence is no fence
then (see `log_writer.py`), and a reader had to take a record that does not continue the chain as
void rather than as damage. With one under way there are none, and the stricter rule finds more.
"""

from typing import Final, NamedTuple

from vouchmq.store.errors import LogBroken, OtherLog
from vouchmq.store.replication import record
from vouchmq.store.replication.record import Record, RecordHeader


class Position(NamedTuple):
    """Where a reader is: behind the message with this sequence.

    Number, checksum and epoch are those of the last record that counted. Generation and offset are
    where its bytes end in the journal, block and LSN those of the last whole block.
    """

    sequence: int
    number: int
    checksum: int
    epoch: int
    generation: int
    offset: int
    block: int
    lsn: int


START: Final = Position(0, -1, 0, 0, 0, 0, 0, 0)


class Jump(NamedTuple):
    """Purged messages that the reader had not read: those between two positions."""

    before: Position
    after: Position


class LogView:
    """Reads the messages of a log in order; `at` is where it is.

    Args:
        at: where to go on
        log_id: the only log that is accepted; without it, any
    """

    __slots__ = ("_hole", "at", "is_unfinished", "jumps", "log_id", "void_count")

    def __init__(self, at: Position = START, log_id: bytes | None = None) -> None:
        self.at = at
        self.log_id = log_id
        self.jumps: list[Jump] = []
        self.void_count = 0
        # It begins with a directory's journal, and that is not known to be complete. Who goes on
        # behind the beginning does not know.
        self.is_unfinished = False
        # Behind this messages are missing, and nothing that counts has come yet.
        self._hole: Position | None = None

    def found(self, sequence: int, raw: bytes) -> Record | None:
        """Take the next message; return the record if it counts and is new.

        Raises:
            LogBroken: by this the log has lost or changed something
            OtherLog: it is not the log that was asked for
            UnsupportedFormat: a newer program wrote it
        """
        at = self.at
        if sequence <= at.sequence:
            return None
        found = record.open_record(raw)
        if found is None:
            raise LogBroken(f"message {sequence} of the log is no whole record")
        header = found.header
        if not at.sequence:
            self._begin(sequence, found)
            return found
        if self._hole is None and sequence > at.sequence + 1:
            self._hole = at
        if not self._counts(sequence, header):
            self.at = at._replace(sequence=sequence)
            self.void_count += 1
            return None
        if self._hole is not None:
            self._jump(sequence, found, self._hole)
            return found
        if header.number != at.number + 1 or header.previous != at.checksum:
            raise LogBroken(
                f"record {header.number} at sequence {sequence} of the log does not continue record"
                f" {at.number}"
            )
        self.advance(sequence, header, found.checksum, len(found.body))
        return found

    def ended(self, last: int) -> None:
        """Take in that the log ended with this sequence.

        Raises:
            LogBroken: it ends before what was read already
        """
        if last < self.at.sequence:
            raise LogBroken(
                f"the log ends with sequence {last}, {self.at.sequence} was read already"
            )

    def advance(self, sequence: int, header: RecordHeader, checksum: int, size: int) -> None:
        """Go on to a record that continues the chain; its body has `size` bytes."""
        if header.kind == record.COMPLETE:
            self.is_unfinished = False
        self.at = Position(
            sequence,
            header.number,
            checksum,
            header.epoch,
            header.generation,
            header.offset + size if header.kind == record.BLOCKS else header.offset,
            header.block,
            header.lsn,
        )

    def excuse(self, jump: Jump) -> None:
        """Take in that everything in this jump was declared gone by blocks that were read."""
        self.jumps.remove(jump)

    def _begin(self, sequence: int, found: Record) -> None:
        if found.header.kind not in record.ORIGINS:
            raise LogBroken(f"the log begins with record {found.header.number}, its origin is gone")
        if self.log_id is not None and found.body != self.log_id:
            raise OtherLog(
                f"the log has the id {found.body.hex()}, this node follows {self.log_id.hex()}"
            )
        self.log_id = found.body
        self.is_unfinished = found.header.kind == record.COPIED
        self.advance(sequence, found.header, found.checksum, 0)

    def _counts(self, sequence: int, header: RecordHeader) -> bool:
        """Return whether a record counts by its epoch (R1)."""
        if header.kind in record.ORIGINS:
            raise LogBroken(f"the log begins again at sequence {sequence}")
        epoch = self.at.epoch
        if header.epoch > epoch:
            if header.kind != record.CLAIM:
                raise LogBroken(f"the log has no claim of epoch {header.epoch}, but records of it")
            return True
        if header.epoch == epoch and header.kind != record.CLAIM:
            return True
        # What a claim has kept out of the log was to be where the claim is, at most.
        if header.number > self.at.number and self._hole is None:
            raise LogBroken(
                f"epoch {header.epoch} goes on in the log behind the claim of epoch {epoch}"
            )
        return False

    def _jump(self, sequence: int, found: Record, before: Position) -> None:
        """Go on behind purged messages, where the chain cannot be followed."""
        header = found.header
        is_beginning = header.kind == record.BLOCKS and not header.offset
        if not is_beginning and header.kind not in (record.CLAIM, record.COMPLETE):
            raise LogBroken(
                f"the log has nothing between sequences {before.sequence} and {sequence}, which is"
                " in the middle of a segment"
            )
        if not before.number < header.number <= before.number + sequence - before.sequence:
            raise LogBroken(
                f"record {header.number} at sequence {sequence} of the log cannot follow record"
                f" {before.number} at {before.sequence}"
            )
        self._hole = None
        self.advance(sequence, header, found.checksum, len(found.body))
        self.jumps.append(Jump(before, self.at))
