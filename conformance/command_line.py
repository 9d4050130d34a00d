"""The parser that the commands `vouchmq conformance` and `vouchmq conformance compare` share."""

from __future__ import annotations

import argparse
from typing import Final, NoReturn

EXIT_UNUSABLE: Final = 2


class Parser(argparse.ArgumentParser):
    """Mistakes are one line that names the command, and not a page of usage."""

    def error(self, message: str) -> NoReturn:
        """Say it and exit 2."""
        self.exit(EXIT_UNUSABLE, f"{self.prog}: {message}; see {self.prog} --help\n")
