"""What the bench concludes from figures: counts that must agree, verdicts, flags."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bench import __main__ as command
from bench import process_tree
from bench.client import Address
from bench.generator import Percentiles, Published, Received, Result
from bench.measure import CountError, Round, check, due_of, values_of
from bench.report import Verdict, limited_by_generator, show, verdicts
from bench.run import Row
from bench.scenarios import catalogue
from bench.servers import LAVINMQ_PORTS, Server, ServerError, lavinmq, with_idle_connections
from bench.shape import Consumer, Message, Mode, Publisher, Queue, Shape
from bench.targets import IDLE, LAVINMQ, RABBITMQ, TARGETS, Kind, targets_of

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
        made.rounds += [Round(server, {value: number, "foreign_cores": 0.1}) for number in numbers]
    return made


def verdict_of(made: Row, value: str, peer: str) -> Verdict:
    """Pick the verdict on one demand."""
    (found,) = [
        entry
        for entry in verdicts([made], [])
        if (entry.target.scenario, entry.target.value, entry.target.peer)
        == (made.scenario.name, value, peer)
    ]
    return found


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
    assert shape.quick().publishers[0].limit_count == 20
    assert shape.quick().duration_ms == shape.duration_ms


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


def test_each_demand_is_held_against_its_own_peer() -> None:
    made = row("fanout_10", "rate_per_s", vouchmq=[100], rabbitmq=[10], lavinmq=[25])
    assert verdict_of(made, "rate_per_s", "rabbitmq").passed is True
    assert verdict_of(made, "rate_per_s", "rabbitmq").measured == 10
    assert verdict_of(made, "rate_per_s", "lavinmq").passed is False
    assert verdict_of(made, "rate_per_s", "lavinmq").measured == 4
    alone = row("fanout_10", "rate_per_s", vouchmq=[100], rabbitmq=[10])
    assert verdict_of(alone, "rate_per_s", "lavinmq").passed is None


def test_a_ratio_names_its_peer_and_a_bound_has_none() -> None:
    for target in TARGETS:
        assert target.peer in (("",) if target.kind is Kind.AT_MOST else (RABBITMQ, LAVINMQ))
    keys = [(target.scenario, target.value, target.peer) for target in TARGETS]
    assert len(keys) == len(set(keys))


def test_no_aim_is_below_what_must_be() -> None:
    for target in TARGETS:
        assert target.met_by(target.must)
        assert target.met_by(target.aim)


@pytest.mark.parametrize(
    ("name", "value", "peer", "must", "aim"),
    [
        ("unlike_persistent", "rate_per_s", LAVINMQ, 0.7, 1.0),
        ("unlike_persistent", "rate_per_s", RABBITMQ, 3, 4),
        ("unlike_persistent", "delivery_p50_ms", "", 20, 2),
        ("work_queue_prefetch1", "rate_per_s", LAVINMQ, 0.7, 1.0),
        ("saturation_e2e", "delivery_p50_ms", "", 10, 2),
        ("confirm_each_50k", "total_ms", LAVINMQ, 1.2, 1.0),
        ("tx_commit_2k", "total_ms", LAVINMQ, 1.3, 1.0),
        ("latency_2000", "delivery_p99_ms", LAVINMQ, 1.0, 0.7),
        ("latency_2000", "cpu_us", LAVINMQ, 1.3, 1.0),
        ("fanout_10", "rate_per_s", LAVINMQ, 4.27, 4.4),
    ],
)
def test_what_is_demanded(name: str, value: str, peer: str, must: float, aim: float) -> None:
    (found,) = [
        target for target in targets_of(name) if (target.value, target.peer) == (value, peer)
    ]
    assert (found.must, found.aim) == (must, aim)


def test_a_round_is_quiet_when_next_to_nothing_else_ran() -> None:
    made = row("fanout_10", "rate_per_s", vouchmq=[1, 2, 3], rabbitmq=[1])
    made.rounds[0].values["foreign_cores"] = 0.31
    made.rounds[1].error = "lost one"
    assert made.quiet_count("vouchmq") == (1, 3)
    assert made.quiet_count("rabbitmq") == (1, 1)


def test_the_table_shows_ratios_latencies_and_quiet_rounds() -> None:
    made = row("fanout_10", "rate_per_s", vouchmq=[100], rabbitmq=[10], lavinmq=[50], sink=[150])
    for entry in made.rounds:
        entry.values["delivery_p99_ms"] = 7.5
    made.rounds[0].values["foreign_cores"] = 1.5
    servers = [
        Server(name, Address("127.0.0.1", 1), None, "0", None)
        for name in ("vouchmq", "rabbitmq", "lavinmq", "sink")
    ]
    console = Console(width=200, record=True, file=StringIO())
    show(console, [made], servers)
    lines = [line.split() for line in console.export_text().splitlines()]
    (title,) = [line for line in lines if "scenario" in line]
    assert [word for word in title if word in ("rabbitmq", "lavinmq")] == [
        *("rabbitmq", "lavinmq"),
        *("rabbitmq", "lavinmq"),
    ]
    (rate,) = [line for line in lines if "rate_per_s" in line]
    assert [word for word in rate if word in ("10.00", "2.00", "0.67")] == ["10.00", "2.00"]
    assert [line.count("7.5") for line in lines if "delivery_p99_ms" in line] == [4]
    (quiet,) = [line for line in lines if "│" in line and "quiet" in line]
    assert " ".join(word for word in quiet if word != "│") == (
        "quiet rounds 0 of 1 1 of 1 1 of 1 1 of 1"
    )
    assert "FLAG fanout_10: vouchmq within 2x of the sink" in " ".join(map(" ".join, lines))
    assert ["quiet", "rounds", "of", "vouchmq:", "0", "of", "1"] in lines


def test_a_bound_needs_no_other_broker() -> None:
    flood = row("flood_confirm_p50", "confirm_p50_ms", vouchmq=[3.1])
    assert verdicts([flood], [])[0].passed is False


def test_what_was_not_measured_is_neither_passed_nor_failed() -> None:
    assert verdicts([row("fanout_10", "rate_per_s", rabbitmq=[1])], [])[0].passed is None


def test_idle_memory_is_judged() -> None:
    idle = process_tree.Memory(61 * 1024 * 1024, 50 * 1024 * 1024)
    ours = Server("vouchmq", Address("127.0.0.1", 1), 1, "0", idle)
    assert verdicts([], [ours])[0].passed is False


def test_what_an_idle_connection_takes_is_judged() -> None:
    def server(name: str, connection_bytes: int) -> Server:
        address = Address("127.0.0.1", 1)
        return Server(name, address, 1, "0", None, connection_bytes=connection_bytes)

    def passed(ours: int) -> bool | None:
        servers = [server("vouchmq", ours), server("lavinmq", 40 * 1024)]
        (found,) = [
            entry for entry in verdicts([], servers) if entry.target.value == "connection_kb"
        ]
        return found.passed

    assert passed(10 * 1024) is True
    assert passed(11 * 1024) is False


def test_memory_of_a_server_that_is_hidden_is_not_measured() -> None:
    hidden = Server("rabbitmq", Address("127.0.0.1", 1), None, "0", None)
    assert with_idle_connections(hidden) is hidden


def test_a_figure_near_the_sink_is_flagged() -> None:
    near = row("fanout_10", "rate_per_s", vouchmq=[100], rabbitmq=[10], sink=[199])
    far = row("fanout_10", "rate_per_s", vouchmq=[100], rabbitmq=[10], sink=[201])
    assert limited_by_generator(near) == ["vouchmq"]
    assert limited_by_generator(far) == []
    other = row("fanout_10", "rate_per_s", vouchmq=[10], lavinmq=[100], sink=[199])
    assert limited_by_generator(other) == ["lavinmq"]


def test_a_row_about_lateness_at_full_speed_is_held_against_the_sink_by_its_rate() -> None:
    made = row("saturation_e2e", "rate_per_s", vouchmq=[100], sink=[1000])
    for entry in made.rounds:
        entry.values["delivery_p50_ms"] = 1.0
    assert limited_by_generator(made) == []


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


def test_peers_take_turns_in_the_order_they_were_asked_for() -> None:
    def wanted(*arguments: str) -> list[str]:
        return command.wanted_servers(command.parser().parse_args(arguments))

    assert wanted() == ["vouchmq", "rabbitmq"]
    assert wanted("--peer", "lavinmq") == ["vouchmq", "lavinmq"]
    both = ("--peer", "lavinmq", "--peer", "rabbitmq", "--peer", "lavinmq", "--check-generator")
    assert wanted(*both) == ["vouchmq", "lavinmq", "rabbitmq", "sink"]
    assert wanted("--only", "sink", "--check-generator") == ["sink"]


def test_a_peer_that_is_not_played_cannot_be_pointed_at(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--lavinmq", "amqp://127.0.0.1:5"])
    assert ended.value.code == 2
    assert "--lavinmq is of no use without --peer lavinmq" in capsys.readouterr().err


def test_lavinmq_is_started_on_loopback_with_ports_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "fake.py"
    script.write_text("import sys; print(*sys.argv[1:])")
    with (
        pytest.raises(ServerError, match="nobody listens on port"),
        lavinmq(f"{sys.executable} {script} --more", tmp_path),
    ):
        pass
    words = (tmp_path / "lavinmq.log").read_text().split()
    assert words[0] == "--more"
    options = dict(word.removeprefix("--").split("=") for word in words[1:])
    assert options["bind"] == "127.0.0.1"
    assert options["data-dir"] == str(tmp_path / "lavinmq")
    ports = [int(options[name]) for name in ("amqp-port", *LAVINMQ_PORTS)]
    assert len({port for port in ports if port > 0}) == len(ports)
    assert "tcp_nodelay = true" in Path(options["config"]).read_text()


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerError, match="no-such-broker cannot be started: No such file"),
        lavinmq("no-such-broker", tmp_path),
    ):
        pass


def test_cpu_time_and_memory_of_a_process_are_read() -> None:
    before = process_tree.cpu_s(os.getpid())
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert process_tree.cpu_s(os.getpid()) - before >= 0.03
    memory = process_tree.memory(os.getpid())
    assert 0 < memory.pss_bytes <= memory.rss_bytes
