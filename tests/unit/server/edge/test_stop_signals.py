"""Signals before there is a loop, in a process that does nothing else."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.environments import PROJECT
from vouchmq.server.edge.starting.stop_signals import StopAskedError, StopSignals

PROGRAM = """
import os, signal, sys, time
from vouchmq.server.edge.starting.stop_signals import FORCED, SAME_SIGNAL_S, STOP_SIGNALS
STOP_SIGNALS.catch()
os.kill(os.getpid(), signal.SIGHUP)
STOP_SIGNALS.check()
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGINT)
print(STOP_SIGNALS.asked, flush=True)
time.sleep(SAME_SIGNAL_S)
os.kill(os.getpid(), signal.SIGINT)
print("is not reached", flush=True)
"""


def test_the_first_is_noted_and_a_second_one_ends_the_process() -> None:
    """Two at once are one wish."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout) == (1, "SIGTERM\n")
    assert run.stderr == "vouchmq: second signal: the process ends now\n"


def test_who_starts_something_long_is_told() -> None:
    signals = StopSignals()
    signals.check()
    signals._note(signal.SIGTERM, None)
    with pytest.raises(StopAskedError, match="stopped by SIGTERM"):
        signals.check()
