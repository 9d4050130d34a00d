"""What a build says of itself, and what `setup.py` does without a compiler."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from vouchmq.server.version import build_kind

PROJECT: Final = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def setup() -> dict[str, Any]:
    """What `setup.py` defines, without a build."""
    pytest.importorskip("setuptools")
    return runpy.run_path(str(PROJECT / "setup.py"), run_name="setup")


def test_all_modules_of_the_list_are_compiled_or_none_is(setup: dict[str, Any]) -> None:
    files = setup["compiled_files"]()
    assert len(files) == len(set(files)) > 20
    kinds = set()
    for file in files:
        assert (PROJECT / file).is_file()
        module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
        kinds.add("pure Python" if str(module.__file__).endswith(".py") else "compiled")
    assert kinds == {build_kind()}


@pytest.mark.parametrize(
    ("command", "environment", "said"),
    [
        ("bdist_wheel", {"VOUCHMQ_COMPILE": "0"}, ""),
        (
            "bdist_wheel",
            {"CC": "/bin/false"},  # as nobody asks for anything else
            "pure Python, for there is no working C compiler",
        ),
        (
            "build_ext",
            {"VOUCHMQ_COMPILE": "1", "CC": "/nowhere/cc"},
            "pure Python, for there is no working C compiler",
        ),
        ("egg_info", {"VOUCHMQ_COMPILE": "1"}, ""),
    ],
)
def test_nothing_is_compiled_where_that_is_not_wanted_or_not_possible(
    setup: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    command: str,
    environment: dict[str, str],
    said: str,
) -> None:
    monkeypatch.delenv("VOUCHMQ_COMPILE", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["setup.py", command])
    assert setup["extensions"]() == []
    written = capfd.readouterr().err
    assert said in written
    assert said or not written
