"""The first instructions of the program `vouchmq`.

Commands that serve until they are told to stop, as process 1 of a container for example, note such
signals before anything else is imported, which takes tenths of a second.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

from vouchmq.server.edge.starting.stop_signals import STOP_SIGNALS

SERVING: Final = frozenset({"serve", "manage"})


def main() -> int:
    """Run the command that the arguments of the process name; returns the exit code."""
    if SERVING.intersection(sys.argv[1:2]):
        STOP_SIGNALS.catch()
    code: int = import_module("vouchmq.server.cli.main").main()
    return code
