"""The log on NATS JetStream: appends one record at a time, reads, purges, and stays connected.

    send ─▶ one message with the sequence it expects ─▶ acked, refused, or too old: lost
    read_from ─▶ the stream's end, of its leader ─▶ batches, of any replica ─▶ found …, ended
    connection lost, the append too old ─▶ lost; the next server

What holds:

- At most one append is awaited. What an earlier attempt is answered, after it was given up or sent
  again, is dropped.
- The limit of an append is its age. A limit of quiet would never pass while answers to anything
  else keep coming, which is what a lost record looks like under load.
- A server that leaves an append unanswered is left, too. It may be the stream's leader, cut off
  from the other servers: such a one goes on telling an end, accepts, and commits nothing.
- The end of the log comes from the stream's leader alone, and so does "there is nothing". Other
  replicas may be behind; what they have is committed, what they lack may exist.
- A request to any replica may reach one that is paused, and whoever asks again may reach it again.
  So after a batch of which nothing has come, the stream's leader is asked for one message after the
  other, for `NOT_DIRECT_S`. The limit is below the time after which a writer begins to read anew,
  or it would never pass.
- A leader that is cut off from the others does not know that it is none any more, and tells an end
  that is older than what others have been told. It says itself how long it has not heard them, and
  its end counts only while it hears a majority. (Followers hear it each second.)
- Even so, an end that is older than what this client has been told before is asked for again, for
  `OLD_END_LIMIT_S`. Only then is it believed, because a log that got shorter must be found out.
- A refusal that says no more than the one before is passed on after a delay: so are all that do not
  name the sequence (no leader, no quorum, a full stream), and those of a leader that has accepted
  another record and cannot commit it. Who reads and sends again at once would do nothing else.

Must not know what a record is.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from vouchmq.server.replication import jetstream
from vouchmq.server.replication.client import Client
from vouchmq.server.replication.jetstream import API, JetStreamError

if TYPE_CHECKING:
    import asyncio
    import random
    from collections.abc import Callable, Sequence

    from vouchmq.server.replication.addresses import Server
    from vouchmq.server.replication.connection import Options
    from vouchmq.server.replication.nats_protocol import Message
    from vouchmq.store.replication.log_edge import LogAnswers

log = structlog.get_logger(__name__)

APPEND_LIMIT_S: Final = 2.0
QUESTION_LIMIT_S: Final = 1.0
BATCH_LIMIT_S: Final = 2.0
NOT_DIRECT_S: Final = 10.0
PURGE_LIMIT_S: Final = 10.0
# Longer than any other question: nobody waits for it.
SIZE_LIMIT_S: Final = 10.0
BATCH_MESSAGES: Final = 256
BATCH_BYTES: Final = 4 * 1024 * 1024
RETRY_S: Final = 0.1
# A reading that gets nowhere for so long is tried at another server.
NO_PROGRESS_S: Final = 3.0
# A leader that has not heard the others for so long may be none any more.
HEARD_S: Final = 3.0
# Elections take up to nine seconds; an older end is believed after that.
OLD_END_LIMIT_S: Final = 15.0
FIRST_REFUSAL_DELAY_S: Final = 0.01
LONGEST_REFUSAL_DELAY_S: Final = 1.0


@dataclass(slots=True)
class _Reading:
    """A reading that is under way; `last` is 0 until the leader has told it."""

    token: int
    next: int
    # The only one that is read; "" for all.
    subject: str
    progress_at: float
    last: int = 0
    # The last message of the present batch.
    previous: int = 0
    request: int = 0


class NatsLog:
    """One stream, as the engine of a log; a `LogEdge`.

    Args:
        stream: its name
        servers: those that may be asked
        options: how
        loop: the running event loop
        chance: see `client.py`
        append_limit_s: the age at which an append is given up
    """

    def __init__(
        self,
        stream: str,
        servers: Sequence[Server],
        options: Options,
        loop: asyncio.AbstractEventLoop,
        chance: random.Random,
        *,
        append_limit_s: float = APPEND_LIMIT_S,
    ) -> None:
        self._stream = stream
        self._loop = loop
        self._append_limit_s = append_limit_s
        self.client = Client(
            servers, options, loop, chance, went_up=self._went_up, went_down=self._went_down
        )
        self._answers: LogAnswers
        # The token of the append that is under way, and its request.
        self._append: tuple[int, int] | None = None
        self._refusal: asyncio.TimerHandle | None = None
        # How long the next refusal is kept back; 0 when something has been appended or read since.
        self._refusal_delay_s = 0.0
        self._reading: _Reading | None = None
        self._retry: asyncio.TimerHandle | None = None
        # Whoever reads is not to be told more now; the reading that would have gone on.
        self._is_held = False
        self._waiting_reading: _Reading | None = None
        # The highest sequence that is known to be taken; since when the leader denies it.
        self._known_last = 0
        self._denied_since = 0.0
        self._is_stopped = False
        # Until then only the stream's leader is asked for messages.
        self._not_direct_until = 0.0
        # Why nothing is committed, in the engine's words; "" while appends and readings succeed.
        self._trouble = ""

    @property
    def trouble(self) -> str:
        """What keeps the log from answering; "" when nothing does."""
        return self.client.trouble or self._trouble

    def start(self, answers: LogAnswers) -> None:
        """Connect; from now on `answers` is told."""
        self._answers = answers
        self.client.start()

    def stop(self) -> None:
        """Close the connection; nothing is told any more."""
        self._is_stopped = True
        self._drop_append()
        self._drop_reading()
        self.client.stop()

    # LogEdge

    def send(self, token: int, subject: str, expected: int, parts: Sequence[bytes]) -> None:
        # Of one record, sent again: what an earlier attempt is answered is found by reading.
        self._drop_append()
        request = self.client.request(
            subject,
            parts,
            partial(self._append_answered, token),
            self._append_failed,
            limit_s=self._append_limit_s,
            headers=jetstream.append_headers(expected),
        )
        self._append = (token, request)

    def read_from(self, token: int, sequence: int) -> None:
        self._known_last = max(self._known_last, sequence - 1)
        self._read(token, sequence, "")

    def read_subject(self, token: int, subject: str) -> None:
        """Read everything that has this subject; answered as `read_from` is."""
        self._read(token, 1, subject)

    def hold_reading(self) -> None:
        """Ask for no further batch until `resume_reading`; of the present one the rest comes."""
        self._is_held = True

    def resume_reading(self) -> None:
        """Go on where the reading was held."""
        self._is_held = False
        reading, self._waiting_reading = self._waiting_reading, None
        if reading is not None and reading is self._reading:
            reading.progress_at = self.client.clock.now()
            self._go_on(reading)

    def purge(self, subject: str) -> None:
        self.client.request(
            f"{API}STREAM.PURGE.{self._stream}",
            [jetstream.purge_request(subject)],
            partial(self._purged, subject),
            lambda reason: log.info("replication.purge_lost", subject=subject, reason=reason),
            limit_s=PURGE_LIMIT_S,
        )

    # Beside the log

    def listen(self, subject: str, heard: Callable[[bytes], None]) -> None:
        """Pass on plain messages, which are not in the log and may get lost."""
        self.client.listen(subject, heard)

    def tell(self, subject: str, payload: bytes) -> None:
        """Send such a message."""
        self.client.tell(subject, payload)

    def ask_size(self, told: Callable[[dict[str, int]], None]) -> None:
        """Ask once how large the log is; nothing is told if that is not answered.

        The answer also says which server is the stream's leader: who appends is best there.
        """

        def answered(message: Message) -> bool:
            with suppress(JetStreamError):
                info = jetstream.parse_info(message)
                told(info.size())
                if info.hears_majority(HEARD_S):
                    self.client.prefer(info.cluster.leader)
            return True

        self.client.request(
            f"{API}STREAM.INFO.{self._stream}",
            [],
            answered,
            lambda _: None,
            limit_s=SIZE_LIMIT_S,
        )

    # The client's calls

    def _went_up(self) -> None:
        if self._reading is not None:
            self._reading.progress_at = self.client.clock.now()
            self._ask_end()

    def _went_down(self, _reason: str) -> None:
        self._drop_append()
        self._drop_reading()
        if not self._is_stopped:
            self._answers.lost()

    # Appending

    def _append_answered(self, token: int, message: Message) -> bool:
        try:
            sequence = jetstream.parse_ack(message, self._stream)
        except JetStreamError as error:
            self._on_refusal(token, error)
            return True
        self._append = None
        self._trouble = ""
        self._refusal_delay_s = 0.0
        self._known_last = max(self._known_last, sequence)
        self._answers.acked(token, sequence)
        return True

    def _on_refusal(self, token: int, error: JetStreamError) -> None:
        delay_s = self._refusal_delay_s
        self._refusal_delay_s = min(
            max(2 * delay_s, FIRST_REFUSAL_DELAY_S), LONGEST_REFUSAL_DELAY_S
        )
        if error.code != jetstream.WRONG_LAST_SEQUENCE:
            self._trouble = error.text
            delay_s = self._refusal_delay_s
        if delay_s:
            self._refusal = self._loop.call_later(delay_s, self._refuse, token)
        else:
            self._refuse(token)

    def _refuse(self, token: int) -> None:
        self._refusal = None
        self._append = None
        self._answers.refused(token)

    def _append_failed(self, reason: str) -> None:
        self._append = None
        self._trouble = reason
        if self.client.is_up:
            # By itself it would not be found out that this server is cut off from the others: as
            # long as it takes itself for the stream's leader, it answers everything else.
            self.client.leave_server(reason)
        else:
            self._answers.lost()

    def _drop_append(self) -> None:
        if self._refusal is not None:
            self._refusal.cancel()
            self._refusal = None
        if self._append is not None:
            self.client.forget(self._append[1])
            self._append = None

    # Reading

    def _read(self, token: int, first: int, subject: str) -> None:
        self._drop_reading()
        self._reading = _Reading(token, max(1, first), subject, self.client.clock.now())
        if self.client.is_up:
            self._ask_end()

    def _drop_reading(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._reading is not None:
            self.client.forget(self._reading.request)
            self._reading = None

    def _ask(
        self,
        what: str,
        payload: bytes,
        answered: Callable[[_Reading, Message], bool],
        limit_s: float,
        failed: Callable[[str], None] | None = None,
    ) -> None:
        """Ask something for the present reading; without an answer all is asked again."""
        reading = self._reading
        if reading is None:
            return
        reading.request = self.client.request(
            f"{API}{what}.{self._stream}",
            [payload],
            partial(self._answered, answered, reading),
            failed or self._ask_again,
            limit_s=limit_s,
        )

    def _answered(
        self, answered: Callable[[_Reading, Message], bool], reading: _Reading, message: Message
    ) -> bool:
        try:
            return answered(reading, message)
        except JetStreamError as error:
            self._ask_again(error.text)
            return True

    def _ask_again(self, reason: str) -> None:
        reading = self._reading
        if reading is None:
            return
        self._trouble = reason
        if self.client.clock.now() - reading.progress_at >= NO_PROGRESS_S:
            self.client.leave_server(reason)
        elif self._retry is None:
            self._retry = self._loop.call_later(RETRY_S, self._ask_end)

    def _ask_end(self) -> None:
        self._retry = None
        self._ask("STREAM.INFO", b"", self._end_told, QUESTION_LIMIT_S)

    def _end_told(self, reading: _Reading, message: Message) -> bool:
        info = jetstream.parse_info(message)
        if not info.hears_majority(HEARD_S):
            raise JetStreamError("its leader is cut off from the other servers, or they are gone")
        last = info.state.last_seq
        now = self.client.clock.now()
        if last < self._known_last:
            self._denied_since = self._denied_since or now
            if now - self._denied_since < OLD_END_LIMIT_S:
                raise JetStreamError(f"its leader knows {last} of {self._known_last} records")
        self._denied_since = 0.0
        self._known_last = max(self._known_last, last)
        reading.last = last
        self._go_on(reading)
        return True

    def _go_on(self, reading: _Reading) -> None:
        """Read what is missing, or end."""
        if reading.next > reading.last:
            self._end(reading)
            return
        if self._is_held:
            self._waiting_reading = reading
            return
        if self._loop.time() < self._not_direct_until:
            self._ask_leader(reading)
            return
        count = min(BATCH_MESSAGES, reading.last - reading.next + 1)
        reading.previous = 0
        request = jetstream.batch_request(reading.next, count, BATCH_BYTES, reading.subject)
        self._ask("DIRECT.GET", request, self._batch_answered, BATCH_LIMIT_S, self._batch_failed)

    def _batch_failed(self, reason: str) -> None:
        """The rest of a batch has not come, or nothing of it: whoever was asked may be paused."""
        reading = self._reading
        if reading is not None and not reading.previous and self.client.is_up:
            self._not_direct_until = self._loop.time() + NOT_DIRECT_S
            self._ask_leader(reading)
        else:
            self._ask_again(reason)

    def _batch_answered(self, reading: _Reading, message: Message) -> bool:
        """One message of a batch, or its end; whoever has it may be behind the leader."""
        try:
            stored = jetstream.parse_stored(message)
        except JetStreamError:
            self._ask_leader(reading)
            return True
        if stored is None:
            if reading.previous:
                self._go_on(reading)
            else:
                self._ask_leader(reading)
            return True
        if stored.previous != reading.previous or stored.sequence < reading.next:
            raise JetStreamError("a batch with a gap")
        reading.previous = stored.sequence
        return self._take(reading, stored)

    def _ask_leader(self, reading: _Reading) -> None:
        request = jetstream.next_request(reading.next, reading.subject)
        self._ask("STREAM.MSG.GET", request, self._next_answered, QUESTION_LIMIT_S)

    def _next_answered(self, reading: _Reading, message: Message) -> bool:
        try:
            stored = jetstream.parse_next(message)
        except JetStreamError as error:
            if error.code != jetstream.NO_MESSAGE_FOUND:
                raise
            # All behind is purged, or has other subjects.
            self._end(reading)
            return True
        if not self._take(reading, stored):
            self._go_on(reading)
        return True

    def _take(self, reading: _Reading, stored: jetstream.Stored) -> bool:
        """Pass a message on; True when the reading is over."""
        if stored.sequence <= reading.last:
            reading.next = stored.sequence + 1
            reading.progress_at = self.client.clock.now()
            self._refusal_delay_s = 0.0
            self._answers.found(reading.token, stored.sequence, stored.raw)
            if self._reading is not reading:
                return True
        if max(stored.sequence + 1, reading.next) > reading.last:
            self._end(reading)
            return True
        return False

    def _end(self, reading: _Reading) -> None:
        self.client.forget(reading.request)
        self._reading = None
        self._trouble = ""
        self._answers.ended(reading.token, reading.last)

    def _purged(self, subject: str, message: Message) -> bool:
        try:
            jetstream.parse_done(message)
        except JetStreamError as error:
            log.warning("replication.purge_failed", subject=subject, reason=error.text)
        return True
