"""A directory that follows a log: refusals, damage, jumps; `tests/replication` cuts the power."""

from __future__ import annotations

import pytest

from tests.simulation.sim_disk import SimDisk
from tests.unit.store.journals import corrupt, open_on, segments_on
from tests.unit.store.replication.chains import LOG_ID, Chain, renumbered
from vouchmq.store.errors import LogBroken, NoMirror, OtherLog
from vouchmq.store.journal import records
from vouchmq.store.journal.records import BlockHeader
from vouchmq.store.journal.segment import segment_name
from vouchmq.store.replication.mirror import Mirror
from vouchmq.store.replication.position_file import PositionFile
from vouchmq.store.replication.record import BLOCKS, COMPLETE, COPIED, open_record, origin

SIZE = 4096


class BlockChain(Chain):
    """A log whose records hold real blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.oldest = 1
        self.safe = 0
        self.salt = 5

    def head(self, *retired: tuple[int, int, int]) -> BlockChain:
        """Begin a segment; retired are those that it declares gone."""
        self.generation += 1
        self.offset = 0
        payload = []
        if retired:
            numbers = [number for each in retired for number in each]
            packed = records.pack_numbers(numbers)
            payload = records.pack_section(records.RETIRED, len(retired), packed)
        return self._block(records.HEAD, b"".join(payload))

    def head_with_gap(self, first: int, last: int) -> BlockChain:
        """Begin a segment; blocks were lost before it."""
        self.generation += 1
        self.offset = 0
        packed = records.pack_numbers([first, last])
        payload = records.pack_section(records.KNOWN_GAPS, 1, packed)
        return self._block(records.HEAD, b"".join(payload))

    def batch(self, size: int = 20, parts: int = 1) -> BlockChain:
        return self._block(records.BATCH, bytes(size), parts)

    def _block(self, kind: int, payload: bytes, parts: int = 1) -> BlockChain:
        header = BlockHeader(
            kind,
            *(0, len(payload), self.generation, self.salt, self.block + 1),
            *(self.safe, self.oldest, self.lsn + 1, self.lsn + 11),
        )
        raw = records.seal(header, [payload]) + payload
        step = -(-len(raw) // parts)
        for part in range(parts):
            self.blocks(raw[part * step : (part + 1) * step], part + 1, parts)
        return self


def a_chain() -> BlockChain:
    """Three segments of two epochs; sequences 3 to 5, 6 to 7 and 9 to 11."""
    chain = BlockChain()
    chain.claim()
    chain.head().batch().batch()
    chain.head().batch()
    chain.claim("b")
    return chain.head().batch(200, parts=2)


def read(mirror: Mirror, messages: list[bytes], *, missing: range = range(0)) -> Mirror:
    """Have a mirror read what there is, to the end."""
    for sequence in range(mirror.next_sequence, len(messages) + 1):
        if sequence not in missing:
            mirror.found(sequence, messages[sequence - 1])
    mirror.ended(len(messages))
    return mirror


def octets_on(disk: SimDisk) -> dict[str, bytes]:
    return {name: bytes(disk.visible[name].visible) for name in segments_on(disk)}


def mirrored() -> tuple[SimDisk, list[bytes]]:
    disk = SimDisk()
    messages = a_chain().messages
    mirror = read(Mirror(disk, LOG_ID), messages)
    mirror.sync()
    mirror.close()
    return disk, messages


def test_it_is_the_log_byte_for_byte_and_complete_at_its_end() -> None:
    disk = SimDisk()
    messages = a_chain().messages
    mirror = Mirror(disk)
    for sequence, raw in enumerate(messages, 1):
        mirror.found(sequence, raw)
        assert not mirror.is_complete
    mirror.ended(len(messages))
    assert mirror.is_complete
    found = octets_on(disk)
    assert [*found] == [segment_name(n) for n in (1, 2, 3)]
    assert [len(octets) for octets in found.values()] == [280, 180, 360]
    assert mirror.next_sequence == len(messages) + 1


def test_what_comes_behind_the_end_makes_it_incomplete_until_the_next_end() -> None:
    chain = a_chain()
    mirror = read(Mirror(SimDisk()), chain.messages)
    chain.batch()
    mirror.found(len(chain.messages), chain.messages[-1])
    assert not mirror.is_complete
    mirror.ended(len(chain.messages))
    assert mirror.is_complete


def test_it_goes_on_where_it_was_synced() -> None:
    disk, messages = mirrored()
    disk.crash(3)
    before = octets_on(disk)
    mirror = Mirror(disk, LOG_ID)
    assert mirror.next_sequence == len(messages)
    assert read(mirror, messages).is_complete
    assert octets_on(disk) == before


def test_a_directory_with_a_journal_of_its_own_is_refused_and_left_alone() -> None:
    disk = SimDisk()
    journal, _ = open_on(disk)
    journal.append_run((1,), b"tail", [b"mine"])
    journal.write()
    journal.close()
    before = disk.listdir()
    with pytest.raises(NoMirror, match="a journal that follows no log"):
        Mirror(disk, LOG_ID)
    assert disk.listdir() == before


def test_another_log_is_refused_before_and_while_it_is_read() -> None:
    disk, _ = mirrored()
    with pytest.raises(NoMirror, match="the directory follows the log 3031"):
        Mirror(disk, bytes([1]) * 16)
    fresh = Mirror(SimDisk(), bytes([1]) * 16)
    with pytest.raises(OtherLog):
        read(fresh, a_chain().messages)


def test_a_log_that_has_lost_its_end_touches_nothing() -> None:
    disk, messages = mirrored()
    before = octets_on(disk)
    with pytest.raises(LogBroken, match="ends with sequence 7, 11 was read already"):
        read(Mirror(disk, LOG_ID), messages[:7])
    assert octets_on(disk) == before


def test_a_log_with_another_record_at_the_position_touches_nothing() -> None:
    disk, messages = mirrored()
    before = octets_on(disk)
    messages[-1] = renumbered(messages[-1], lsn=99)
    with pytest.raises(LogBroken, match="another record at sequence 11"):
        read(Mirror(disk, LOG_ID), messages)
    assert octets_on(disk) == before


def test_a_log_without_the_record_at_the_position_is_broken_when_it_says_so_twice() -> None:
    disk, messages = mirrored()
    mirror = Mirror(disk, LOG_ID)
    mirror.ended(len(messages))
    assert not mirror.is_complete
    with pytest.raises(LogBroken, match="no record at sequence 11 any more"):
        mirror.ended(len(messages))


def led(chain: BlockChain) -> SimDisk:
    """A directory whose node was at sequence 7 when it claimed, and has then written this."""
    disk = SimDisk()
    messages = a_chain().messages[:7]
    mirror = read(Mirror(disk, LOG_ID), messages)
    mirror.sync()
    mirror.close()
    read(Mirror(disk, LOG_ID), chain.messages)
    return disk


def a_chain_until_the_second_claim() -> BlockChain:
    chain = BlockChain()
    chain.claim()
    chain.head().batch().batch()
    chain.head().batch()
    return chain


def test_what_a_leader_wrote_and_never_committed_is_cut_off() -> None:
    own = a_chain_until_the_second_claim()
    own.salt = 9
    own.claim("me")
    own.head().batch(100).head()
    disk = led(own)
    assert len(segments_on(disk)) == 4
    messages = a_chain().messages
    mirror = read(Mirror(disk, LOG_ID), messages)
    assert mirror.is_complete
    fresh = SimDisk()
    read(Mirror(fresh, LOG_ID), messages)
    assert octets_on(disk) == octets_on(fresh)


def test_what_a_leader_wrote_and_the_log_has_is_kept() -> None:
    disk = led(a_chain())
    calls = disk.calls["write"]
    assert read(Mirror(disk, LOG_ID), a_chain().messages).is_complete
    assert disk.calls["write"] == calls


def test_blocks_that_were_safe_are_never_cut_off_for_a_log_without_them() -> None:
    """The log has lost them behind the position, and somebody else has claimed there."""
    own = a_chain_until_the_second_claim()
    own.salt = 9
    own.claim("me")
    own.head().batch()
    own.safe = own.block
    own.batch()
    disk = led(own)
    before = octets_on(disk)
    with pytest.raises(LogBroken, match=r"does not have block 7, .* without ha_log"):
        read(Mirror(disk, LOG_ID), a_chain().messages)
    assert octets_on(disk) == before
    with pytest.raises(LogBroken, match="does not have block 7"):
        read(Mirror(disk, LOG_ID), a_chain().messages[:7])
    assert octets_on(disk) == before


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("at", [30, 150])
def test_a_segment_that_has_rotted_is_read_again(number: int, at: int) -> None:
    disk, messages = mirrored()
    before = octets_on(disk)
    corrupt(disk, segment_name(number), at)
    mirror = Mirror(disk, LOG_ID)
    assert mirror.damaged
    heal(mirror, a_chain())
    assert read(mirror, messages).is_complete
    assert octets_on(disk) == before


def test_a_segment_that_is_not_there_is_read_again() -> None:
    disk, messages = mirrored()
    before = octets_on(disk)
    disk.unlink(segment_name(2))
    mirror = Mirror(disk, LOG_ID)
    assert 2 in mirror.damaged
    heal(mirror, a_chain())
    assert read(mirror, messages).is_complete
    assert octets_on(disk) == before


def test_a_segment_that_stays_damaged_keeps_the_node_from_claiming() -> None:
    disk, messages = mirrored()
    corrupt(disk, segment_name(1), 30)
    mirror = Mirror(disk, LOG_ID)
    healing = mirror.heal(1)
    assert not mirror.healed(healing)
    assert not read(mirror, messages).is_complete
    assert segment_name(1) in disk.listdir()


def heal(mirror: Mirror, chain: Chain) -> None:
    for generation in mirror.damaged:
        healing = mirror.heal(generation)
        for raw in chain.messages:
            one = open_record(raw)
            assert one is not None
            if one.header.kind == BLOCKS and one.header.generation == generation:
                healing.put(one.header.offset, one.body)
        assert mirror.healed(healing)
    assert mirror.damaged == []


def test_a_jump_over_a_segment_that_is_older_than_the_oldest_is_excused() -> None:
    chain = BlockChain()
    chain.claim()
    chain.head().batch().batch()
    chain.oldest = 2
    chain.head().batch()
    disk = SimDisk()
    mirror = read(Mirror(disk, LOG_ID), chain.messages, missing=range(3, 6))
    assert mirror.is_complete
    assert segments_on(disk) == [segment_name(2)]


def test_a_jump_that_nobody_declares_gone_keeps_the_node_from_claiming() -> None:
    messages = a_chain().messages
    disk = SimDisk()
    mirror = read(Mirror(disk, LOG_ID), messages, missing=range(3, 6))
    assert not mirror.is_complete
    mirror.sync()
    at = PositionFile(disk).at
    assert at is not None
    assert at.sequence == 2, "a later start has to see the jump as well"


def test_a_jump_over_a_segment_that_was_retired_early_is_excused_by_a_later_head() -> None:
    chain = BlockChain()
    chain.claim()
    chain.head().batch()
    chain.head().batch()
    chain.head()
    first = [*chain.messages]
    chain.head((2, 3, 4))
    mirror = Mirror(SimDisk(), LOG_ID)
    read(mirror, first, missing=range(5, 7))
    assert not mirror.is_complete
    assert read(mirror, chain.messages).is_complete


def a_copied_chain() -> BlockChain:
    """A log that begins with a directory of which a segment was gone: blocks 3 and 4."""
    chain = BlockChain()
    chain.messages[0] = origin(LOG_ID, COPIED)
    chain._checksum = chain._checksum_of(chain.messages[0])
    chain.claim("copy")
    chain.head().batch()
    chain.generation += 1
    chain.block += 2
    return chain


def test_a_log_that_is_not_complete_is_led_by_nobody() -> None:
    chain = a_copied_chain()
    chain.head((2, 3, 4))
    disk = SimDisk()
    mirror = read(Mirror(disk, LOG_ID), chain.messages)
    assert not mirror.is_complete
    chain._add(COMPLETE, b"")
    assert read(mirror, chain.messages).is_complete
    assert segments_on(disk) == [segment_name(1), segment_name(3)]


def test_blocks_that_a_copy_lacks_have_to_be_declared_gone() -> None:
    chain = a_copied_chain()
    chain.head().batch()._add(COMPLETE, b"")
    disk = SimDisk()
    mirror = read(Mirror(disk, LOG_ID), chain.messages)
    assert not mirror.is_complete
    mirror.sync()
    at = PositionFile(disk).at
    assert at is not None
    assert at.block == 2, "a later start has to see the gap as well"
    chain.head((2, 3, 4))
    assert read(mirror, chain.messages).is_complete


def test_blocks_that_were_lost_before_the_copy_are_missed_by_nobody() -> None:
    chain = a_copied_chain()
    chain.head_with_gap(3, 4)._add(COMPLETE, b"")
    disk = SimDisk()
    mirror = read(Mirror(disk, LOG_ID), chain.messages)
    assert mirror.is_complete
    mirror.sync()
    assert read(Mirror(disk, LOG_ID), chain.messages).is_complete


def test_blocks_are_missing_only_where_a_segment_begins() -> None:
    chain = a_copied_chain()
    chain.head()
    chain.block += 1
    chain.batch()
    with pytest.raises(LogBroken, match="has block 7 behind block 5"):
        read(Mirror(SimDisk(), LOG_ID), chain.messages)


def test_a_copy_whose_segments_are_purged_goes_on_with_what_completes_it() -> None:
    chain = BlockChain()
    chain.messages[0] = origin(LOG_ID, COPIED)
    chain._checksum = chain._checksum_of(chain.messages[0])
    chain.claim("copy")
    chain.head().batch()._add(COMPLETE, b"")
    chain.claim("a")
    chain.oldest = 2
    chain.head().batch()
    mirror = read(Mirror(SimDisk(), LOG_ID), chain.messages, missing=range(3, 5))
    assert mirror.is_complete


def test_segments_that_are_gone_are_removed_when_that_is_synced() -> None:
    chain = a_chain()
    disk = SimDisk()
    mirror = read(Mirror(disk, LOG_ID), chain.messages)
    mirror.sync()
    chain.oldest = 3
    chain.batch()
    read(mirror, chain.messages)
    assert len(segments_on(disk)) == 3
    mirror.sync()
    assert segments_on(disk) == [segment_name(3)]
    assert read(Mirror(disk, LOG_ID), chain.messages).is_complete


def test_a_block_that_its_leader_never_finished_is_none() -> None:
    chain = a_chain_until_the_second_claim()
    chain.batch(200, parts=3)
    chain.messages.pop()
    chain.number -= 1
    chain.block -= 1
    chain.lsn -= 10
    chain._checksum = chain._checksum_of(chain.messages[-1])
    chain.claim("b")
    chain.head()
    disk = SimDisk()
    assert read(Mirror(disk, LOG_ID), chain.messages).is_complete
    assert len(octets_on(disk)[segment_name(2)]) == 180


@pytest.mark.parametrize("offset", [100, 281])
def test_a_record_that_does_not_continue_its_segment_is_a_broken_log(offset: int) -> None:
    chain = a_chain_until_the_second_claim()
    messages = chain.messages[:4]
    messages.append(renumbered(chain.messages[4], offset=offset))
    with pytest.raises(LogBroken, match=f"belongs to offset {offset} of"):
        read(Mirror(SimDisk(), LOG_ID), messages)


def test_a_block_with_another_number_is_a_broken_log() -> None:
    chain = BlockChain()
    chain.claim()
    chain.head()
    chain.block += 1
    chain.batch()
    with pytest.raises(LogBroken, match="has block 3 behind block 1"):
        read(Mirror(SimDisk(), LOG_ID), chain.messages)
