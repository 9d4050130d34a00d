"""Which records count, and what is damage."""

from __future__ import annotations

import re

import pytest

from tests.unit.store.replication.chains import LOG_ID, Chain, renumbered
from vouchmq.store.errors import LogBroken, OtherLog
from vouchmq.store.replication import record
from vouchmq.store.replication.log_view import START, Jump, LogView


def a_log() -> list[bytes]:
    """Two epochs of two segments."""
    chain = Chain().claim().begin().blocks(b"one").blocks(b"two").begin().blocks(b"three").beat()
    return chain.claim("b").begin().blocks(b"four").beat().messages


def read(messages: list[bytes], view: LogView | None = None, first: int = 1) -> list[bytes]:
    """The bodies of all blocks that count."""
    view = view or LogView()
    found = [view.found(at, raw) for at, raw in enumerate(messages, first)]
    return [one.body for one in found if one is not None and one.header.kind == record.BLOCKS]


def test_a_whole_log_is_read_to_its_end() -> None:
    view = LogView(log_id=LOG_ID)
    bodies = read(a_log(), view)
    assert bodies == [b"head", b"one", b"two", b"head", b"three", b"head", b"four"]
    assert view.at.sequence == len(a_log())
    assert (view.at.epoch, view.at.generation, view.at.offset) == (2, 3, 8)
    assert (view.at.block, view.at.lsn) == (7, 70)
    assert view.void_count == 0
    view.ended(len(a_log()))


def test_a_reader_goes_on_where_another_was() -> None:
    messages = a_log()
    for cut in range(1, len(messages)):
        first = LogView()
        before = read(messages[:cut], first)
        second = LogView(first.at)
        assert before + read(messages[cut:], second, cut + 1) == read(messages)


def test_what_comes_again_is_passed_over() -> None:
    view = LogView()
    read(a_log(), view)
    at = view.at
    assert read(a_log(), view) == []
    assert view.at == at


@pytest.mark.parametrize("sequence", range(2, len(a_log())))
def test_a_record_that_is_gone_from_the_middle_is_noticed(sequence: int) -> None:
    """Also where everything behind it has moved up."""
    messages = a_log()
    del messages[sequence - 1]
    with pytest.raises(LogBroken):
        read(messages)


@pytest.mark.parametrize("sequence", range(2, len(a_log())))
def test_records_that_were_swapped_are_noticed(sequence: int) -> None:
    messages = a_log()
    messages[sequence - 1 : sequence + 1] = messages[sequence], messages[sequence - 1]
    with pytest.raises(LogBroken):
        read(messages)


@pytest.mark.parametrize("sequence", range(2, len(a_log())))
def test_a_record_that_is_another_with_the_same_number_is_noticed(sequence: int) -> None:
    messages = a_log()
    messages[sequence - 1] = renumbered(messages[sequence - 1], lsn=99)
    with pytest.raises(LogBroken, match="does not continue record"):
        read(messages)


@pytest.mark.parametrize("sequence", range(1, len(a_log()) + 1))
def test_a_record_with_a_flipped_bit_is_damage_and_not_void(sequence: int) -> None:
    messages = a_log()
    raw = bytearray(messages[sequence - 1])
    raw[-1] ^= 1
    messages[sequence - 1] = bytes(raw)
    with pytest.raises(LogBroken, match=f"message {sequence} of the log is no whole record"):
        read(messages)


@pytest.mark.parametrize("kept", range(1, len(a_log())))
def test_an_end_that_is_gone_is_noticed_by_who_has_read_it(kept: int) -> None:
    view = LogView()
    read(a_log(), view)
    with pytest.raises(LogBroken, match=f"ends with sequence {kept}, 12 was read already"):
        view.ended(kept)


@pytest.mark.parametrize("kept", range(1, len(a_log())))
def test_an_end_that_another_leader_has_written_over_is_noticed(kept: int) -> None:
    """Somebody had not read it, claimed, and has appended more than was lost."""
    other = LogView()
    read(a_log()[:kept], other)
    messages = a_log()[:kept]
    chain = Chain()
    chain.messages = messages
    chain.epoch, chain.number = other.at.epoch, other.at.number
    chain._checksum = other.at.checksum
    chain.generation = 9
    chain.claim("c").begin()
    while len(chain.messages) <= len(a_log()):
        chain.beat()
    view = LogView()
    read(a_log(), view)
    with pytest.raises(LogBroken):
        read(chain.messages, view)


def test_a_record_of_an_earlier_epoch_is_void() -> None:
    messages = a_log()
    view = LogView()
    read([*messages, messages[3], messages[1]], view)
    assert view.void_count == 2
    assert view.at.sequence == len(messages) + 2
    assert view.at.epoch == 2


def test_the_chain_goes_on_behind_what_is_void() -> None:
    chain = Chain().claim().begin().claim("b").begin()
    chain.messages.insert(4, chain.messages[2])
    assert read(chain.messages) == [b"head", b"head"]


def test_a_second_claim_of_an_epoch_is_void() -> None:
    chain = Chain().claim().begin()
    view = LogView()
    read([*chain.messages, renumbered(chain.messages[1], number=2)], view)
    assert view.void_count == 1


def test_an_earlier_epoch_that_goes_on_behind_a_later_claim_is_damage() -> None:
    """What the claim kept out would have had its number; more is another history."""
    chain = Chain().claim().begin().claim("b").begin()
    with pytest.raises(LogBroken, match="epoch 1 goes on in the log behind the claim of epoch 2"):
        read([*chain.messages, renumbered(chain.messages[2], number=5)])


def test_a_claim_that_does_not_continue_the_chain_is_damage() -> None:
    chain = Chain().claim().begin().claim("b")
    chain.messages[-1] = renumbered(chain.messages[-1], previous=1)
    with pytest.raises(LogBroken, match="record 3 at sequence 4 of the log does not continue"):
        read(chain.messages)


def test_records_of_an_epoch_without_a_claim_are_damage() -> None:
    chain = Chain().claim().begin()
    chain.epoch += 1
    chain.blocks(b"x")
    with pytest.raises(LogBroken, match="no claim of epoch 2, but records of it"):
        read(chain.messages)


def test_another_log_is_refused() -> None:
    with pytest.raises(OtherLog, match=re.escape(LOG_ID.hex())):
        read(a_log(), LogView(log_id=bytes(16)))


def test_a_log_without_its_origin_is_damage_and_so_is_one_with_two() -> None:
    with pytest.raises(LogBroken, match="begins with record 1, its origin is gone"):
        read(a_log()[1:], first=2)
    with pytest.raises(LogBroken, match="begins again at sequence 13"):
        read([*a_log(), a_log()[0]])


# Segments 1, 2 and 3 are at sequences 3 to 5, 6 to 8 and 10 to 12.
@pytest.mark.parametrize(
    ("purged", "landing"), [(range(6, 9), 9), (range(3, 9), 9), (range(3, 6), 6), (range(4, 6), 6)]
)
def test_a_reader_jumps_over_a_segment_that_is_purged(purged: range, landing: int) -> None:
    view = LogView()
    before = START
    for sequence, raw in enumerate(a_log(), 1):
        if sequence not in purged:
            view.found(sequence, raw)
        if sequence == purged.start - 1:
            before = view.at
    assert view.at.sequence == 12
    (jump,) = view.jumps
    assert jump.before == before
    assert jump.after.sequence == landing
    view.excuse(jump)
    assert view.jumps == []


@pytest.mark.parametrize("gone", [range(7, 8), range(3, 8), range(10, 11)])
def test_a_hole_that_ends_within_a_segment_is_damage(gone: range) -> None:
    view = LogView()
    with pytest.raises(LogBroken, match="in the middle of a segment"):
        for sequence, raw in enumerate(a_log(), 1):
            if sequence not in gone:
                view.found(sequence, raw)


def test_a_jump_with_more_records_than_sequences_is_damage() -> None:
    messages = a_log()
    view = LogView()
    for sequence in (1, 2, 3, 4, 5):
        view.found(sequence, messages[sequence - 1])
    with pytest.raises(LogBroken, match="record 40 at sequence 9 of the log cannot follow"):
        view.found(9, renumbered(messages[8], number=40))


def test_a_void_record_behind_a_hole_does_not_hide_it() -> None:
    messages = a_log()
    view = LogView()
    for sequence in (1, 2, 3, 4, 5):
        view.found(sequence, messages[sequence - 1])
    assert view.found(8, renumbered(messages[5], epoch=0)) is None
    assert view.found(9, messages[8]) is not None
    assert [type(jump) for jump in view.jumps] == [Jump]
