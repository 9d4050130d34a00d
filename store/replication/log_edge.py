"""What replication asks of the log's engine, and what it is told: the only way in and out.

A log is a row of messages, each with a sequence and a subject. Behind these two protocols may
stand any engine that keeps two promises:

- **E1**: what it has acknowledged at a sequence stays there, for every reader, until it is purged;
- **E2**: of all messages that are sent with the expectation *s* at most one gets the sequence
  *s* + 1, and none gets another. An attempt may be lost or arrive late, but not land elsewhere.

The edge keeps no promise of its own beyond this: it may lose what it was asked and what it was
told. It must not invent: an `acked` is the engine's word for that very attempt, and `ended` is said
by the one server that takes appends (elsewhere the end may be behind). It calls nothing from within
`send`, `read_from` or `purge`; answers come in later calls.
"""

from collections.abc import Sequence
from typing import Protocol


class LogEdge(Protocol):
    """What is asked of the engine; nothing here blocks or raises."""

    def send(self, token: int, subject: str, expected: int, parts: Sequence[bytes]) -> None:
        """Append the message made of `parts`, if the log ends with sequence `expected`.

        Answered by `acked` or `refused` with this token, or never. The expectation is about the
        whole log, not about the subject. Where there is no connection, nothing has to be done.
        """

    def read_from(self, token: int, sequence: int) -> None:
        """Read everything that stands at `sequence` or behind it.

        Answered by `found` for each message, in order, and then by `ended`, with this token. The
        end is asked first: all that is not purged up to there is found. A reading takes the place
        of the one before. It is kept until there is a connection, but not over `lost`.
        """

    def purge(self, subject: str) -> None:
        """Remove all messages of a subject; if that gets lost, it is asked again."""


class LogAnswers(Protocol):
    """What the engine is told to have said; tokens are those of the question."""

    def acked(self, token: int, sequence: int) -> None:
        """The message of that attempt stands at `sequence`, on as many disks as it takes."""

    def refused(self, token: int) -> None:
        """The engine has answered that attempt with anything else.

        The log ends elsewhere, is full, has no quorum. It may stand there all the same.
        """

    def lost(self) -> None:
        """The connection is gone: what is under way may have arrived or not, and no answer comes.

        What is asked from now on, already within this call, goes over the next connection.
        """

    def found(self, token: int, sequence: int, raw: bytes) -> None:
        """A message of that reading."""

    def ended(self, token: int, last: int) -> None:
        """That reading is complete: the log ended with sequence `last`, 0 when it is empty."""
