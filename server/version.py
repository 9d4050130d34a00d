"""The version of this program, which the package metadata takes from here, and how it was built."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from typing import Final

VERSION: Final = "0.1.0"


def build_kind() -> str:
    """What runs: "compiled" where this module is among those that were, else "pure Python"."""
    return "compiled" if __file__.endswith(tuple(EXTENSION_SUFFIXES)) else "pure Python"
