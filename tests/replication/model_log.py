"""A log that keeps its two promises (E1, E2) and is otherwise as unkind as it may be.

Requests and answers are in one bag, from which any may be taken next: so they are late, overtake
each other, and arrive after their connection is gone. Some are lost, some come twice; some appends
are refused although they could have been taken, or although they were, some are answered with a
sequence that is not theirs, and some readings break off. To whoever sends, a change of the engine's
leader looks like all of these at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from vouchmq.store.replication.log_edge import LogAnswers
from vouchmq.store.replication.record import Subjects

SUBJECTS = Subjects("model")


class Append(NamedTuple):
    """A message on its way to the log."""

    edge: Edge
    connection: int
    token: int
    expected: int
    raw: bytes


class Read(NamedTuple):
    """A question on its way to the log."""

    edge: Edge
    connection: int
    token: int
    sequence: int


class Answer(NamedTuple):
    """On its way back; `found` are the messages that a reading brings before it ends."""

    edge: Edge
    connection: int
    verb: str
    token: int
    sequence: int
    found: list[bytes]


class Moment(NamedTuple):
    """A callback that a node's writer has asked for."""

    edge: Edge
    asker: LogAnswers | None
    job: Callable[[], None]


class Edge:
    """A node's connection to the log; what of an earlier one is under way goes on its way."""

    def __init__(self, log: ModelLog) -> None:
        self.log = log
        self.connection = 0
        self.answers: LogAnswers | None = None

    def send(self, token: int, subject: str, expected: int, parts: Sequence[bytes]) -> None:
        del subject
        self.log.bag.append(Append(self, self.connection, token, expected, b"".join(parts)))

    def read_from(self, token: int, sequence: int) -> None:
        self.log.bag.append(Read(self, self.connection, token, sequence))

    def gather(self, job: Callable[[], None]) -> None:
        """Call back at some time, unless the node has begun anew: much may have happened then."""
        self.log.bag.append(Moment(self, self.answers, job))

    def purge(self, subject: str) -> None:
        raise AssertionError(f"nobody purges {subject} here")

    def lose(self) -> None:
        """Lose the connection, and all answers that were to come over it."""
        self.connection += 1
        if self.answers is not None:
            self.answers.lost()

    def hear(self, answer: Answer) -> None:
        """Pass an answer on, unless its connection is gone or nobody asks any more."""
        answers = self.answers
        if answers is None or answer.connection != self.connection:
            return
        if answer.verb == "acked":
            answers.acked(answer.token, answer.sequence)
        elif answer.verb == "refused":
            answers.refused(answer.token)
        else:
            self._hear_reading(answer, answers)

    def _hear_reading(self, answer: Answer, answers: LogAnswers) -> None:
        first = answer.sequence - len(answer.found) + 1
        is_cut = self.log.has_mishap(0.1)
        found = answer.found[: len(answer.found) // 2] if is_cut else answer.found
        for sequence, raw in enumerate(found, first):
            answers.found(answer.token, sequence, raw)
        if is_cut:
            self.lose()
        else:
            answers.ended(answer.token, answer.sequence)


class ModelLog:
    """Messages with sequences from 1 on, and everything that is under way to and from them."""

    def __init__(self, random: Random, first: bytes) -> None:
        self.messages = [first]
        self.bag: list[Append | Read | Answer | Moment] = []
        # No more mishaps.
        self.is_kind = False
        self._random = random

    def has_mishap(self, chance: float) -> bool:
        """Return whether something goes wrong that does so with this probability."""
        return not self.is_kind and self._random.random() < chance

    def step(self) -> None:
        """Let something arrive; when all is well, in the order in which it was sent."""
        bag = self.bag
        if self.is_kind:
            one = bag.pop(0)
        else:
            at = int(self._random.random() * len(bag))
            one = bag[at]
            chance = self._random.random()
            # Some come again, later.
            if chance > 0.06:
                bag[at] = bag[-1]
                bag.pop()
            if chance > 0.92 and not isinstance(one, Moment):
                return
        if isinstance(one, Moment):
            if one.edge.answers is one.asker:
                one.job()
        elif isinstance(one, Append):
            self._append(one)
        elif isinstance(one, Read):
            found = self.messages[one.sequence - 1 :]
            self._answer(one, "ended", len(self.messages), found)
        else:
            one.edge.hear(one)

    def _append(self, one: Append) -> None:
        chance = 1.0 if self.is_kind else self._random.random()
        if chance < 0.05:
            # A leader that was about to go, or is full.
            self._answer(one, "refused", 0)
        elif one.expected == len(self.messages):
            self.messages.append(one.raw)
            if chance < 0.10:
                # It says so, but not what became of it.
                self._answer(one, "refused", 0)
            elif chance > 0.15:
                self._answer(one, "acked", len(self.messages))
            # Else its leader died before the answer.
        elif chance < 0.08:
            self._answer(one, "acked", max(1, one.expected - 1))
        else:
            self._answer(one, "refused", 0)

    def _answer(
        self, one: Append | Read, verb: str, sequence: int, found: list[bytes] | None = None
    ) -> None:
        self.bag.append(Answer(one.edge, one.connection, verb, one.token, sequence, found or []))
