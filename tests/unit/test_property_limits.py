"""A property that fails slowly is reported with its example, whatever limit other tests have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# The first call alone outlasts the limit of other tests, which is 1 s here.
SLOW_FAILURE = """
import time
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

waits = [1.2]

def fail_slowly(is_so):
    if waits:
        time.sleep(waits.pop())
    assert is_so is None

@settings(database=None, max_examples=2)
@given(is_so=st.booleans())
def test_function(is_so):
    fail_slowly(is_so)

class Machine(RuleBasedStateMachine):
    @rule(is_so=st.booleans())
    def step(self, is_so):
        fail_slowly(is_so)

TestMachine = Machine.TestCase
TestMachine.settings = settings(database=None, max_examples=2, stateful_step_count=1)
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["test_function", "TestMachine"])
def test_a_failure_that_outlasts_the_limit_keeps_its_example(tmp_path: Path, name: str) -> None:
    path = tmp_path / "test_slow.py"
    path.write_text(SLOW_FAILURE)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "--timeout", "1"),
            *("-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path)),
            f"{path}::{name}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Timeout" not in ran.stdout
    # The smallest example.
    assert "is_so=False" in ran.stdout, ran.stdout
