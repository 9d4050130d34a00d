"""How far recovery is, on a terminal, when it takes longer than a second.

Must not know what is being done; it is told how much of how much. Without a terminal it shows
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TextIO

from rich.console import Console
from rich.progress import Progress

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
        self._is_possible = out.isatty()
        self._bar = Progress(console=Console(file=out), transient=True)

    def __call__(self, done: int, total: int) -> None:
        """So many of so many segments were read."""
        if not self._is_possible or self._clock() - self._began < PATIENCE_S:
            return
        if not self._bar.task_ids:
            self._bar.start()
            self._bar.add_task("reading the journal", total=total)
        self._bar.update(self._bar.task_ids[0], completed=done, refresh=True)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar.task_ids:
            self._bar.stop()
