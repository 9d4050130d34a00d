"""What is hidden of an error in a worker, and of which."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import pytest

from vouchmq.spark.errors import HIDING, sentence_only
from vouchmq.spark.options import OptionError


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is one of Spark's, for the time of a test."""
    monkeypatch.setitem(sys.modules, "pyspark.worker_util", ModuleType("worker_util"))
    # Set and deleted: so it is put back as it was.
    monkeypatch.setenv(HIDING, "")
    monkeypatch.delenv(HIDING)


@sentence_only()
def fails(error: Exception) -> None:
    """Raise it."""
    raise error


@pytest.mark.usefixtures("worker")
def test_an_error_of_ours_is_its_sentence() -> None:
    with pytest.raises(OptionError):
        fails(OptionError("option url: required"))
    assert os.environ[HIDING] == "1"


@pytest.mark.usefixtures("worker")
def test_a_fault_keeps_its_traceback() -> None:
    with pytest.raises(KeyError):
        fails(KeyError("url"))
    assert HIDING not in os.environ


def test_a_program_of_a_user_is_left_alone(worker: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pyspark.worker_util")
    with pytest.raises(OptionError):
        fails(OptionError("option url: required"))
    assert HIDING not in os.environ
