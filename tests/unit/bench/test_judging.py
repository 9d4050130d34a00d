"""What the bench concludes from figures: counts that must agree, verdicts, flags."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench import process_tree
from bench.client import Address
from bench.generator import Percentiles, Published, Received, Result
from bench.measure import CountError, Round, check, due_of, values_of
from bench.report import limited_by_generator, verdicts
from bench.run import Row
from bench.scenarios import catalogue
from bench.servers import Server, ServerError
from bench.shape import Consumer, Message, Mode, Publisher, Queue, Shape
from bench.targets import IDLE, TARGETS

NOTHING: Percentiles = {"count": 0, "mean_us": 0, "p50_us": 0, "p99_us": 0, "max_us": 0}
SHAPE = Shape(
    (Queue("a"), Queue("b")),
    (Publisher(("a", "b"), 16, 100, mode=Mode.WINDOW),),
    (Consumer("a", 16, ack_every=1), Consumer("b", 16, ack_every=1)),
)


def sent(count: int, confirmed: int, last_s: float = 1.0) -> Published:
    """Say what a publisher did."""
    return {"sent": count, "confirmed": confirmed, "first_s": 0.0, "last_s": last_s}


def got(count: int, acked: int, last_s: float = 2.0, *, body_bytes: int = 0) -> Received:
    """Say what a consumer did."""
    return {
        "received": count,
        "acked": acked,
        "body_bytes": body_bytes,
        "first_s": 0.1,
        "last_s": last_s,
    }


def result(publishers: list[Published], consumers: list[Received]) -> Result:
    """Put a generator's answer together."""
    return {
        "error": "",
        "cycles": 0,
        "churn_s": 0.0,
        "confirm": NOTHING,
        "delivery": NOTHING,
        "publishers": publishers,
        "consumers": consumers,
        "generator_cpu_s": 0.5,
    }


def row(name: str, value: str, **measured: list[float]) -> Row:
    """Make a row of rounds with one value each."""
    (scenario,) = catalogue.chosen([name])
    made = Row(scenario)
    for server, numbers in measured.items():
        made.rounds += [Round(server, {value: number}) for number in numbers]
    return made


def test_routing_keys_in_turn_say_how_much_each_queue_is_due() -> None:
    assert due_of(SHAPE, result([sent(101, 101)], [])) == {"a": 51, "b": 50}


def test_agreeing_counts_pass() -> None:
    check(SHAPE, result([sent(101, 101)], [got(51, 51), got(50, 50)]), 0)


@pytest.mark.parametrize(
    ("told", "first", "second", "uncounted", "expected"),
    [
        (sent(101, 100), got(51, 51), got(50, 50), 0, "100 confirmed of 101"),
        (sent(101, 101), got(50, 50), got(51, 51), 0, "a: 50 of 51 arrived"),
        (sent(101, 101), got(51, 50), got(50, 50), 0, "a: acknowledged up to 50 only"),
        (sent(101, 101), got(51, 51), got(50, 50), 1, "1 deliveries more"),
        (sent(0, 0), got(0, 0), got(0, 0), 0, "nothing was sent"),
    ],
)
def test_disagreeing_counts_are_an_error(
    told: Published, first: Received, second: Received, uncounted: int, expected: str
) -> None:
    with pytest.raises(CountError, match=expected):
        check(SHAPE, result([told], [first, second]), uncounted)


def test_consumers_of_one_queue_are_counted_together() -> None:
    shape = Shape(
        (Queue("a"),), (Publisher(("a",), 16, 100, mode=Mode.WINDOW),), (Consumer("a", 16),) * 2
    )
    check(shape, result([sent(100, 100)], [got(99, 0), got(1, 0)]), 0)
    with pytest.raises(CountError, match="a: 101 of 100 arrived"):
        check(shape, result([sent(100, 100)], [got(99, 0), got(2, 0)]), 0)


def test_a_consumer_of_several_queues_is_due_what_goes_to_any_of_them() -> None:
    both = replace(SHAPE, consumers=(Consumer("a", 16, more_queues=("b",)),))
    check(both, result([sent(101, 101)], [got(101, 0)]), 0)
    with pytest.raises(CountError, match="a, b: 51 of 101 arrived"):
        check(both, result([sent(101, 101)], [got(51, 0)]), 0)


def test_bodies_that_differ_in_size_are_added_up() -> None:
    messages = (Message("k", b"", 10), Message("l", b"", 300))
    publisher = Publisher((), 300, 100, exchange="e", mode=Mode.WINDOW, messages=messages)
    shape = Shape((Queue("a"),), (publisher,), (Consumer("a", 300, smallest_size=10),))
    check(shape, result([sent(3, 3)], [got(3, 0, body_bytes=320)]), 0)
    with pytest.raises(CountError, match="610 bytes arrived instead of 320"):
        check(shape, result([sent(3, 3)], [got(3, 0, body_bytes=610)]), 0)


def test_a_backlog_is_due_to_those_who_empty_it() -> None:
    filler = Publisher(("a",), 16, 70, mode=Mode.WINDOW)
    shape = Shape((Queue("a"),), consumers=(Consumer("a", 16),), fill=(filler,))
    check(shape, result([], [got(70, 0)]), 0)
    with pytest.raises(CountError, match="a: 69 of 70 arrived"):
        check(shape, result([], [got(69, 0)]), 0)
    assert values_of(shape, result([], [got(70, 0)]), None)["rate_per_s"] == 35.0
    assert shape.quick().fill[0].limit_count == 14


def test_a_count_that_the_time_did_not_suffice_for_is_an_error() -> None:
    publisher = Publisher(("a",), 16, 100, mode=Mode.WINDOW, fan_count=0)
    shape = Shape((Queue("a"),), (publisher,), is_counted=True)
    check(shape, result([sent(100, 100)], []), 0)
    with pytest.raises(CountError, match="the time sufficed for 99 of 100"):
        check(shape, result([sent(99, 99)], []), 0)


def test_rates_run_from_the_first_publish_to_the_last_arrival() -> None:
    values = values_of(SHAPE, result([sent(100, 100)], [got(50, 50), got(50, 50, 4.0)]), 0.2)
    assert values["rate_per_s"] == values["delivered_per_s"] == 25.0
    assert values["confirmed_per_s"] == 100.0
    assert values["cpu_us"] == 2000.0
    assert values["generator_cpu_us"] == 5000.0


def test_ratio_of_medians_is_held_against_the_target() -> None:
    slow = row("fanout_10", "rate_per_s", vouchmq=[90, 99, 5000], rabbitmq=[10, 9, 12])
    fast = row("fanout_10", "rate_per_s", vouchmq=[90, 100, 110], rabbitmq=[10, 9, 12])
    assert verdicts([slow], [])[0].passed is False
    assert verdicts([fast], [])[0].passed is True


def test_shorter_is_better_for_latency() -> None:
    late = row("confirm_each", "confirm_p50_ms", vouchmq=[0.8], rabbitmq=[1.0])
    early = row("confirm_each", "confirm_p50_ms", vouchmq=[0.7], rabbitmq=[1.0])
    assert verdicts([late], [])[1].passed is False
    assert verdicts([early], [])[1].passed is True


def test_a_bound_needs_no_other_broker() -> None:
    flood = row("flood_confirm_p50", "confirm_p50_ms", vouchmq=[3.1])
    assert verdicts([flood], [])[0].passed is False


def test_what_was_not_measured_is_neither_passed_nor_failed() -> None:
    assert verdicts([row("fanout_10", "rate_per_s", rabbitmq=[1])], [])[0].passed is None


def test_idle_memory_is_judged() -> None:
    idle = process_tree.Memory(61 * 1024 * 1024, 50 * 1024 * 1024)
    ours = Server("vouchmq", Address("127.0.0.1", 1), 1, "0", idle)
    assert verdicts([], [ours])[0].passed is False


def test_a_figure_near_the_sink_is_flagged() -> None:
    near = row("fanout_10", "rate_per_s", vouchmq=[100], rabbitmq=[10], sink=[199])
    far = row("fanout_10", "rate_per_s", vouchmq=[100], rabbitmq=[10], sink=[201])
    assert limited_by_generator(near)
    assert not limited_by_generator(far)


def test_every_target_is_about_a_scenario_there_is() -> None:
    names = {scenario.name for scenario in catalogue.SCENARIOS} | {IDLE}
    assert {target.scenario for target in TARGETS} <= names


def test_unknown_scenario_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no scenario nonsense; there are: confirm_each"):
        catalogue.chosen(["nonsense"])


def test_a_server_that_ended_stops_the_run_with_its_last_words(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    log = tmp_path / "log"
    log.write_text("out of luck\n")
    gone = Server("vouchmq", Address("127.0.0.1", 1), process.pid, "0", None, log)
    with pytest.raises(ServerError, match=r"vouchmq has ended by itself; (?s:.*)out of luck"):
        gone.require_alive()
    Server("vouchmq", Address("127.0.0.1", 1), os.getpid(), "0", None).require_alive()


def test_cpu_time_and_memory_of_a_process_are_read() -> None:
    before = process_tree.cpu_s(os.getpid())
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert process_tree.cpu_s(os.getpid()) - before >= 0.03
    memory = process_tree.memory(os.getpid())
    assert 0 < memory.pss_bytes <= memory.rss_bytes
