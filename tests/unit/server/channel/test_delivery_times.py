"""When deliveries were made, as far as a look each second can tell."""

from __future__ import annotations

from vouchmq.server.channel.timeouts import MOST_LOOKS, DeliveryTimes


def test_the_first_look_behind_a_delivery_tells_when_it_was() -> None:
    times = DeliveryTimes()
    times.look(next_tag=3, oldest_tag=1, now_ms=1000)
    times.look(next_tag=3, oldest_tag=1, now_ms=2000)
    times.look(next_tag=7, oldest_tag=1, now_ms=3000)
    assert [times.since(tag) for tag in (1, 2, 3, 6, 7)] == [1000, 1000, 3000, 3000, 0]


def test_looks_at_what_is_settled_are_forgotten() -> None:
    times = DeliveryTimes()
    for number in range(1, 100):
        times.look(next_tag=number * 10, oldest_tag=number * 10 - 5, now_ms=number)
    assert len(times._tags) == 1
    assert times.since(985) == 99


def test_one_old_delivery_on_a_busy_channel_does_not_fill_memory() -> None:
    times = DeliveryTimes()
    day_s = 86_400
    for second in range(1, day_s):
        times.look(next_tag=second * 100, oldest_tag=1, now_ms=second * 1000)
    assert len(times._tags) <= MOST_LOOKS
    late = [times.since(second * 100 - 1) / 1000 - second for second in range(1, day_s, 97)]
    assert min(late) >= 0
    # By an eighth of the time that they are held.
    ages = [day_s - second for second in range(1, day_s, 97)]
    assert all(by <= max(2, age / 8) for by, age in zip(late, ages, strict=True))
