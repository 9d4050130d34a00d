"""One writer and an engine that does as the test says; `tests/replication` has the schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.unit.store.replication.chains import LOG_ID, Chain
from vouchmq.store.replication import record
from vouchmq.store.replication.log_view import LogView
from vouchmq.store.replication.log_writer import LogWriter
from vouchmq.store.replication.record import Record, Subjects

NONCE = bytes(16)


class Engine:
    """Keeps what it was asked; and what the writer told."""

    def __init__(
        self, chain: Chain | None = None, record_bytes: int = 64, *, gathers: bool = False
    ) -> None:
        self.messages = [*(chain or Chain()).messages]
        self.sent: list[tuple[int, str, int, bytes]] = []
        self.reads: list[tuple[int, int]] = []
        self.purged: list[str] = []
        self.said: list[object] = []
        view = LogView(log_id=LOG_ID)
        for sequence, raw in enumerate(self.messages, 1):
            view.found(sequence, raw)
        self.moments: list[Callable[[], None]] = []
        gather = self.moments.append if gathers else None
        self.writer = LogWriter(
            self, self, Subjects("t"), view.at, record_bytes=record_bytes, gather=gather
        )

    def send(self, token: int, subject: str, expected: int, parts: Sequence[bytes]) -> None:
        self.sent.append((token, subject, expected, b"".join(parts)))

    def read_from(self, token: int, sequence: int) -> None:
        self.reads.append((token, sequence))

    def purge(self, subject: str) -> None:
        self.purged.append(subject)

    def claimed(self) -> None:
        self.said.append("claimed")

    def committed(self, block: int, lsn: int) -> None:
        self.said.append((block, lsn))

    def deposed(self, epoch: int) -> None:
        self.said.append(f"deposed by {epoch}")

    def handed_over(self) -> None:
        self.said.append("handed over")

    def broken(self, reason: str) -> None:
        self.said.append(f"broken: {reason}")

    # What happens in the engine.

    def take(self) -> None:
        """Append what was sent last, if it is aimed at the end, and acknowledge it."""
        self.keep()
        self.writer.acked(self.sent[-1][0], len(self.messages))

    def keep(self) -> None:
        """The same, without a word."""
        _, _, expected, raw = self.sent[-1]
        assert expected == len(self.messages)
        self.messages.append(raw)

    def refuse(self) -> None:
        self.writer.refused(self.sent[-1][0])

    def answer(self) -> None:
        """Answer the last reading."""
        token, first = self.reads[-1]
        for sequence in range(first, len(self.messages) + 1):
            self.writer.found(token, sequence, self.messages[sequence - 1])
        self.writer.ended(token, len(self.messages))

    def last(self) -> Record:
        one = record.open_record(self.sent[-1][3])
        assert one is not None
        return one


def leader(record_bytes: int = 64, *, gathers: bool = False) -> Engine:
    """One that has claimed, behind the origin."""
    engine = Engine(record_bytes=record_bytes, gathers=gathers)
    engine.writer.claim("n", NONCE)
    engine.take()
    assert engine.said == ["claimed"]
    return engine


def append(engine: Engine, number: int, size: int = 10, *, is_wanted: bool = True) -> None:
    engine.writer.appended(1, (number - 1) * size, number, number * 10, [bytes(size)])
    if is_wanted:
        engine.writer.request()


def test_a_claim_expects_the_end_to_which_the_log_was_read() -> None:
    engine = Engine(Chain().claim().begin())
    engine.writer.claim("n", NONCE)
    _, subject, expected, _ = engine.sent[-1]
    assert (subject, expected) == ("vq.t.epochs", 3)
    checksum = engine.writer.at.checksum
    assert engine.last().header[:4] == (record.CLAIM, checksum, 2, 3)
    assert not engine.writer.is_leading


def test_nothing_is_sent_before_the_claim_is_committed() -> None:
    engine = Engine()
    engine.writer.claim("n", NONCE)
    append(engine, 1)
    engine.writer.beat()
    assert len(engine.sent) == 1
    engine.take()
    assert len(engine.sent) == 2


def test_one_record_is_under_way_and_the_rest_is_the_next() -> None:
    engine = leader()
    for number in (1, 2, 3):
        append(engine, number)
    assert len(engine.sent) == 2
    assert engine.sent[-1][2] == 2
    engine.take()
    assert engine.said[1:] == [(1, 10)]
    assert engine.last().body == bytes(20)
    assert engine.last().header.committed == 2
    engine.take()
    assert engine.said[2:] == [(3, 30)]
    assert len(engine.sent) == 3
    assert engine.writer.waiting_bytes == 0


def test_what_nobody_waits_for_rides_with_the_next_or_with_the_beat() -> None:
    engine = leader()
    append(engine, 1, is_wanted=False)
    assert len(engine.sent) == 1
    append(engine, 2)
    append(engine, 3, is_wanted=False)
    engine.take()
    assert (len(engine.sent), len(engine.last().body)) == (2, 20)
    engine.writer.beat()
    assert (len(engine.sent), len(engine.last().body)) == (3, 10)


def test_a_full_record_waits_for_nobody() -> None:
    engine = leader(record_bytes=30)
    for number in (1, 2, 3):
        append(engine, number, is_wanted=False)
    assert (len(engine.sent), len(engine.last().body)) == (2, 30)


def windows_in_step() -> Engine:
    """Eight messages were committed while eight others waited: a window of sixteen."""
    engine = leader(record_bytes=1000, gathers=True)
    append_count(engine, 1, 8)
    append_count(engine, 2, 16)
    engine.take()
    return engine


def append_count(engine: Engine, number: int, lsn: int) -> None:
    """A block is written up to this LSN, and somebody waits for it."""
    engine.writer.appended(1, (number - 1) * 10, number, lsn, [bytes(10)])
    engine.writer.request()


def test_a_record_waits_for_the_answers_to_the_one_before() -> None:
    engine = windows_in_step()
    assert (engine.said[1:], len(engine.sent)) == ([(1, 8)], 2)
    # Seven of eight have come, the waiting ones counted.
    append_count(engine, 3, 21)
    assert len(engine.sent) == 2
    append_count(engine, 4, 22)
    assert (len(engine.sent), engine.last().header.lsn) == (3, 22)
    engine.take()
    # All sixteen are in one record from now on.
    append_count(engine, 5, 27)
    assert len(engine.sent) == 3
    append_count(engine, 6, 38)
    assert (len(engine.sent), engine.last().header.lsn) == (4, 38)
    # What was asked for earlier says nothing about this record.
    for moment in engine.moments:
        moment()
    assert len(engine.sent) == 4


def test_answers_that_do_not_come_are_waited_for_less_and_less() -> None:
    engine = leader(record_bytes=1000, gathers=True)
    append_count(engine, 1, 8)
    waited: list[int] = []
    for at in range(300):
        # While a record is under way half as much comes as was in it, and nothing behind it.
        append_count(engine, 2 + at, 16 + 8 * at)
        engine.take()
        if len(engine.sent) == 2 + at:
            waited.append(at)
            engine.moments.pop()()
        assert len(engine.sent) == 3 + at
    assert waited == [0, 2, 6, 14, 30, 62, 126, 190, 254]


def test_a_confirm_for_each_waits_for_nothing() -> None:
    engine = leader(record_bytes=1000, gathers=True)
    for number in range(1, 20):
        append_count(engine, number, number)
        assert len(engine.sent) == number + 1
        engine.take()
    assert not engine.moments


def test_a_full_record_and_the_last_one_wait_for_no_answers() -> None:
    engine = leader(record_bytes=30, gathers=True)
    append_count(engine, 1, 100)
    append_count(engine, 2, 101)
    engine.take()
    assert len(engine.sent) == 2
    append_count(engine, 3, 102)
    append_count(engine, 4, 103)
    assert len(engine.sent) == 3
    engine.take()
    append_count(engine, 5, 104)
    engine.writer.hand_over()
    assert len(engine.sent) == 4
    engine.take()
    assert engine.last().header.kind == record.HANDOVER


def test_an_idle_leader_beats_with_a_record_of_its_own() -> None:
    engine = leader()
    engine.writer.beat()
    engine.writer.beat()
    assert engine.last().header.kind == record.BEAT
    assert len(engine.sent) == 2
    engine.take()
    assert engine.said == ["claimed"]


@pytest.mark.parametrize("sequence", [1, 2, 4, 99])
def test_an_ack_of_another_sequence_does_not_count(sequence: int) -> None:
    engine = leader()
    append(engine, 1)
    engine.writer.acked(engine.sent[-1][0], sequence)
    assert engine.said == ["claimed"]
    assert engine.reads[-1][1] == 3


def test_an_ack_of_an_earlier_record_does_not_count() -> None:
    engine = leader()
    append(engine, 1)
    engine.take()
    append(engine, 2)
    engine.writer.acked(engine.sent[-2][0], 4)
    engine.writer.refused(engine.sent[-2][0])
    assert engine.said[1:] == [(1, 10)]
    assert engine.reads == []


def test_a_refused_record_is_read_for_and_sent_again_as_it_was() -> None:
    engine = leader()
    append(engine, 1)
    engine.refuse()
    assert len(engine.sent) == 2
    engine.answer()
    assert engine.sent[-1][1:] == engine.sent[-2][1:]
    engine.take()
    assert engine.said[1:] == [(1, 10)]
    assert engine.writer.repeat_count == 1


def test_a_record_that_is_found_is_committed() -> None:
    engine = leader()
    append(engine, 1)
    engine.keep()
    engine.writer.lost()
    engine.answer()
    assert engine.said[1:] == [(1, 10)]
    append(engine, 2)
    assert engine.sent[-1][2] == 3


def test_an_answer_from_before_the_ack_says_nothing() -> None:
    """The reading ended before the record was there: the log has not lost its end."""
    engine = leader()
    append(engine, 1)
    engine.refuse()
    token, _ = engine.reads[-1]
    engine.take()
    append(engine, 2)
    engine.writer.ended(token, 2)
    assert engine.said[1:] == [(1, 10)]
    assert len(engine.sent) == 3


def test_a_lost_reading_is_asked_again() -> None:
    engine = leader()
    append(engine, 1)
    engine.refuse()
    engine.writer.lost()
    assert len(engine.reads) == 2
    first, _ = engine.reads[0]
    engine.writer.ended(first, 2)
    assert len(engine.sent) == 2
    engine.answer()
    assert len(engine.sent) == 3


def test_nothing_is_read_when_nothing_is_under_way() -> None:
    engine = leader()
    engine.writer.lost()
    engine.writer.tick()
    engine.writer.tick()
    assert engine.reads == []


def test_the_time_out_is_the_age_of_the_record_and_not_quiet() -> None:
    engine = leader()
    append(engine, 1)
    engine.writer.tick()
    append(engine, 2)
    assert engine.reads == []
    engine.writer.tick()
    assert len(engine.reads) == 1
    append(engine, 3)
    engine.writer.tick()
    engine.writer.tick()
    assert len(engine.reads) == 2


def test_a_claim_of_a_higher_epoch_deposes() -> None:
    engine = leader()
    append(engine, 1)
    other = Engine()
    other.messages = [*engine.messages]
    second = LogWriter(other, other, Subjects("t"), engine.writer.at)
    second.claim("other", NONCE)
    other.take()
    engine.messages = other.messages
    engine.refuse()
    engine.answer()
    assert engine.said[1:] == ["deposed by 2"]
    assert engine.writer.has_ended
    before = len(engine.sent), len(engine.reads), len(engine.said)
    append(engine, 2)
    engine.writer.beat()
    engine.writer.tick()
    engine.writer.tick()
    engine.writer.lost()
    engine.writer.acked(engine.sent[-1][0], 3)
    engine.refuse()
    engine.writer.purge(1)
    assert (len(engine.sent), len(engine.reads), len(engine.said)) == before
    assert engine.purged == []


def test_a_look_finds_a_claim_with_nothing_under_way() -> None:
    engine = leader()
    engine.writer.look()
    engine.writer.look()
    assert len(engine.reads) == 1
    engine.answer()
    engine.writer.look()
    assert engine.said == ["claimed"]
    other = Engine()
    other.messages = [*engine.messages]
    second = LogWriter(other, other, Subjects("t"), engine.writer.at)
    second.claim("other", NONCE)
    other.take()
    engine.messages = other.messages
    engine.answer()
    assert engine.said == ["claimed", "deposed by 2"]


def test_answers_to_a_look_tell_nothing_of_a_record_that_was_sent_since() -> None:
    engine = leader()
    engine.writer.look()
    append(engine, 1)
    sent = len(engine.sent)
    engine.answer()
    assert len(engine.sent) == sent
    engine.writer.lost()
    engine.answer()
    assert len(engine.sent) == sent + 1


def test_a_look_whose_connection_is_lost_is_made_again() -> None:
    engine = leader()
    engine.writer.look()
    engine.writer.lost()
    engine.writer.look()
    assert len(engine.reads) == 2


def test_a_claim_that_another_has_won_has_failed() -> None:
    """Also when its epoch is the same, and only the name and chance differ."""
    engine = Engine()
    engine.writer.claim("n", NONCE)
    engine.messages = Chain().claim("m").messages
    engine.refuse()
    engine.answer()
    assert engine.said == ["deposed by 1"]


def test_a_claim_behind_which_the_old_leader_went_on_has_failed() -> None:
    chain = Chain().claim("m").begin()
    engine = Engine(chain)
    engine.writer.claim("n", NONCE)
    engine.messages = chain.blocks(b"more").messages
    engine.refuse()
    engine.answer()
    assert engine.said == ["deposed by 1"]


def test_a_claim_that_is_found_is_won() -> None:
    engine = Engine()
    engine.writer.claim("n", NONCE)
    engine.keep()
    engine.writer.lost()
    engine.answer()
    assert engine.said == ["claimed"]


def test_void_records_are_passed_over_and_the_record_is_aimed_behind_them() -> None:
    chain = Chain().claim("m").begin()
    engine = Engine(chain)
    engine.writer.claim("n", NONCE)
    engine.take()
    append(engine, 1)
    engine.messages.append(chain.messages[2])
    engine.refuse()
    engine.answer()
    assert engine.sent[-1][2] == 5
    assert engine.sent[-1][3] == engine.sent[-2][3]
    engine.take()
    assert engine.said == ["claimed", (1, 10)]


def test_a_log_that_has_lost_its_end_is_broken() -> None:
    engine = leader()
    append(engine, 1)
    engine.messages.pop()
    engine.refuse()
    engine.answer()
    assert engine.said[1:] == ["broken: the log ends with sequence 1, 2 was read already"]
    assert engine.writer.has_ended


def test_a_record_of_its_own_epoch_that_it_never_sent_is_a_broken_log() -> None:
    engine = leader()
    chain = Chain().claim("n")
    assert chain.messages == engine.messages
    append(engine, 1)
    engine.messages = chain.begin().messages
    engine.refuse()
    engine.answer()
    assert engine.said[1:] == ["broken: the log has a record of epoch 1 that its leader never sent"]


def test_a_log_without_what_its_end_promises_is_broken_when_it_says_so_twice() -> None:
    engine = leader()
    append(engine, 1)
    engine.refuse()
    for _ in range(2):
        engine.writer.ended(engine.reads[-1][0], 5)
    assert engine.said[1:] == ["broken: the log ends with sequence 5, and has nothing behind 2"]


def test_what_a_newer_program_wrote_ends_the_epoch() -> None:
    engine = leader()
    append(engine, 1)
    engine.messages.append(b"VQRECD\x02\x00" + bytes(90))
    engine.refuse()
    engine.answer()
    assert engine.said[1:] == [
        "broken: the log has records of format 2, this program reads 1;"
        " start the version that wrote them"
    ]


def test_a_handover_comes_behind_everything_that_was_appended() -> None:
    engine = leader(record_bytes=20)
    for number in (1, 2, 3):
        append(engine, number, is_wanted=False)
    engine.writer.hand_over()
    engine.take()
    engine.take()
    assert engine.last().header.kind == record.HANDOVER
    engine.take()
    assert engine.said[1:] == [(2, 20), (3, 30), "handed over"]
    assert engine.writer.has_ended


def test_a_segment_is_purged_by_its_subject() -> None:
    engine = leader()
    engine.writer.purge(7)
    assert engine.purged == ["vq.t.7"]
