"""A directory that follows the log: the leader's segments, byte for byte, under the same names.

Whoever becomes the leader recovers from such a directory as after a crash; there is no other way to
take over, and no snapshot. A standby interprets headers of blocks only, and in heads and
checkpoints which segments they declare gone.

    found ─▶ LogView (does it count?) ─▶ segment file ─▶ sync ─▶ position file ─▶ what is gone goes

Where to go on after a start says the position file (`position_file.py`), which speaks for no more
than is on the disk. Behind it there may be blocks that this node wrote as a leader and that were
never committed, or that were. So at first what comes from the log is *compared* with what is here.
What is the same is not written, but synced, as whoever has written it may have been killed. What is
no whole block here was torn or has rotted, and is written over. Where there is another whole block,
or where the log ends, everything else is cut off, and from then on the log is copied.

The invariant: *nothing that anybody was promised is cut off because the log does not have it*. What
is here may be the last copy. Blocks say up to which number they were safe when they were written;
before something is cut, the log has to have everything up to the highest such number. And the
record at the position has to be in the log as it was. If not, the log has gone back behind what it
had acknowledged: `LogBroken`, nothing is touched, and this node is one that can rescue it.

A directory with a journal but without a position is refused for the same reason: it may belong to a
broker without a log, and the log may be an empty one.

What was tried: to compare checksums of blocks backwards, from the end of the directory, until they
agree. That needs reading by position in both, and a search where there was more than one leader
since; forwards there is one case.

A summary of each full segment is made here, as no leader's is in the log (`summarize`).

What it costs: a start reads and checks all segments of the directory. A healthy start could trust
the full ones, as recovery trusts summaries.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from vouchmq.store.errors import LogBroken, NoMirror, StoreError
from vouchmq.store.journal import records
from vouchmq.store.journal.end_mark import END_NAME
from vouchmq.store.journal.segment import segment_name, summary_name
from vouchmq.store.recovery.closed_segment import summarize
from vouchmq.store.recovery.scan import list_generations
from vouchmq.store.replication import record
from vouchmq.store.replication.log_view import START, LogView, Position
from vouchmq.store.replication.own_segments import OwnSegments
from vouchmq.store.replication.position_file import PositionFile

if TYPE_CHECKING:
    from vouchmq.store.disk import Disk, DiskFile
    from vouchmq.store.recovery.scan import Gap, Left
    from vouchmq.store.replication.log_view import Jump
    from vouchmq.store.replication.own_segments import Healing
    from vouchmq.store.replication.record import Record

# Kinds of blocks that tell which segments are gone.
_TELLING: Final = frozenset({records.HEAD, records.CHECKPOINT})
# Of a directory that has read nothing yet, and was not told what to follow.
_NO_ID: Final = bytes(record.ID_SIZE)
# So many readings may end without the record that is here already: it may just be purged.
_UNPROVEN_ENDS: Final = 2


class Mirror:
    """Follows a log with one directory, which nobody else uses meanwhile.

    Ask for what is at `next_sequence` and behind, and pass it to `found` and `ended`; call `sync`
    from time to time. `damaged` are segments to read again first (`heal`, `healed`).

    Args:
        disk: the directory
        log_id: the only log that is accepted; without it, that of the directory or any

    Raises:
        DataDirLocked: another process has the directory
        NoMirror: it has a journal that follows no log, or another one
        OSError: the disk refused
    """

    def __init__(self, disk: Disk, log_id: bytes | None = None) -> None:
        disk.lock()
        self._disk = disk
        self._position = PositionFile(disk)
        at, known_id = self._begin_with(log_id)
        self.view = LogView(at, known_id)
        self.own = OwnSegments(disk, at)
        self.damaged = self.own.damaged()
        # The end of the log was read, and nothing is behind it here.
        self.has_reached_end = False
        # Kind of the last record that counted, 0 before any; who has made the last claim.
        self.last_kind = 0
        self.leader = ""
        self._is_proven = at == START
        self._unproven_ends = 0
        self._files = set(self.own.found)
        self._is_comparing = bool(self._files)
        # Behind whole blocks only, where a later start can go on.
        self._whole = at
        self._generation, self._end = at.generation, at.offset
        self._block_start = at.offset
        self._block = at.block
        self._is_behind_jump = False
        # First and last block that are missing, and the segment behind them. A log that begins with
        # a directory's journal may lack some without a jump.
        self._missing: list[tuple[Jump | None, int, int, int]] = []
        # Segments that have a summary, or cannot have one.
        names = disk.listdir()
        self._summarized = {g for g in self._files if summary_name(g) in names}
        # The one that is being made, or 0.
        self._summarizing = 0
        # What was known when nothing was left to be summarized, or to be removed.
        self._none_to_summarize: tuple[int, ...] = ()
        self._none_to_remove: tuple[int, ...] = ()
        self._file: DiskFile | None = None
        self._dirty: list[DiskFile] = []
        # The names of what was here may not be synced either.
        self._is_directory_dirty = self._is_comparing

    def _begin_with(self, log_id: bytes | None) -> tuple[Position, bytes | None]:
        """Return where this directory is, and which log it follows, if that is known."""
        position = self._position
        if position.at is None:
            if list_generations(self._disk.listdir()):
                raise NoMirror(
                    "the directory has a journal that follows no log: a log can begin with it"
                    " (vouchmq ha create --from), else it has to be empty"
                )
            # Before anything else is here: from now on it is no journal of a broker without a log.
            position.put(log_id or _NO_ID, START)
        position.sync()
        known_id = position.log_id if position.log_id != _NO_ID else None
        if log_id and known_id and known_id != log_id:
            raise NoMirror(
                f"the directory follows the log {known_id.hex()}, and the stream has the log"
                f" {log_id.hex()}: name the other stream, or, if vouchmq ha rescue made this log in"
                " place of that one, empty the directory, and it copies this one"
            )
        return position.at or START, known_id or log_id

    @property
    def at(self) -> Position:
        """Up to where the log was read and applied; not all of it need be synced."""
        return self.view.at

    @property
    def synced(self) -> Position:
        """Up to where this directory says that it has everything, after any crash."""
        return self._position.at or START

    @property
    def next_sequence(self) -> int:
        """From where on the log has to be read; at first with the record that is here already."""
        return self.at.sequence + (1 if self._is_proven else 0)

    @property
    def is_complete(self) -> bool:
        """Whether this is everything up to the log's end, so that the node may claim."""
        view = self.view
        is_all = not (view.jumps or view.is_unfinished or self._missing or self.damaged)
        return self.has_reached_end and is_all

    # What is found in the log.

    def found(self, sequence: int, raw: bytes) -> None:
        """Take the next message.

        Raises:
            LogBroken: the log has lost something; nothing is cut off or written over
            OtherLog: it is another log
            UnsupportedFormat: a newer program wrote it
            OSError: the disk refused
        """
        if not self._is_proven and sequence == self.at.sequence:
            self._prove(raw)
            return
        if sequence > self.at.sequence:
            self.has_reached_end = False
        jumps = len(self.view.jumps)
        one = self.view.found(sequence, raw)
        if one is None:
            return
        self._is_proven = True
        self._is_behind_jump = self._is_behind_jump or len(self.view.jumps) > jumps
        self.last_kind = one.header.kind
        if one.header.kind == record.BLOCKS:
            self._apply(one)
        elif one.header.kind == record.CLAIM:
            self.leader = record.claimant(one.body)
            self._end_of_epoch()
        if self._end == self._block_start and not (self.view.jumps or self._missing):
            self._whole = self.at._replace(generation=self._generation, offset=self._end)

    def ended(self, last: int) -> None:
        """Take in that the log ended with this sequence.

        Raises:
            LogBroken: it ends before what is here
            OSError: the disk refused
        """
        self.view.ended(last)
        if not self._is_proven:
            self._unproven_ends += 1
            if self._unproven_ends >= _UNPROVEN_ENDS:
                raise LogBroken(f"the log has no record at sequence {self.at.sequence} any more")
        elif last == self.at.sequence:
            if self._is_comparing:
                self._cut_off(self._end, self._block)
            self.has_reached_end = True

    def _prove(self, raw: bytes) -> None:
        """The record with which the directory ends has to be the one that the log has there."""
        one = record.open_record(raw)
        if one is None or one.checksum != self.at.checksum:
            raise LogBroken(
                f"the log has another record at sequence {self.at.sequence} than was read from it"
            )
        self._is_proven = True

    def _apply(self, one: Record) -> None:
        header, body = one.header, one.body
        has_jumped = self._is_behind_jump
        if has_jumped:
            self._land(records.trusted_header(body, 0).number, header.generation)
        if header.generation != self._generation:
            self._begin(header.generation, has_jumped=has_jumped)
        if header.offset != self._end:
            raise LogBroken(
                f"record {header.number} of the log belongs to offset {header.offset} of"
                f" {segment_name(header.generation)}, which ends at {self._end}"
            )
        if not self._is_comparing or self._differs(body):
            self._write(body)
        elif self._generation in self._files:
            # Nobody knows whether who has written it has synced it: it may be a killed process.
            self._note_dirty(self._open())
        self._end += len(body)
        if header.part == header.parts:
            whole = body if header.parts == 1 else self._read_block()
            self._read_headers(whole)
            self._block_start = self._end

    def _write(self, body: bytes) -> None:
        file = self._open()
        file.write([body], self._end)
        self._note_dirty(file)

    def _note_dirty(self, file: DiskFile) -> None:
        if file not in self._dirty:
            self._dirty.append(file)

    def _differs(self, body: bytes) -> bool:
        """Return whether something else is here; cut it off if that is a block as well."""
        if self._generation not in self._files:
            # A leader removes a file when it is safe to do so, and the log may still have it. From
            # its beginning on it is written again even so: the block that declares it gone may be
            # one that the log does not have, and this segment of another leader.
            return not self._end or not self.own.says_gone(self._generation)
        own = self._open().read(self._end, len(body))
        if own == body:
            return False
        # Of several blocks, the first that is not the same; a part of one is judged by all of it.
        at, block = 0, self._block
        if self._end == self._block_start:
            while (end := _end_of_block(body, at)) and own[at:end] == body[at:end]:
                at, block = end, block + 1
        if self._has_block(self._block_start + at):
            self._cut_off(self._end + at, block)
        return True

    def _open(self) -> DiskFile:
        """Return the file of the segment that is being written."""
        if self._file is None:
            name = segment_name(self._generation)
            if self._generation in self._files:
                self._file = self._disk.open(name)
            else:
                self._file = self._disk.create(name, 0)
                self._files.add(self._generation)
                self._is_directory_dirty = True
        return self._file

    def _begin(self, generation: int, *, has_jumped: bool) -> None:
        """Go on to the next segment; of the one before nothing else counts.

        Behind a jump that one may have more than was read: it has to be gone.
        """
        if generation < self._generation:
            raise LogBroken(
                f"the log goes back from {segment_name(self._generation)} to"
                f" {segment_name(generation)}"
            )
        self._end_of_epoch()
        if self._is_comparing and self._generation in self._files and not has_jumped:
            if self._has_block(self._end):
                self._cut_off(self._end, self._block)
            else:
                self._cut(self._end)
        self._close_file()
        self._generation = generation
        self._end = self._block_start = 0

    def _end_of_epoch(self) -> None:
        """What there is of a block that its leader never finished is not one."""
        if self._end != self._block_start:
            self._end = self._block_start
            if not self._is_comparing:
                self._cut(self._end)

    def _close_file(self) -> None:
        """Let go of the file; if it is dirty, a sync closes it."""
        file, self._file = self._file, None
        if file is not None and file not in self._dirty:
            file.close()

    # What is here and not in the log.

    def _has_block(self, offset: int) -> bool:
        """Return whether a whole block is here, at an offset of the segment that is compared."""
        if self._generation not in self._files:
            return False
        file = self._open()
        head = file.read(offset, records.HEADER_SIZE)
        end = _end_of_block(head, 0)
        if not end or offset + end > file.size():
            return False
        return records.read_block(file.read(offset, end), 0, self._generation, None) is not None

    def _cut_off(self, offset: int, block: int) -> None:
        """Remove everything behind this block, up to which all is the same; from here on, copy.

        A crash on the way leaves a part of it, which the next start compares again.
        """
        if block < self.own.promised:
            raise LogBroken(
                f"the log does not have block {self.own.promised}, which is here and was safe;"
                f" it goes on otherwise behind block {block}: if a broker without ha_log has used"
                " this directory, what it has stored since is in no log: move the directory away"
                " and start with an empty one; if not, the log has lost records: see vouchmq ha"
                " rescue --help"
            )
        self._is_comparing = False
        disk = self._disk
        # It may name a block that goes now, and recovery would miss it.
        disk.unlink(END_NAME)
        for generation in sorted(self._files, reverse=True):
            if generation >= self._generation:
                disk.unlink(summary_name(generation))
                self._summarized.discard(generation)
            if generation > self._generation:
                disk.unlink(segment_name(generation))
                self._files.remove(generation)
        disk.directory.sync()
        self._cut(offset)

    def _cut(self, end: int) -> None:
        """Cut the segment that is being written."""
        if self._generation in self._files:
            file = self._open()
            if file.size() > end:
                file.truncate(end)
                file.sync()

    # What blocks say.

    def _read_block(self) -> bytes:
        """Return a block that came in parts."""
        return self._open().read(self._block_start, self._end - self._block_start)

    def _read_headers(self, body: bytes) -> None:
        """Look at whole blocks: their numbers, and what they declare gone."""
        at = 0
        while at < len(body):
            header = records.trusted_header(body, at)
            end = at + records.HEADER_SIZE + header.length
            if header.number != self._block + 1:
                if header.number <= self._block or self._block_start + at:
                    raise LogBroken(f"the log has block {header.number} behind block {self._block}")
                # The beginning of a log may be a journal some of whose segments are gone.
                gap = (self._block + 1, header.number - 1)
                self._missing.append((None, *gap, self._generation))
            self._block = header.number
            retired: list[Left] = []
            gaps: list[Gap] = []
            if header.kind in _TELLING:
                sections = records.read_sections(body, at + records.HEADER_SIZE, end)
                if records.RETIRED in sections:
                    numbers = iter(records.unpack_numbers(body, sections[records.RETIRED]))
                    retired = list(zip(numbers, numbers, numbers, strict=True))
                if records.KNOWN_GAPS in sections:
                    numbers = iter(records.unpack_numbers(body, sections[records.KNOWN_GAPS]))
                    gaps = list(zip(numbers, numbers, strict=True))
            self.own.declare(header.oldest, retired, gaps)
            at = end
        if self._missing or self.damaged:
            self._judge()

    def _land(self, number: int, generation: int) -> None:
        """Go on behind a jump; the blocks in between have to be declared gone."""
        self._is_behind_jump = False
        known = [each[0] for each in self._missing]
        for jump in self.view.jumps:
            if jump not in known:
                self._missing.append((jump, self._block + 1, number - 1, generation))
        self._block = number - 1

    def _judge(self) -> None:
        """Let go of what by now is known to be missed by nobody."""
        for each in [*self._missing]:
            jump, first, last, behind = each
            if first > last or self.own.covers(first, last, behind):
                self._missing.remove(each)
                if jump is not None:
                    self.view.excuse(jump)
        if self.damaged:
            self.damaged = [g for g in self.damaged if not self.own.is_gone(g)]

    # The disk.

    def sync(self) -> None:
        """Make everything that was applied durable, then say so, then remove what is gone.

        Raises:
            OSError: the disk refused; the process has to end
        """
        for file in self._dirty:
            file.sync()
            if file is not self._file:
                file.close()
        self._dirty = []
        if self._is_directory_dirty:
            self._disk.directory.sync()
            self._is_directory_dirty = False
        if self._whole != self._position.at and self.view.log_id is not None and self._is_proven:
            self._position.put(self.view.log_id, self._whole)
        self._remove_gone()

    def _remove_gone(self) -> None:
        known = self._known(self._whole.generation)
        if known == self._none_to_remove:
            return
        gone = [g for g in self._files if g < self._whole.generation and self.own.is_gone(g)]
        for generation in gone:
            if generation != self._summarizing:
                self._disk.unlink(summary_name(generation))
                self._disk.unlink(segment_name(generation))
                self._files.remove(generation)
        if not gone:
            self._none_to_remove = known

    def _known(self, generation: int) -> tuple[int, ...]:
        """All that says which segments are gone or lack a summary: most syncs change nothing."""
        own = self.own
        counts = len(own.retired), len(self._files), len(self._summarized), len(self.damaged)
        return generation, own.oldest, *counts

    def heal(self, generation: int) -> Healing:
        """Begin to write a damaged segment again, with the bodies that the log has of it."""
        return self.own.heal(generation)

    def healed(self, healing: Healing) -> bool:
        """All records of a segment were read; return whether it is whole now.

        Raises:
            OSError: the disk refused
        """
        is_whole = self.own.healed(healing)
        if is_whole:
            self._files.add(healing.generation)
            self._summarized.discard(healing.generation)
        self.damaged = self.own.damaged()
        return is_whole

    @property
    def lacks_summary(self) -> bool:
        """Whether a summary is being made, or is to be made."""
        return bool(self._summarizing or self._lacking_summary())

    def next_summary(self) -> int:
        """Return the segment to be summarized now, by `summarize`; 0 if there is none."""
        found = self._summarizing = self._lacking_summary()
        if found:
            self._summarized.add(found)
        return found

    def _lacking_summary(self) -> int:
        """Return the newest full segment that is synced, whole and without a summary."""
        own, synced = self.own, self._position.at
        generation = synced.generation if synced is not None else 0
        known = self._known(generation)
        if known == self._none_to_summarize:
            return 0
        candidates = (
            g
            for g in self._files - self._summarized
            if g < generation and not own.is_gone(g) and g not in self.damaged
        )
        found = max(candidates, default=0)
        if not found:
            self._none_to_summarize = known
        return found

    def summarize(self, generation: int) -> None:
        """Write the summary of a full segment, with which a take-over need not read it.

        Nothing else is touched, so other calls may be made meanwhile in another thread.
        """
        try:
            # If it fails, the next recovery only takes longer.
            with suppress(OSError, StoreError):
                summarize(self._disk, generation)
        finally:
            self._summarizing = 0

    def close(self) -> None:
        """Close all files. What was not synced is read again."""
        for file in {id(each): each for each in (*self._dirty, self._file) if each}.values():
            file.close()
        self._dirty, self._file = [], None
        self._position.close()


def _end_of_block(buffer: bytes, offset: int) -> int:
    """Return where the block at `offset` ends by its header; 0 if there is none."""
    if offset + records.HEADER_SIZE > len(buffer):
        return 0
    return offset + records.HEADER_SIZE + records.trusted_header(buffer, offset).length
