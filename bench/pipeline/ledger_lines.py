"""Ledgers made to measure on: honest lives of messages, in the broker's format, at any size.

One broker, one epoch, so many queues in turn; runs of messages that are published, synced,
confirmed, delivered and acknowledged, with a full inventory at the end. Nothing is lost in them:
an audit must say so, which is how the rows know that it has read what was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

BROKER: Final = "bench"
BEGAN_US: Final = 1_767_225_600_000_000
"""Midnight UTC, 1 January 2026: the lines are the same in every run."""
FILE_LINES: Final = 400_000
PREFETCH: Final = 500


@dataclass(slots=True)
class Ledger:
    """Where lines go: numbered without a hole, in files that look rotated."""

    directory: Path
    message_count: int
    run: int = 16
    queue_count: int = 4
    line_count: int = 0
    _lines: list[str] = field(default_factory=list)
    _file: int = 0
    _now_us: int = BEGAN_US

    def write(self) -> int:
        """Write all; how many lines there are."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for head in self._events():
            self._now_us += 20
            stamp = f'{{"b":"{BROKER}","o":1,"n":{self.line_count},"t":{self._now_us},'
            self._lines.append(stamp + head)
            self.line_count += 1
            if len(self._lines) == FILE_LINES:
                self._rotate()
        self._rotate()
        return self.line_count

    def _rotate(self) -> None:
        if self._lines:
            name = f"{BROKER}-{1:08d}-{self._file:08d}.jsonl"
            (self.directory / name).write_text("\n".join(self._lines) + "\n")
            self._file += 1
            self._lines.clear()

    def _events(self) -> Iterator[str]:
        yield (
            '"e":"boot","fmt":1,"ver":"bench","w":"clean","wm":0,'
            '"prev_o":null,"prev_n":null,"prev_lsn":null,"sync":"off"}'
        )
        for queue in range(1, self.queue_count + 1):
            name = json.dumps(f"bench.{queue}")
            yield (
                f'"e":"que","qid":{queue},"v":"/","k":{name},"ty":"classic","d":2,"pri":0,'
                '"w":"declared"}'
            )
            yield f'"e":"rte","id":{queue},"v":"/","x":"","k":{name},"m":0}}'
            yield (
                f'"e":"con","id":{queue},"qid":{queue},"c":2,"h":{queue},"g":"c{queue}",'
                f'"pf":{PREFETCH},"na":0,"w":"start"}}'
            )
        sent = [0] * (self.queue_count + 1)
        first = 1
        while first <= self.message_count:
            last = min(first + self.run - 1, self.message_count)
            queue = first // self.run % self.queue_count + 1
            yield from self._life(queue, first, last, sent[queue])
            sent[queue] += last - first + 1
            first = last + 1
        for queue in range(1, self.queue_count + 1):
            yield f'"e":"inv","qid":{queue},"i":[],"full":1,"w":"stop","part":0,"parts":1}}'
        yield '"e":"end","w":"stop"}'

    def _life(self, queue: int, first: int, last: int, sent: int) -> Iterator[str]:
        """A run's lines; messages of a queue are published on a channel of its own."""
        count = last - first + 1
        numbers = f"{sent + 1},{sent + count}"
        yield (
            f'"e":"pub","rt":{queue},"c":1,"h":{queue},"s":[{numbers}],"p":1,"z":{256 * count},'
            f'"lsn":[{first},{last}],"to":[{queue}]}}'
        )
        yield f'"e":"syn","wm":{last},"us":300}}'
        yield f'"e":"cnf","c":1,"h":{queue},"i":[[{numbers}]],"ok":1,"wm":{last}}}'
        yield (
            f'"e":"dlv","qid":{queue},"cid":{queue},"i":[[{first},{last}]],"tag":{sent + 1},'
            '"r":0,"na":0}'
        )
        yield f'"e":"ack","qid":{queue},"cid":{queue},"i":[[{first},{last}]]}}'
