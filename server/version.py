"""The version of this program, which the package metadata takes from here."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
