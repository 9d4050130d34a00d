"""SIGTERM and SIGINT before there is an event loop that could take them.

    first instruction ─▶ `catch` ─▶ imports, recovery: a signal is noted ─▶ the loop takes over

By default these signals end a process at once, and process 1 of a container does not get them at
all. From `catch` on a signal is noted, and whoever starts something long asks `asked` in between.
A second one ends the process as kill -9 does. This module imports nothing that takes time.

Spec: CONN-57
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Final

from vouchmq.server.errors import StartupError

if TYPE_CHECKING:
    from types import FrameType

# Some programs send a signal to a process and to its group, which is one wish and not two.
SAME_SIGNAL_S: Final = 0.2
SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT})
FORCED: Final = b"vouchmq: second signal: the process ends now\n"
_STANDARD_ERROR: Final = 2


class StopAskedError(StartupError):
    """Somebody has asked for the end of a broker that is still starting."""


class StopSignals:
    """What has come so far.

    `asked` is the name of the first signal, empty if there was none.
    """

    def __init__(self) -> None:
        self.asked = ""
        self._asked_at = 0.0

    def catch(self) -> None:
        """Note signals from now on; with a handler, process 1 gets them too."""
        for number in SIGNALS:
            signal.signal(number, self._note)
        # By default it ends a process; files are read later anyway.
        signal.signal(signal.SIGHUP, _ignore)

    def check(self) -> None:
        """Go on only if nobody has asked for the end.

        Raises:
            StopAskedError: somebody has
        """
        if self.asked:
            raise StopAskedError(f"stopped by {self.asked}")

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        now = time.monotonic()
        if not self.asked:
            self.asked = signal.Signals(number).name
            self._asked_at = now
        elif now - self._asked_at >= SAME_SIGNAL_S:
            os.write(_STANDARD_ERROR, FORCED)
            os._exit(1)


def _ignore(number: int, frame: FrameType | None) -> None:
    del number, frame


# A process has one set of handlers.
STOP_SIGNALS: Final = StopSignals()
