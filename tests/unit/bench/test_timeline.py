"""The kernel's trace of a message: which step is which."""

from __future__ import annotations

from bench.micro.timeline import STEPS, messages, parse

BROKER, PUBLISHER, CONSUMER = 500, 600, 601
TRACE = """\
# tracer: nop
       generator-600   [000] ..... 10.000100: sys_enter: NR 44 (3, 55ad, 437, 4000, 0, 0)
       generator-600   [000] d.s7. 10.000106: sched_waking: comm=python pid=500 prio=120 cpu=1
       generator-600   [000] ..... 10.000110: sys_exit: NR 44 = 1079
          python-500   [001] ..... 10.000120: sys_exit: NR 281 = 1
          python-500   [001] ..... 10.000122: sys_enter: NR 0 (1c, 5593, 10000, 5593, 0, 0)
          python-500   [001] ..... 10.000124: sys_exit: NR 0 = 1079
          python-500   [001] ..... 10.000154: sys_enter: NR 18 (17, 5593, 4f3, 273aba, 0, 0)
          python-500   [001] ..... 10.000158: sys_exit: NR 18 = 1267
          python-500   [001] ..... 10.000174: sys_enter: NR 1 (1d, 5593, 445, 0, 0, 0)
          python-500   [001] d.s7. 10.000183: sched_waking: comm=generator pid=601 prio=120 cpu=0
          python-500   [001] ..... 10.000190: sys_exit: NR 1 = 1093
          python-500   [001] ..... 10.000195: sys_enter: NR 75 (17, 0, 0, 0, 7ffe, 0)
       generator-601   [000] ..... 10.000230: sys_exit: NR 45 = 1093
          python-500   [001] ..... 10.000345: sys_exit: NR 75 = 0
          python-500   [001] ..... 10.000350: sys_enter: NR 1 (1c, 7ff8, 15, 0, 0, 0)
       generator-601   [000] ..... 10.000360: sys_exit: NR 45 = -11
"""


def test_each_step_is_found() -> None:
    [seen] = messages(list(parse(TRACE)), {BROKER}, {PUBLISHER, CONSUMER})
    steps = [round(seen[end] - seen[begin]) for begin, end, _ in STEPS]
    assert steps == [20, 4, 30, 4, 16, 9, 47, 130, 150]


def test_a_message_that_is_cut_off_does_not_count() -> None:
    lines = TRACE.splitlines()
    assert messages(list(parse("\n".join(lines[:13]))), {BROKER}, {PUBLISHER, CONSUMER}) == []
    assert messages(list(parse("\n".join(lines[5:]))), {BROKER}, {PUBLISHER, CONSUMER}) == []
