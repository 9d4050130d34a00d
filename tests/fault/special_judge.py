"""The judge who reads after the clients of dead letters, delays, de-duplication and streams.

It brings what it finds to the records of `special_ledger`, which know what must be there.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.fault.clients import Client, Scene
from tests.fault.special_clients import (
    KEYS,
    LATER_QUEUE,
    MORTAL,
    STREAM,
    Delayer,
    Delivery,
    Line,
    Rejector,
    Repeater,
    Streamer,
    dead_of,
    repeat,
)
from tests.fault.special_ledger import DeadLetters, Delays, Keys, Offsets, Record
from tests.integration.raw_client import RawClient

LATE_S: Final = 30.0
READ_LIMIT_S: Final = 60.0
# So much of a stream is read again that was judged before.
OVERLAP: Final = 300
DRAINED_BEYOND: Final = 3_000


@contextmanager
def opened(url: str, record: Record, chance: random.Random) -> Iterator[Line]:
    """A line of the judge's own."""
    with RawClient(url).handshake() as client:
        yield Line(client, record, chance)


def all_of(line: Line, queue: str) -> list[Delivery]:
    """Everything that a queue hands out, in order, left unacked.

    Its count alone does not tell how much that is: what has come back too often by a restart dies
    when its turn to be handed out comes, and counts as ready until then.
    """
    line.consume(queue, prefetch=0)
    deadline = time.monotonic() + READ_LIMIT_S
    quiet = 0
    while quiet < 2:
        before = len(line.arrived)
        line.drain(0)
        is_still = line.ready_count(queue) == 0 and len(line.arrived) == before
        quiet = quiet + 1 if is_still else 0
        assert time.monotonic() < deadline, f"{queue} does not hand out what it has"
    return line.take_deliveries(0)


class Specials:
    """The records, over all rounds of a campaign, and their judge."""

    def __init__(self, directory: Path) -> None:
        self.dead_letters = {queue: DeadLetters(directory / f"{queue}.log") for queue in MORTAL}
        self.delays = Delays(directory / "delays.log")
        self.keys = Keys(directory / "keys.log")
        self.offsets = Offsets(directory / "offsets.log")

    def close(self) -> None:
        """Close the records."""
        for record in (*self.dead_letters.values(), self.delays, self.keys, self.offsets):
            record.close()

    def clients(self, scene: Scene) -> tuple[Client, ...]:
        """One for each feature; of the queues whose messages die one is at work in each life."""
        queue = scene.chance("mortal").choice(sorted(MORTAL))
        return (
            self.rejector(scene, queue),
            Delayer(scene, self.delays),
            Repeater(scene, self.keys),
            Streamer(scene, self.offsets),
        )

    def rejector(self, scene: Scene, queue: str) -> Client:
        """One that lets the messages of this queue die."""
        return Rejector(scene, self.dead_letters[queue], queue)

    def judge(self, url: str, chance: random.Random) -> list[str]:
        """Read everything after a restart and compare; one line for each violation."""
        judges: tuple[Callable[[str, random.Random], list[str]], ...] = (
            self._judge_dead_letters,
            self._judge_keys,
            self._judge_stream,
            self._judge_delays,
        )
        violations: list[str] = []
        for judge in judges:
            try:
                violations += judge(url, chance)
            except AssertionError as refusal:
                # A queue that had been declared, and is not there any more: say so and go on.
                if "NOT_FOUND" not in str(refusal):
                    raise
                violations.append(f"a definition is lost: {refusal}")
        return violations

    def _judge_dead_letters(self, url: str, chance: random.Random) -> list[str]:
        return [
            f"{queue}: {what}"
            for queue in MORTAL
            for what in self._judge_mortal(queue, self.dead_letters[queue], url, chance)
        ]

    @staticmethod
    def _judge_mortal(
        queue: str, record: DeadLetters, url: str, chance: random.Random
    ) -> list[str]:
        with opened(url, record, chance) as line, opened(url, record, chance) as grave:
            # What is out can neither die nor expire: the living are taken first, and held.
            work = [one.name for one in all_of(line, queue)]
            found = all_of(grave, dead_of(queue))
            dead = {one.name: str(one.headers["x-death"][0]["reason"]) for one in found}
            violations = record.judge(work, dead)
            if len(dead) < len(found):
                violations.append(f"dead letters: {len(found) - len(dead)} are there twice")
            drained = not violations and (len(dead) > DRAINED_BEYOND or chance.random() < 0.3)
            if drained:
                grave.drain()
            record.turn_page(work, dead, drained=drained)
        return violations

    def _judge_keys(self, url: str, chance: random.Random) -> list[str]:
        record = self.keys
        with opened(url, record, chance) as line:
            some = list(record.sent)[-1000:]
            repeat(line, record.unsettled() + chance.sample(some, min(20, len(some))), record)
            found = [one.name for one in all_of(line, KEYS)]
            violations = record.judge(found)
            drained = not violations and (len(found) > DRAINED_BEYOND or chance.random() < 0.3)
            if drained:
                line.drain()
            record.turn_page(found, drained=drained)
        return violations

    def _judge_stream(self, url: str, chance: random.Random) -> list[str]:
        record = self.offsets
        start = max(0, len(record.names) - OVERLAP)
        with opened(url, record, chance) as line:
            count = line.ready_count(STREAM) - start
            if count < len(record.names) - start:
                return [f"stream: {len(record.names) - start - count} offsets are gone"]
            if count:
                line.consume(STREAM, {"x-stream-offset": start}, prefetch=60_000)
            read = line.take_deliveries(count)
            found = [(int(one.headers["x-stream-offset"]), one.name) for one in read]
            violations = record.judge(start, found)
            record.turn_page(start, found)
        return violations

    def _judge_delays(self, url: str, chance: random.Random) -> list[str]:
        record = self.delays
        record.crashed()
        with opened(url, record, chance) as line:
            line.consume(LATER_QUEUE, prefetch=0)
            now = time.time()
            found: list[bytes] = []
            line.client.wait_at_most(LATE_S)
            try:
                while record.awaited(now) - set(found):
                    line.take()
                    while line.arrived:
                        self._note_arrival(line.arrived.popleft(), found)
            except TimeoutError:
                pass
            violations = record.judge(found, now)
            # What comes from now on stays unacked, and comes again.
            line.drain()
            record.turn_page(found)
        return violations

    def _note_arrival(self, delivery: Delivery, found: list[bytes]) -> None:
        self.delays.received(delivery.name, time.time(), redelivered=delivery.redelivered)
        found.append(delivery.name)
