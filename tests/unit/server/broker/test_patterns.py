"""Expressions of operators: which need no engine, and what a search that runs out of time is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from vouchmq.server.broker import patterns
from vouchmq.server.broker.patterns import SEARCH_FLOOR_S, SEARCH_LIMIT_S, TRIES, Pattern

ORDERS = "^(orders|bills)[.]"


class TickingEngine:
    """A search whose CPU clock moves in ticks: it runs out of time whenever a tick falls in it."""

    def __init__(self, text: str, ticks: set[int]) -> None:
        self._real = regex.compile(text, regex.VERSION0)
        self._ticks = ticks
        self.limits: list[float] = []

    def search(self, name: str, timeout: float) -> object:
        self.limits.append(timeout)
        if len(self.limits) in self._ticks:
            raise TimeoutError("regex timed out")
        return self._real.search(name)


def ticking(text: str, *ticks: int) -> tuple[Pattern, TickingEngine]:
    """A pattern whose searches of these numbers, from 1, run out of time."""
    pattern, engine = Pattern(text), TickingEngine(text, set(ticks))
    pattern._engine = engine  # type: ignore[assignment]
    return pattern, engine


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".*",
        "^$",
        "^",
        "$",
        "^.*",
        "^.*$",
        "orders",
        "^orders",
        "^amq\\.gen-.*",
        "^a-b_c$",
        "a$",
    ],
)
def test_plain_expressions_need_no_engine(text: str) -> None:
    pattern, engine = ticking(text, *range(1, 100))
    for name in ("", "orders", "amq.gen-1", "a-b_c", "xa", "my.orders.new"):
        assert pattern.is_in(name) is (regex.search(text, name) is not None)
    assert engine.limits == []


@pytest.mark.parametrize(
    "text", ["a.c", "a|b", "^(a)$", "\\d", "\\w+", "a?", "[a]", "x{2}", "\\bx"]
)
def test_expressions_that_mean_more_than_themselves_are_searched(text: str) -> None:
    pattern, engine = ticking(text)
    pattern.is_in("abc")
    assert len(engine.limits) == 1


PIECES = st.lists(
    st.sampled_from(["^", "$", ".*", "a", "b", "\n", "-", "\\.", "\\-", ".", " ", "\\ ", "#", "_"]),
    max_size=6,
).map("".join)


@given(PIECES, st.text("ab\n-. #_", max_size=6))
@example("^a.*$", "ab\n")
@example("^a.*$", "a\nb")
@example("^a$", "a\n")
@example("a$", "ba\n")
def test_the_short_way_finds_what_the_engine_finds(text: str, name: str) -> None:
    assert Pattern(text).is_in(name) is (regex.search(text, name, regex.VERSION0) is not None)


def test_a_search_that_meets_a_tick_is_tried_again_with_all_its_time() -> None:
    pattern, engine = ticking(ORDERS, 1, 3, 4)
    with capture_logs() as logs:
        assert pattern.is_in("orders.new") is True
        assert pattern.is_in("other") is False
    assert engine.limits == [SEARCH_LIMIT_S] * 5
    assert logs == []


def test_a_search_that_always_runs_out_of_time_is_undecided_and_logged() -> None:
    pattern, engine = ticking(ORDERS, *range(1, TRIES + 1))
    with capture_logs() as logs:
        assert pattern.is_in("orders.new") is None
        # The next search begins afresh.
        assert pattern.is_in("orders.new") is True
    assert len(engine.limits) == TRIES + 1
    (event,) = logs
    assert (event["event"], event["log_level"]) == ("regex.timeout", "warning")
    assert (event["pattern"], event["name"], event["count"]) == (ORDERS, "orders.new", 1)


def test_an_expression_without_end_costs_less_each_time_and_is_not_logged_each_time() -> None:
    pattern, engine = ticking(ORDERS, *range(1, 1000))
    with capture_logs() as logs:
        for _ in range(100):
            assert pattern.is_in("orders.new") is None
    assert [event["count"] for event in logs] == [1, 2, 4, 8, 16, 32, 64]
    assert engine.limits[0] == SEARCH_LIMIT_S
    assert engine.limits[-1] == SEARCH_FLOOR_S
    # All together no more than what two names may cost, and little for each further one.
    assert sum(engine.limits) < TRIES * (2 * SEARCH_LIMIT_S + 100 * SEARCH_FLOOR_S)
    # One that is in time has its full bound again.
    engine._ticks.clear()
    assert pattern.is_in("orders.new") is True
    pattern.is_in("orders.new")
    assert engine.limits[-1] == SEARCH_LIMIT_S


def test_the_engine_keeps_to_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "SEARCH_LIMIT_S", 0.001)
    assert Pattern("^(a|aa)+$").is_in("a" * 200 + "b") is None


def test_what_is_no_expression_is_refused() -> None:
    with pytest.raises(ValueError, match="missing"):
        Pattern("(")


# What `clock()` is on a machine whose CPU clock moves in ticks of 10 ms.
TICKS = """
#define _GNU_SOURCE
#include <time.h>
clock_t clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (now.tv_sec * 1000000L + now.tv_nsec / 1000) / 10000 * 10000;
}
"""
UNDER_TICKS = """
import regex
from vouchmq.server.broker.patterns import Pattern

engine, ours, met = regex.compile(r"^(orders|bills)[.]"), Pattern(r"^(orders|bills)[.]"), 0
for number in range(10_000_000):
    if ours.is_in(f"orders.{number}") is not True:
        raise SystemExit(f"undecided at {number}")
    try:
        engine.search(f"orders.{number}", timeout=0.01)
    except TimeoutError:
        met += 1
        if met == 3:
            break
print(met)
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="the clock is compiled with gcc")
def test_no_search_is_undecided_where_the_clock_of_the_process_moves_in_ticks(
    tmp_path: Path,
) -> None:
    library = tmp_path / "ticks.so"
    compiler = ["gcc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(library)]
    subprocess.run(compiler, input=TICKS, text=True, check=True)
    # It goes on until the bare engine has run out of its 10 ms three times.
    ran = subprocess.run(
        [sys.executable, "-c", UNDER_TICKS],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
    )
    assert (ran.stdout, ran.returncode) == ("3\n", 0), ran.stderr
