"""A directory's journal goes into a log, as its beginning: who does this leads meanwhile.

    start ─▶ read the log, compare with the directory ─▶ claim ─▶ blocks ─▶ complete ─▶ copied

The log has an origin of its own kind (`record.COPIED`), and nobody follows it or may claim before
it is complete. Until then whoever copies leads, by a claim like any other, so two of them cannot
write at once. Of a copy that was broken off what is there stays, if it is the same as in the
directory, and the rest follows under a new claim.

The invariant: *a log that is complete has all of the directory, block for block*. Nothing is ever
removed from a log for it, whatever stands there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from vouchmq.store.errors import StoreError
from vouchmq.store.replication import record
from vouchmq.store.replication.log_view import LogView
from vouchmq.store.replication.log_writer import RECORD_BYTES, LogWriter

if TYPE_CHECKING:
    from vouchmq.store.replication.copy_source import CopySource
    from vouchmq.store.replication.log_edge import LogEdge
    from vouchmq.store.replication.log_view import Position
    from vouchmq.store.replication.record import Subjects

# While less than this waits for the log, more is read from the directory: one record is under way,
# one is next.
_WAITING_RECORDS: Final = 2
# Of readings; those of the writer count from 1.
_FIRST_TOKEN: Final = 1 << 32


class CopyOwner(Protocol):
    """Who wants the copy; after one of these two nothing more is said."""

    def copied(self, at: Position) -> None:
        """The log is complete; the directory has everything up to this position of it."""

    def failed(self, reason: str) -> None:
        """It cannot be made complete as it is."""


class LogCopy:
    """One attempt; a `LogAnswers` and a `LogOwner`.

    Args:
        edge: the log, which has its origin
        subjects: names of its records
        source: the directory, from its beginning on
        log_id: what the origin has to say
        owner: is told how it ends
    """

    def __init__(
        self,
        edge: LogEdge,
        subjects: Subjects,
        source: CopySource,
        log_id: bytes,
        owner: CopyOwner,
        *,
        record_bytes: int = RECORD_BYTES,
    ) -> None:
        self._edge = edge
        self._subjects = subjects
        self._source = source
        self._owner = owner
        self._record_bytes = record_bytes
        self._view = LogView(log_id=log_id)
        self._writer: LogWriter | None = None
        self._token = _FIRST_TOKEN
        self._claim = ("", b"")
        self._has_ended = False

    @property
    def committed_bytes(self) -> int:
        """How much of the source the log has."""
        waiting = self._writer.waiting_bytes if self._writer is not None else 0
        return self._source.copied_bytes - waiting

    def start(self, name: str, nonce: bytes) -> None:
        """Begin, or go on with what an earlier attempt has left; the claim has this name."""
        self._claim = (name, nonce)
        self._read()

    def tick(self) -> None:
        """Take in that some time has passed, as long as an answer may take."""
        if self._writer is not None:
            self._writer.tick()

    # What the engine says: LogAnswers.

    def acked(self, token: int, sequence: int) -> None:
        if self._writer is not None:
            self._writer.acked(token, sequence)

    def refused(self, token: int) -> None:
        if self._writer is not None:
            self._writer.refused(token)

    def lost(self) -> None:
        if self._writer is not None:
            self._writer.lost()
        else:
            self._read()

    def found(self, token: int, sequence: int, raw: bytes) -> None:
        if self._writer is not None:
            self._writer.found(token, sequence, raw)
        elif token == self._token and not self._has_ended:
            try:
                self._compare(sequence, raw)
            except (StoreError, OSError) as error:
                self._fail(str(error))

    def ended(self, token: int, last: int) -> None:
        if self._writer is not None:
            self._writer.ended(token, last)
        elif token == self._token and not self._has_ended:
            self._read_to_the_end(last)

    # Reading.

    def _read(self) -> None:
        if not self._has_ended:
            self._token += 1
            self._edge.read_from(self._token, self._view.at.sequence + 1)

    def _compare(self, sequence: int, raw: bytes) -> None:
        """Compare what an earlier attempt has left with the directory.

        Raises:
            StoreError: the log is none, or another one
            OSError: the disk refused
        """
        view, source = self._view, self._source
        one = view.found(sequence, raw)
        if one is None:
            return
        kind = one.header.kind
        if view.jumps or (kind == record.BLOCKS and not source.holds(one)):
            self._fail("the log goes on with what is not in this directory")
        elif kind == record.CLAIM:
            source.rewind()
        elif not view.is_unfinished:
            # An earlier attempt has not heard that it is complete.
            self._end(view.at)

    def _read_to_the_end(self, last: int) -> None:
        try:
            self._view.ended(last)
        except StoreError as error:
            self._fail(str(error))
            return
        at = self._view.at
        if last != at.sequence or at.number < 0:
            self._fail(f"the log ends with sequence {last}, and has nothing behind {at.sequence}")
            return
        self._source.rewind()
        self._writer = LogWriter(
            self._edge, self, self._subjects, at, record_bytes=self._record_bytes
        )
        self._writer.claim(*self._claim)

    # Writing: LogOwner.

    def claimed(self) -> None:
        self._append()

    def committed(self, block: int, lsn: int) -> None:
        del block, lsn
        self._append()

    def deposed(self, epoch: int) -> None:
        del epoch
        self._fail("somebody else writes to the log")

    def handed_over(self) -> None:
        if self._writer is not None:
            self._end(self._writer.at)

    def broken(self, reason: str) -> None:
        self._fail(reason)

    def _append(self) -> None:
        """Read on, so that there is always a next record; behind the last one, say so."""
        writer = self._writer
        if writer is None or self._has_ended or writer.has_ended:
            return
        try:
            while writer.waiting_bytes < _WAITING_RECORDS * self._record_bytes:
                piece = self._source.next_piece(self._record_bytes)
                if piece is None:
                    writer.complete()
                    return
                generation, offset, number, lsn, body = piece
                writer.appended(generation, offset, number, lsn, [body])
        except (StoreError, OSError) as error:
            self._fail(str(error))
            return
        writer.request()

    def _end(self, at: Position) -> None:
        self._has_ended = True
        self._owner.copied(at)

    def _fail(self, reason: str) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._owner.failed(reason)
