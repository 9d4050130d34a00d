"""The garbage collector of the process: each object is looked at once, cycles are still found."""

from __future__ import annotations

import subprocess
import sys

SETTLED = """
import gc, weakref
from vouchmq.server.edge.process import YOUNG_OBJECTS, collect_all, settle_collector, tune_process

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
