"""Writers that race for the positions of a log, and what each was told: material for the audit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tests.engine.servers import STREAM
from vouchmq.server.replication.addresses import Server
from vouchmq.server.replication.connection import Options
from vouchmq.server.replication.log import NatsLog


class Outcome(Enum):
    """What is known of an attempt."""

    OPEN = "open"
    ACKED = "acked"
    FOUND = "found"
    REFUSED = "refused"


@dataclass
class Attempt:
    """One payload, which was only ever sent for one position, maybe several times."""

    position: int
    outcome: Outcome = Outcome.OPEN
    # Sent, and never answered: it may stand there, or come to stand there.
    has_doubt: bool = False
    # The sequence that an acknowledgement named.
    acked_at: int = 0


@dataclass
class Seen:
    """What readers have seen, and where that was contradicted later."""

    payloads: dict[int, bytes] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)

    def add(self, who: str, sequence: int, raw: bytes) -> None:
        """Somebody has read this."""
        before = self.payloads.setdefault(sequence, raw)
        if before != raw:
            self.contradictions.append(f"{who} reads another record at {sequence}")


class Writer:
    """Appends one record after the other, as the writer of the log does; a `LogAnswers`.

    After an acknowledgement it aims at the next position. After a refusal or a loss it reads what
    stands behind what it knows: its own record, another's, or nothing, and then sends it again.

    Args:
        name: goes into each payload
        servers: those that it may use
        seen: what all readers see
        size_bytes: of a payload
        delay_s: between an acknowledgement and the next record, to let others in
        segment_records: so many positions share a subject
    """

    def __init__(
        self,
        name: str,
        servers: Sequence[Server],
        seen: Seen,
        *,
        size_bytes: int = 256,
        delay_s: float = 0.0,
        segment_records: int = 1 << 60,
    ) -> None:
        self.name = name
        self._segment_records = segment_records
        self._loop = asyncio.get_running_loop()
        self._seen = seen
        self._size_bytes = size_bytes
        self._delay_s = delay_s
        self._chance = random.Random(name)
        self.engine = NatsLog(STREAM, servers, Options(name=name), self._loop, self._chance)
        self.attempts: dict[bytes, Attempt] = {}
        self.acked_count = 0
        self.lost_count = 0
        self.refused_count = 0
        self.acked_at_s = self._loop.time()
        self.longest_pause_s = 0.0
        self.is_ending = False
        self._last = 0
        self._token = 0
        self._payload = b""
        self._is_sent = False

    def start(self) -> None:
        """Begin with reading: the log may hold something."""
        self.engine.start(self)
        self._read()

    def stop(self) -> None:
        """No more, wherever it is."""
        self.is_ending = True
        self.engine.stop()

    @property
    def known_last(self) -> int:
        """The highest position that it knows to be taken."""
        return self._last

    @property
    def _attempt(self) -> Attempt | None:
        return self.attempts.get(self._payload)

    def _next(self) -> None:
        """Aim at the position behind the last one known, with a payload for it alone."""
        if self.is_ending:
            return
        number = len(self.attempts)
        text = f"{self.name} {number} {self._last + 1} "
        self._payload = text.encode() + self._chance.randbytes(max(0, self._size_bytes - len(text)))
        self.attempts[self._payload] = Attempt(self._last + 1)
        self._send()

    def _send(self) -> None:
        attempt = self.attempts[self._payload]
        self._token += 1
        self._is_sent = True
        subject = subject_of(attempt.position // self._segment_records)
        self.engine.send(self._token, subject, attempt.position - 1, [self._payload])

    def _read(self) -> None:
        self._token += 1
        self.engine.read_from(self._token, self._last + 1)

    # LogAnswers

    def acked(self, token: int, sequence: int) -> None:
        attempt = self.attempts[self._payload]
        assert token == self._token
        assert self._is_sent
        self._is_sent = False
        attempt.outcome = Outcome.ACKED
        attempt.acked_at = sequence
        self._last = sequence
        self.acked_count += 1
        now = self._loop.time()
        self.longest_pause_s = max(self.longest_pause_s, now - self.acked_at_s)
        self.acked_at_s = now
        if self._delay_s:
            self._loop.call_later(self._delay_s, self._after_delay, self._token)
        else:
            self._next()

    def _after_delay(self, token: int) -> None:
        # A loss in the meantime has made it read, and go on after that.
        if token == self._token:
            self._next()

    def refused(self, token: int) -> None:
        attempt = self.attempts[self._payload]
        assert token == self._token
        self._is_sent = False
        self.refused_count += 1
        attempt.outcome = Outcome.REFUSED
        # Only "wrong last sequence" leaves no trouble behind: all else may have happened.
        attempt.has_doubt = attempt.has_doubt or bool(self.engine.trouble)
        self._read()

    def lost(self) -> None:
        self.lost_count += 1
        attempt = self._attempt
        if self._is_sent and attempt is not None:
            attempt.has_doubt = True
        self._is_sent = False
        self._read()

    def found(self, token: int, sequence: int, raw: bytes) -> None:
        assert token == self._token
        self._seen.add(self.name, sequence, raw)
        assert sequence > self._last, "a reading goes backwards"
        self._last = sequence
        attempt = self.attempts.get(raw)
        if attempt is not None and attempt.outcome is not Outcome.ACKED:
            attempt.outcome = Outcome.FOUND

    def ended(self, token: int, last: int) -> None:
        assert token == self._token
        if self.is_ending:
            return
        attempt = self._attempt
        if (
            attempt is not None
            and attempt.outcome in (Outcome.OPEN, Outcome.REFUSED)
            and attempt.position == self._last + 1
        ):
            self._send()
        else:
            self._next()


def subject_of(segment: int) -> str:
    """The subject of all records of a segment."""
    return f"vq.{STREAM}.{segment}"


def audit(
    writers: Sequence[Writer],
    seen: Seen,
    log: Sequence[tuple[int, bytes]],
    purged: Container[int] = (),
) -> list[str]:
    """Everything in the log that breaks a promise, or that a writer was told wrongly.

    Args:
        writers: all that have written
        seen: what readers have seen at any time
        log: what the log holds at the end, by sequence
        purged: what it must not hold any more
    """
    attempts = {payload: attempt for each in writers for payload, attempt in each.attempts.items()}
    held = dict(log)
    wrong = [
        *seen.contradictions,
        *_wrong_records(attempts, log, purged),
        *_wrong_wins(attempts, held, purged),
    ]
    for sequence, payload in seen.payloads.items():
        if sequence not in purged and held.get(sequence) != payload:
            wrong.append(f"what was read at {sequence} is not there")
    return wrong


def _wrong_records(
    attempts: Mapping[bytes, Attempt], log: Sequence[tuple[int, bytes]], purged: Container[int]
) -> Iterator[str]:
    """What should not stand where it stands."""
    last = log[-1][0] if log else 0
    if [each for each, _ in log] != [each for each in range(1, last + 1) if each not in purged]:
        yield "the sequences of the log are not 1, 2, 3 …"
    if len({payload for _, payload in log}) < len(log):
        yield "a record stands in the log twice"
    for sequence, payload in log:
        attempt = attempts.get(payload)
        if attempt is None:
            yield f"nobody has sent what stands at {sequence}"
        elif attempt.position != sequence:
            yield f"a record for {attempt.position} stands at {sequence}"
        elif attempt.outcome is Outcome.REFUSED and not attempt.has_doubt:
            yield f"what stands at {sequence} was refused"


def _wrong_wins(
    attempts: Mapping[bytes, Attempt], held: Mapping[int, bytes], purged: Container[int]
) -> Iterator[str]:
    """Positions of which a writer has been told that they are its own."""
    winners: dict[int, bytes] = {}
    for payload, attempt in attempts.items():
        if attempt.outcome not in (Outcome.ACKED, Outcome.FOUND):
            continue
        if attempt.acked_at and attempt.acked_at != attempt.position:
            yield f"an ack of {attempt.acked_at} for {attempt.position}"
        if winners.setdefault(attempt.position, payload) != payload:
            yield f"{attempt.position} was won twice"
        if attempt.position not in purged and held.get(attempt.position) != payload:
            yield f"what was {attempt.outcome.value} at {attempt.position} is not there"


class Tail:
    """A reader that follows the log to the end of the test; a `LogAnswers`."""

    def __init__(self, servers: Sequence[Server], seen: Seen) -> None:
        self._loop = asyncio.get_running_loop()
        self._seen = seen
        self._next = 1
        self._token = 0
        self._is_stopped = False
        self.engine = NatsLog(STREAM, servers, Options(name="tail"), self._loop, random.Random(7))

    def start(self) -> None:
        """Begin."""
        self.engine.start(self)
        self._read()

    def stop(self) -> None:
        """End."""
        self._is_stopped = True
        self.engine.stop()

    def _read(self) -> None:
        if not self._is_stopped:
            self._token += 1
            self.engine.read_from(self._token, self._next)

    def acked(self, token: int, sequence: int) -> None:
        raise AssertionError("nothing was sent")

    def refused(self, token: int) -> None:
        raise AssertionError("nothing was sent")

    def lost(self) -> None:
        self._read()

    def found(self, token: int, sequence: int, raw: bytes) -> None:
        assert token == self._token
        self._seen.add("the reader", sequence, raw)
        self._next = sequence + 1

    def ended(self, token: int, last: int) -> None:
        # Not behind a loss that has begun another reading.
        self._loop.call_later(0.03, self._read_on, token)

    def _read_on(self, token: int) -> None:
        if token == self._token:
            self._read()
