"""Publisher confirms: what may be said when, and how few frames say it."""

from __future__ import annotations

from pamqp import commands

from tests import wire
from vouchmq.server.broker.counters import ConfirmTimes
from vouchmq.server.channel.confirms import Confirms


def told(octets: bytes) -> list[tuple[str, int, bool]]:
    """Confirms as (word, number, multiple)."""
    found = []
    for channel, what in wire.hear(octets):
        assert channel == 3
        assert isinstance(what, commands.Basic.Ack | commands.Basic.Nack)
        word = "ack" if isinstance(what, commands.Basic.Ack) else "nack"
        found.append((word, what.delivery_tag or 0, bool(what.multiple)))
    return found


def test_first_number_is_one_and_counts_every_publish() -> None:
    confirms = Confirms(3, ConfirmTimes())
    confirms.published(1, 0)
    assert told(confirms.release(0)) == [("ack", 1, False)]
    confirms.published(3, 0)
    assert told(confirms.release(0)) == [("ack", 4, True)]
    assert confirms.last == 4


def test_confirm_waits_for_the_watermark() -> None:
    confirms = Confirms(3, ConfirmTimes())
    confirms.published(10, 17)
    assert confirms.release(16) == b""
    assert (confirms.waits, confirms.unconfirmed_count) == (True, 10)
    assert told(confirms.release(17)) == [("ack", 10, True)]
    assert (confirms.waits, confirms.unconfirmed_count) == (False, 0)


def test_steady_publisher_is_confirmed_while_it_publishes() -> None:
    """CONF-06, CONF-09: what is synced is confirmed, though more has come meanwhile."""
    confirms = Confirms(3, ConfirmTimes())
    confirms.published(10, 10)
    confirms.published(10, 20)
    assert told(confirms.release(10)) == [("ack", 10, True)]
    confirms.published(10, 30)
    assert told(confirms.release(20)) == [("ack", 20, True)]
    assert told(confirms.release(30)) == [("ack", 30, True)]


def test_ranges_synced_together_are_one_frame() -> None:
    confirms = Confirms(3, ConfirmTimes())
    for lsn in range(1, 6):
        confirms.published(1, lsn)
    assert told(confirms.release(5)) == [("ack", 5, True)]


def test_multiple_never_speaks_for_a_pending_number() -> None:
    confirms = Confirms(3, ConfirmTimes())
    confirms.published(2, 0)
    confirms.published(1, 9)
    confirms.published(2, 0)
    assert told(confirms.release(8)) == [("ack", 2, True), ("ack", 4, False), ("ack", 5, False)]
    assert told(confirms.release(9)) == [("ack", 3, False)]


def test_multiple_may_pass_over_what_is_settled_already() -> None:
    confirms = Confirms(3, ConfirmTimes())
    confirms.published(1, 9)
    confirms.published(1, 0)
    assert told(confirms.release(0)) == [("ack", 2, False)]
    assert told(confirms.release(9)) == [("ack", 1, False)]
    confirms.published(2, 0)
    assert told(confirms.release(9)) == [("ack", 4, True)]
    confirms.published(1, 0)
    assert told(confirms.release(9)) == [("ack", 5, False)]


def test_nothing_is_said_twice() -> None:
    confirms = Confirms(3, ConfirmTimes())
    confirms.published(1, 0)
    assert confirms.release(5)
    assert confirms.release(5) == b""
    assert confirms.refuse() == b""


def test_refusal_nacks_what_waits_and_only_that() -> None:
    confirms = Confirms(3, ConfirmTimes())
    confirms.published(2, 5)
    confirms.published(1, 0)
    confirms.published(2, 6)
    assert told(confirms.refuse()) == [
        ("nack", 1, False),
        ("nack", 2, False),
        ("nack", 4, False),
        ("nack", 5, False),
    ]
    assert told(confirms.release(0)) == [("ack", 3, False)]


def test_refusal_of_a_whole_range_is_one_nack_with_requeue_set() -> None:
    confirms = Confirms(3, ConfirmTimes())
    confirms.published(1, 1)
    confirms.release(1)
    confirms.published(5, 9)
    octets = confirms.refuse()
    assert told(octets) == [("nack", 6, True)]
    ((_, nack),) = wire.hear(octets)
    assert isinstance(nack, commands.Basic.Nack)
    assert nack.requeue
