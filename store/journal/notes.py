"""Notes: small durable facts that are not messages, each a value under a scope and a key.

    note, unnote ─▶ the block of the turn ─▶ listed by its segment
                        ▲                          │ the segment is to go, or many are dead
                        └──── written again ◀─ recall: what is still wanted

The newest value of a key counts. Per segment only keys are kept in memory, as whoever notes
something knows the value anyway: before a segment goes, its owner is asked (`recall`), and what
is wanted is written again, in pieces of some hundred notes a block. Lists of keys are swept now
and then, so that it is known how much of a segment is wanted: one that is mostly live notes is
left where it is.

It must not know what a note says.

Spec: DURABLE-15
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from vouchmq.store.journal import records
from vouchmq.store.journal.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vouchmq.store.journal.segments import SegmentChain

# Gives the value that a scope's key has by now, None if it is not wanted any more.
Recall = Callable[[int, bytes], bytes | None]

# What a turn looks up, and what it writes again, at most.
_PIECE_NOTES: Final = 256
_PIECE_BYTES: Final = 64 * 1024
# A segment of which notes take a larger share stays until more of them are gone.
_MOST_WANTED: Final = 0.5


@dataclass(slots=True)
class _Pass:
    """One segment whose notes are gone through, scope by scope."""

    segment: Segment
    is_carrying: bool
    scopes: list[int]
    scope_at: int = 0
    key_at: int = 0
    # What is wanted of what was gone through: keys, and the octets of their notes.
    wanted: dict[int, dict[bytes, int]] = field(default_factory=dict)


@dataclass(slots=True)
class _Piece:
    """What the next block takes along; it counts when that block is written."""

    scope_at: int
    key_at: int
    found: list[tuple[int, bytes, bytes]] = field(default_factory=list)


class Notes:
    """What is buffered of notes, and which segments are being gone through for them.

    Args:
        chain: the segments
        known: what recovery found, by scope; kept up to date here until there is an owner to ask
    """

    def __init__(self, chain: SegmentChain, known: dict[int, dict[bytes, bytes]]) -> None:
        # How many notes were written again so far.
        self.carried_count = 0
        self._chain = chain
        self._known: dict[int, dict[bytes, bytes]] | None = known
        self._recall: Recall = self._look_up
        self._noted: dict[int, dict[bytes, bytes]] = {}
        self._forgotten: dict[int, dict[bytes, None]] = {}
        # What is said again, whatever that is by then, because its block is about to go.
        self._again: dict[tuple[int, bytes], None] = {}
        self._said: list[tuple[int, bytes, bytes | None]] = []
        self._waiting: deque[tuple[Segment, bool]] = deque()
        self._pass: _Pass | None = None
        self._piece: _Piece | None = None

    def ask(self, recall: Recall) -> None:
        """From now on ask the owner, who knows everything that recovery found.

        Args:
            recall: gives the value that a key has now, None if it is not wanted any more
        """
        self._recall, self._known = recall, None

    # Buffering.

    def note(self, scope_id: int, key: bytes, value: bytes) -> None:
        """Buffer a value; it replaces any older one."""
        noted = self._noted.get(scope_id)
        if noted is None:
            noted = self._noted[scope_id] = {}
        noted[key] = value

    def unnote(self, scope_id: int, key: bytes) -> None:
        """Buffer that a key has no value any more."""
        noted = self._noted.get(scope_id)
        if noted is not None:
            noted.pop(key, None)
        self._forgotten.setdefault(scope_id, {})[key] = None

    def drop(self, scope_id: int) -> None:
        """The scope is gone: what is buffered for it need not be written."""
        self._noted.pop(scope_id, None)

    def repeat(self, scope_id: int, key: bytes) -> None:
        """Have the next block say which value a key has, or that it has none."""
        self._again[scope_id, key] = None

    def _look_up(self, scope_id: int, key: bytes) -> bytes | None:
        noted = self._noted.get(scope_id)
        if noted is not None and key in noted:
            return noted[key]
        if key in self._forgotten.get(scope_id, ()) or self._known is None:
            return None
        return self._known.get(scope_id, {}).get(key)

    # Writing.

    @property
    def is_involved(self) -> bool:
        """Whether there is anything to count when a block is written."""
        return self._piece is not None or self.has_buffered

    @property
    def has_buffered(self) -> bool:
        """Whether the next block has something to say about notes."""
        if self._noted or self._forgotten or self._again:
            return True
        return bool(self._piece and self._piece.found and self._pass and self._pass.is_carrying)

    def encode(self) -> list[bytes]:
        """Return the sections of what is buffered. No key stands in both."""
        pack = records.pack_note
        self._said = [(s, key, self._recall(s, key)) for s, key in self._again]
        entries = [pack(s, k, v) for s, k, v in self._carried() if k not in self._noted.get(s, ())]
        entries += [pack(s, k, v) for s, noted in self._noted.items() for k, v in noted.items()]
        parts: list[bytes] = []
        if entries:
            parts += records.pack_section(records.NOTES, len(entries), *entries)
        gone_entries = [pack(s, k, b"") for s, k in self._gone() if k not in self._noted.get(s, ())]
        if gone_entries:
            parts += records.pack_section(records.FORGOTTEN_NOTES, len(gone_entries), *gone_entries)
        return parts

    def _carried(self) -> list[tuple[int, bytes, bytes]]:
        """Return the notes that are written again."""
        carried = [(s, key, value) for s, key, value in self._said if value is not None]
        if self._piece is not None and self._pass is not None and self._pass.is_carrying:
            carried += self._piece.found
        return carried

    def _gone(self) -> dict[tuple[int, bytes], None]:
        """Return the keys that have no value any more.

        After two refused blocks in a row a key can be both forgotten, by the first, and to be said
        again, because the second had a value for it. That came later.
        """
        again = {(s, key): value for s, key, value in self._said}
        forgotten = ((s, key) for s, keys in self._forgotten.items() for key in keys)
        gone = dict.fromkeys(each for each in forgotten if again.get(each) is None)
        gone.update((each, None) for each, value in again.items() if value is None)
        return gone

    def words(self) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Yield what the block that was just encoded says about each key, None: it has no value.

        Of what it says of one key the last word counts.
        """
        yield from self._carried()
        yield from ((scope_id, key, None) for scope_id, key in self._gone())
        for scope_id, noted in self._noted.items():
            for key, value in noted.items():
                yield scope_id, key, value

    def count(self) -> None:
        """Take note that everything that was buffered is written."""
        active = self._chain.active
        for scope_id, key, value in self._carried():
            self.carried_count += 1
            active.add_notes(scope_id, (key,), records.NOTE_SIZE + len(key) + len(value))
        known = self._known
        if known is not None:
            for scope_id, keys in self._forgotten.items():
                gone_from = known.get(scope_id, {})
                for key in keys:
                    gone_from.pop(key, None)
        for scope_id, noted in self._noted.items():
            size = sum(map(len, noted)) + sum(map(len, noted.values()))
            active.add_notes(scope_id, noted, size + records.NOTE_SIZE * len(noted))
            if known is not None:
                known.setdefault(scope_id, {}).update(noted)
        self._noted, self._forgotten = {}, {}
        self._again, self._said = {}, []
        self._advance()

    def count_drop(self, scope_id: int) -> None:
        """Take note that it is written that a scope is gone."""
        if self._known is not None:
            self._known.pop(scope_id, None)

    def refuse(self) -> None:
        """Take note that the disk refused the block: its notes never were.

        That keys have no value any more stays buffered, as settles do. So does what is to be said
        again: that is looked up anew, as it may have been one of those notes. They are looked up
        themselves, too: one that was about something older than the block is still true.
        """
        self._again.update(((s, key), None) for s, noted in self._noted.items() for key in noted)
        self._noted = {}
        self._said = []
        self._piece = None

    # Going through segments.

    @property
    def is_busy(self) -> bool:
        """Whether there are segments to go through."""
        return self._pass is not None or bool(self._waiting)

    def sweep(self) -> None:
        """A segment was begun: find out what of the notes of the others is wanted."""
        waiting = {segment.generation for segment, _ in self._waiting}
        current = self._pass.segment.generation if self._pass is not None else 0
        for segment in self._chain.resting:
            if segment.noted and segment.generation not in {*waiting, current}:
                self._waiting.append((segment, False))

    def carry(self, segment: Segment) -> None:
        """Have everything written again that is wanted of a segment's notes.

        When it is, the segment has none.
        """
        current = self._pass
        if current is not None and current.segment is segment and current.is_carrying:
            return
        if (segment, True) not in self._waiting:
            self._waiting.appendleft((segment, True))

    def look_at_oldest(self) -> None:
        """Carry on what keeps the oldest segment, if that is nothing but a few notes."""
        oldest = self._chain.oldest
        if oldest.noted and not oldest.live_count and oldest.is_resting and not self.is_busy:
            most = _MOST_WANTED * self._chain.segment_size_bytes
            if oldest.noted_bytes <= most:
                self.carry(oldest)

    def prepare(self) -> None:
        """Look up the next piece; it goes with the next block, or needs none."""
        current = self._pass
        while current is None or current.segment not in self._chain.resting:
            if not self._waiting:
                self._pass = None
                return
            segment, is_carrying = self._waiting.popleft()
            current = self._pass = _Pass(segment, is_carrying, list(segment.noted))
        self._piece = self._take(current)

    def _take(self, current: _Pass) -> _Piece:
        piece = _Piece(current.scope_at, current.key_at)
        budget, size = _PIECE_NOTES, 0
        noted = current.segment.noted
        while piece.scope_at < len(current.scopes) and budget > 0 and size < _PIECE_BYTES:
            scope_id = current.scopes[piece.scope_at]
            keys: Sequence[bytes] = noted.get(scope_id, ())
            known = current.wanted.get(scope_id, {})
            begin = piece.key_at
            for key in islice(keys, begin, begin + budget):
                piece.key_at += 1
                value = self._recall(scope_id, key) if key not in known else None
                if value is not None:
                    piece.found.append((scope_id, key, value))
                    size += records.NOTE_SIZE + len(key) + len(value)
                    if size >= _PIECE_BYTES:
                        break
            budget -= max(1, piece.key_at - begin)
            if piece.key_at >= len(keys):
                piece.scope_at += 1
                piece.key_at = 0
        return piece

    def _advance(self) -> None:
        current, piece = self._pass, self._piece
        self._piece = None
        if current is None or piece is None:
            return
        for scope_id, key, value in piece.found:
            size = records.NOTE_SIZE + len(key) + len(value)
            current.wanted.setdefault(scope_id, {})[key] = size
        current.scope_at, current.key_at = piece.scope_at, piece.key_at
        # Should its last wanted note be among what this block says is not wanted any more.
        current.segment.dead_number = self._chain.number - 1
        if current.scope_at >= len(current.scopes):
            wanted = {} if current.is_carrying else current.wanted
            current.segment.keep_notes(wanted)
            self._pass = None
