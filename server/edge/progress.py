"""How far recovery is, on a terminal, when it takes longer than a second.

Must not know what is being done; it is told how much of how much. Without a terminal it shows
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress

PATIENCE_S: Final = 1.0


class RecoveryProgress:
    """A bar that appears when somebody might begin to wonder.

    Args:
        out: where it is shown
        clock: monotonic seconds
        what: is done
        check: called at each step; raises if it should be the last
    """

    def __init__(
        self,
        out: TextIO,
        clock: Callable[[], float],
        what: str = "reading the journal",
        *,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._check = check
        self._out = out
        self._what = what
        self._clock = clock
        self._began = clock()
        self._is_possible = out.isatty()
        self._bar: Progress | None = None

    def __call__(self, done: int, total: int) -> None:
        """So much of so much is done.

        Raises:
            Exception: what `check` raises
        """
        self._check()
        if not self._is_possible or self._clock() - self._began < PATIENCE_S:
            return
        if self._bar is None:
            self._bar = _started(self._out, self._what, total)
        self._bar.update(self._bar.task_ids[0], completed=done, refresh=True)

    def close(self) -> None:
        """Remove the bar from the terminal, if it was shown."""
        if self._bar is not None:
            self._bar.stop()


def _started(out: TextIO, what: str, total: int) -> Progress:
    # Hardly any start takes so long that it needs them.
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(file=out), transient=True)
    bar.add_task(what, total=total)
    bar.start()
    return bar
