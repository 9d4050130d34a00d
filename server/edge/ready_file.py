"""The file that tells others where the broker is, as long as it serves (`ready_file`).

It is written beside its place before recovery, when a fault in it costs nothing, and put there when
clients can connect: who polls for it never reads half of it. Must not know sockets.
"""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vouchmq.server.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Mapping


class ReadyFile:
    """The ready file of one start.

    Args:
        target: where it belongs
    """

    def __init__(self, target: str) -> None:
        self._target = Path(target)
        self._new = Path(f"{target}.new")

    def write(self, facts: Mapping[str, object]) -> None:
        """Write it beside its place.

        Raises:
            StartupError: it cannot be written, or not be put in its place
        """
        try:
            if self._target.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            self._new.write_text(json.dumps(facts) + "\n", encoding="utf-8")
        except OSError as error:
            raise self._fault(error) from error

    def show(self) -> StartupError | None:
        """Put it in its place; what is wrong with that."""
        try:
            self._new.replace(self._target)
        except OSError as error:
            self.drop()
            return self._fault(error)
        return None

    def drop(self) -> None:
        """The start has failed: it is of no use beside its place."""
        with suppress(OSError):
            self._new.unlink()

    def _fault(self, error: OSError) -> StartupError:
        return StartupError(f"cannot write ready_file {self._target}: {error.strerror}")
