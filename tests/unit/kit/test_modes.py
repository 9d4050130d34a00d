"""Which options go together, and ActiveMQ's fractions of the prefetch."""

from __future__ import annotations

import pytest

from vouchmq.kit.modes import Mode, Options, check_prefetch, mode_named


@pytest.mark.parametrize("name", ["auto", "client", "dups_ok", "transacted", "individual"])
def test_modes_have_the_names_of_the_kit(name: str) -> None:
    assert mode_named(name).value == name
    assert mode_named(mode_named(name)).value == name


def test_an_unknown_mode_is_told_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match="no mode 'session'; there are auto, client, dups_ok"):
        mode_named("session")


@pytest.mark.parametrize(("prefetch", "size"), [(100, 65), (20, 13), (10, 7), (3, 2), (1, 1)])
def test_optimized_acks_go_at_sixty_five_percent(prefetch: int, size: int) -> None:
    """REDELIVER-32: the first whole number that is not below 0.65 of the prefetch."""
    options = Options(Mode.AUTO, prefetch, optimize_ack=True)
    assert options.batch_size(is_topic_like=False) == size


@pytest.mark.parametrize("optimize_ack", [False, True])
@pytest.mark.parametrize(("prefetch", "size"), [(100, 50), (9, 5), (1, 1)])
def test_lazy_acks_of_topics_go_at_half(prefetch: int, size: int, optimize_ack: bool) -> None:
    """REDELIVER-35: on a topic-like queue, whatever optimize_ack says."""
    options = Options(Mode.DUPS_OK, prefetch, optimize_ack)
    assert options.batch_size(is_topic_like=True) == size


def test_lazy_acks_of_work_queues_are_those_of_auto() -> None:
    """REDELIVER-35."""
    assert Options(Mode.DUPS_OK, 100).batch_size(is_topic_like=False) == 1
    assert Options(Mode.DUPS_OK, 100, optimize_ack=True).batch_size(is_topic_like=False) == 65


def test_optimizing_is_forced_off_in_transactions() -> None:
    """REDELIVER-36."""
    options = Options(Mode.TRANSACTED, 100, optimize_ack=True)
    assert options.batch_size(is_topic_like=False) == 1


@pytest.mark.parametrize("mode", [Mode.CLIENT, Mode.INDIVIDUAL])
def test_optimizing_goes_with_no_other_mode(mode: Mode) -> None:
    with pytest.raises(ValueError, match="optimize_ack goes with the modes auto and dups_ok"):
        Options(mode, 100, optimize_ack=True)


def test_optimizing_needs_a_prefetch() -> None:
    with pytest.raises(ValueError, match="optimize_ack needs prefetch > 0"):
        Options(Mode.AUTO, 0, optimize_ack=True)


@pytest.mark.parametrize(
    ("prefetch", "threshold", "extended"),
    [(100, 50, 150), (10, 5, 15), (3, 2, 4), (2, 1, 3), (60000, 30000, 65535)],
)
def test_the_prefetch_is_extended_by_half(prefetch: int, threshold: int, extended: int) -> None:
    """REDELIVER-39."""
    for mode in (Mode.CLIENT, Mode.TRANSACTED):
        options = Options(mode, prefetch)
        assert (options.extension_threshold, options.extended_prefetch) == (threshold, extended)


def test_no_extension_where_it_would_change_nothing() -> None:
    assert Options(Mode.CLIENT, 1).extension_threshold == 0
    assert Options(Mode.CLIENT, 0).extension_threshold == 0
    assert Options(Mode.CLIENT, 65535).extension_threshold == 0
    assert Options(Mode.AUTO, 100).extension_threshold == 0
    assert Options(Mode.INDIVIDUAL, 100).extension_threshold == 0
    without = Options(Mode.CLIENT, 100, prefetch_extension=False)
    assert (without.extension_threshold, without.limits_channel) == (0, False)


@pytest.mark.parametrize("prefetch", [-1, 65536])
def test_a_prefetch_has_sixteen_bits(prefetch: int) -> None:
    """QOS-12."""
    with pytest.raises(ValueError, match="prefetch must be 0 to 65535"):
        check_prefetch(prefetch)


@pytest.mark.parametrize("prefetch", [True, "10", 1.0, None])
def test_a_prefetch_is_an_integer(prefetch: object) -> None:
    with pytest.raises(TypeError, match="prefetch must be an integer"):
        check_prefetch(prefetch)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_timeout_is_a_length_of_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="optimize_ack_timeout must be at least"):
        Options(Mode.AUTO, 10, True, seconds)


def test_options_are_not_taken_for_others() -> None:
    with pytest.raises(TypeError, match="optimize_ack must be a bool"):
        Options(Mode.AUTO, 10, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="prefetch_extension must be a bool"):
        Options(Mode.CLIENT, 10, prefetch_extension=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="optimize_ack_timeout must be a number of seconds"):
        Options(Mode.AUTO, 10, True, "300ms")  # type: ignore[arg-type]
