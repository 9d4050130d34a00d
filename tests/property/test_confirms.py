"""Confirms under any interleaving: each number settled once, and never a word too early."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pamqp import commands

from tests import wire
from vouchmq.server.broker.counters import ConfirmTimes
from vouchmq.server.channel.confirms import Confirms


class ConfirmsMachine(RuleBasedStateMachine):
    """A strict client's view, beside the true state of each number (CONF-04, CONF-08)."""

    def __init__(self) -> None:
        super().__init__()
        self.confirms = Confirms(1, ConfirmTimes())
        self.pending: dict[int, int] = {}  # number → LSN, 0 when due at once
        self.last = 0
        self.lsn = 0
        self.watermark = 0

    @rule(count=st.integers(1, 5), gap=st.integers(0, 3))
    def publish_persistent(self, count: int, gap: int) -> None:
        self.lsn += count + gap
        self._published(count, self.lsn)

    @rule(count=st.integers(1, 5))
    def publish_transient(self, count: int) -> None:
        self._published(count, 0)

    def _published(self, count: int, lsn: int) -> None:
        self.confirms.published(count, lsn)
        for _ in range(count):
            self.last += 1
            self.pending[self.last] = lsn

    @rule(share=st.floats(0, 1))
    def sync(self, share: float) -> None:
        self.watermark += round((self.lsn - self.watermark) * share)
        self._hear(self.confirms.release(self.watermark), commands.Basic.Ack)
        assert all(lsn > self.watermark for lsn in self.pending.values())

    @rule()
    def end_turn(self) -> None:
        self._hear(self.confirms.release(self.watermark), commands.Basic.Ack)
        assert all(lsn > self.watermark for lsn in self.pending.values())

    @rule()
    def refuse(self) -> None:
        self._hear(self.confirms.refuse(), commands.Basic.Nack)
        assert not any(self.pending.values())

    def _hear(self, octets: bytes, word: type[commands.Basic.Ack | commands.Basic.Nack]) -> None:
        for _, what in wire.hear(octets):
            assert isinstance(what, word)
            number = what.delivery_tag
            assert number in self.pending, f"{number} is settled or was never published"
            upto = [each for each in self.pending if each <= number]
            for each in upto if what.multiple else [number]:
                lsn = self.pending.pop(each)
                if isinstance(what, commands.Basic.Ack):
                    assert lsn <= self.watermark, f"{each} is acked before it is on disk"
                else:
                    assert lsn, f"{each} is nacked though nothing had to be stored"

    @invariant()
    def counts_agree(self) -> None:
        assert self.confirms.unconfirmed_count == len(self.pending)
        assert self.confirms.waits == any(self.pending.values())
        assert self.confirms.last == self.last


ConfirmsMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestConfirms = ConfirmsMachine.TestCase
