"""How far recovery is, on a terminal, when it takes longer than a second.

Must not know what is being done; it is told how much of how much. Without the library that draws
bars, or without a terminal, it shows nothing.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S: Final = 1.0


class RecoveryProgress:
    """A bar that appears when somebody might begin to wonder.

    Args:
        out: where it is shown
        clock: monotonic seconds
    """

    def __init__(self, out: TextIO, clock: Callable[[], float]) -> None:
        self._out = out
        self._clock = clock
        self._began = clock()
        self._is_possible = out.isatty() and find_spec("rich") is not None
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, done: int, total: int) -> None:
        """So many of so many segments were read."""
        if not self._is_possible or self._clock() - self._began < PATIENCE_S:
            return
        if self._bar is None:
            console = import_module("rich.console").Console(file=self._out)
            self._bar = import_module("rich.progress").Progress(console=console, transient=True)
            self._bar.start()
            self._task = self._bar.add_task("reading the journal", total=total)
        self._bar.update(self._task, completed=done, refresh=True)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
