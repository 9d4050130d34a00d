"""The garbage collector of the process: each object is looked at once, cycles are still found."""

from __future__ import annotations

import subprocess
import sys

SETTLED = """
import gc, weakref
from vouchmq.server.edge.process import tune_process
from vouchmq.server.collector import (
    YOUNG_OBJECTS, collect_all, settle_collector, uncollected
)

tune_process()
settle_collector()
looked_at = []
gc.callbacks.insert(0, lambda phase, info: phase == "start" and looked_at.append(
    sum(len(gc.get_objects(age)) for age in range(info["generation"] + 1))))

class Ring:
    def __init__(self):
        self.ring = self
"""


def said(program: str) -> str:
    """Run a program in a process of its own, for the collector is that of the process."""
    done = subprocess.run(
        [sys.executable, "-c", SETTLED + program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_survives_is_not_looked_at_again() -> None:
    """LIMIT-23: two million objects that live on cost no more at a time than the first ones."""
    program = "kept = [[] for _ in range(100 * YOUNG_OBJECTS)]"
    told = "print(len(looked_at), max(looked_at) / YOUNG_OBJECTS)"
    count, most = said(f"{program}\n{told}").split()
    assert int(count) >= 90
    assert float(most) < 1.5


def test_young_cycles_are_collected() -> None:
    program = "alive = weakref.ref(Ring())\nkept = [[] for _ in range(2 * YOUNG_OBJECTS)]"
    assert said(f"{program}\nprint(alive())") == "None"


def test_old_cycles_are_collected_when_all_is_looked_at() -> None:
    program = "ring = Ring(); alive = weakref.ref(ring)\ngc.collect()\ndel ring\ngc.collect()"
    told = "print(alive() is None); collect_all(); print(alive() is None)"
    assert said(f"{program}\n{told}").split() == ["False", "True"]


def test_nobody_looks_at_what_a_long_step_makes() -> None:
    """LIMIT-23: the collector looks before the step, and not at what was made in it afterwards."""
    program = """
before = len(looked_at)
with uncollected(10 * YOUNG_OBJECTS):
    kept = [[] for _ in range(10 * YOUNG_OBJECTS)]
print(len(looked_at) - before, gc.isenabled())
more = [[] for _ in range(2 * YOUNG_OBJECTS)]
print(max(looked_at[before:]) < 2 * YOUNG_OBJECTS)
"""
    assert said(program).split() == ["1", "True", "True"]


def test_cycles_are_collected_before_a_long_step() -> None:
    program = """
alive = weakref.ref(Ring())
with uncollected(YOUNG_OBJECTS):
    print(alive())
"""
    assert said(program) == "None"


def test_a_short_step_changes_nothing() -> None:
    program = """
before = len(looked_at)
with uncollected(YOUNG_OBJECTS - 1):
    print(len(looked_at) - before, gc.isenabled())
"""
    assert said(program).split() == ["0", "True"]
