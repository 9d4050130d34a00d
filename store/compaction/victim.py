"""Which segment to empty next, and whether that would gain anything.

Emptying writes again what is needed of a segment: live messages, settles and notes that others
need. It is worth it when that is less than half, or it would never end: what was written again is
a part of the next segment. How much is needed is guessed from counts until somebody has looked.

It must not know blocks or files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from vouchmq.store.journal.segment import Segment
    from vouchmq.store.journal.segments import SegmentChain

# A segment is worth emptying when less than this share of it is needed.
_MOST_NEEDED: Final = 0.5
# What a round costs, beside what it writes again: blocks that say so, for the most part.
_ROUND_BYTES: Final = 256
# A survey is repeated when so much of what it found has died since.
_SURVEY_AGAIN: Final = 0.9
# So much of the row has to go before settles that were all needed are looked at again.
_ROW_CHANGES: Final = 0.25
# Sizes differ, so that counts may mislead: now and then one segment is looked at all the same.
_LOOKS_PER_DOUBT: Final = 16


class _Found(NamedTuple):
    """What was found in a segment, and when, counted in segments that had gone."""

    live_count: int
    live_bytes: int
    kept_bytes: int
    departed: int
    row_length: int


class VictimSelector:
    """Knows what was found in which segment of a chain."""

    def __init__(self, chain: SegmentChain) -> None:
        self._chain = chain
        self._looks = 0
        self._found: dict[int, _Found] = {}  # by generation
        self._ruled_out: set[int] = set()
        self._departed = 0

    def choose(self) -> Segment | None:
        """Return the segment of which the least is needed, if that is little enough."""
        self._looks += 1
        self._forget()
        best: Segment | None = None
        least = _MOST_NEEDED
        is_leading = True
        for segment in self._chain.resting:
            is_leading = is_leading and not segment.is_needed
            # Those in front go by themselves.
            if is_leading or segment.generation in self._ruled_out:
                continue
            share = self._share(segment)
            if share < least or (best is None and share <= least):
                best, least = segment, share
        if best is None and self._looks % _LOOKS_PER_DOUBT == 0:
            best = self._doubtful()
        return best

    def _forget(self) -> None:
        generations = {segment.generation for segment in self._chain.resting}
        known = len(self._found)
        self._found = {g: found for g, found in self._found.items() if g in generations}
        self._departed += known - len(self._found)
        self._ruled_out &= generations

    def is_worth_it(self, segment: Segment, live_bytes: int, kept_bytes: int) -> bool:
        """Take note of what was found; return whether to write it again elsewhere.

        Args:
            segment: who was looked at
            live_bytes: what moving its live messages takes
            kept_bytes: what logging again those of its settles takes that others need
        """
        self._found[segment.generation] = _Found(
            segment.live_count, live_bytes, kept_bytes, self._departed, len(self._chain.resting)
        )
        return share_needed(segment, live_bytes + kept_bytes) <= _MOST_NEEDED

    def rule_out(self, segment: Segment) -> None:
        """Never choose it again: it is about to leave, or cannot be read."""
        self._ruled_out.add(segment.generation)

    def _share(self, segment: Segment) -> float:
        """How much of a segment is about needed, 1.0 if it was just looked at in vain."""
        found = self._found.get(segment.generation)
        if found is None:
            return self._guess(segment)
        # Settles are needed less when others have gone whose messages they are about.
        has_aged = self._departed - found.departed > found.row_length * _ROW_CHANGES
        needed = 0 if has_aged else found.kept_bytes
        if found.live_count:
            if segment.live_count > found.live_count * _SURVEY_AGAIN and not has_aged:
                return 1.0
            needed += found.live_bytes * segment.live_count // found.live_count
        return share_needed(segment, needed)

    @staticmethod
    def _guess(segment: Segment) -> float:
        if not segment.live_count:
            return share_needed(segment, 0)
        if not segment.arrived_count:
            # It was there before the last restart.
            return max(_MOST_NEEDED, share_needed(segment, 0))
        room = segment.offset - segment.head_bytes
        return share_needed(segment, room * segment.live_count // segment.arrived_count)

    def _doubtful(self) -> Segment | None:
        """Return the segment of which most has died since it was looked at, if anything has."""
        best: Segment | None = None
        least = 1.0
        for segment in self._chain.resting:
            found = self._found.get(segment.generation)
            known = found.live_count if found is not None else segment.arrived_count
            share = segment.live_count / max(1, known)
            is_open = segment.generation not in self._ruled_out
            if share < least and segment.live_count and is_open:
                best, least = segment, share
        return best


def share_needed(segment: Segment, needed_bytes: int) -> float:
    """How much of a segment is needed; the cost of a round counts as a part of a file."""
    room = max(1, segment.offset - segment.head_bytes)
    most = max(1, segment.size_bytes - segment.head_bytes)
    return (needed_bytes + segment.noted_bytes) / room + _ROUND_BYTES / most
