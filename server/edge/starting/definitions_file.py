"""The definitions file of the settings: read at start, and again on SIGHUP.

Must not know what definitions mean.

Spec: HTTP-43
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from vouchmq.server.definitions.document import DefinitionsError
from vouchmq.server.definitions.file import Content, reading
from vouchmq.server.definitions.importer import Importer, PartlyAppliedError, drain
from vouchmq.server.errors import StartupError
from vouchmq.server.runtime.work_budget import SLICE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vouchmq.server.runtime.runtime import BrokerRuntime
    from vouchmq.server.settings.settings import Settings

log = structlog.get_logger(__name__)


class DefinitionsFile:
    """The file, if the settings name one, and the broker that it is applied to.

    Args:
        settings: `load_definitions`, `definitions_skip_if_unchanged` and the default user
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._path = settings.load_definitions
        self._importer: Importer

    def read(self) -> Content | None:
        """What the file holds, its form checked; None without a file.

        Raises:
            StartupError: with the place of the fault in the file
        """
        if not self._path:
            return None
        content = Content()
        with definitions_faults(self._path):
            drain(reading(Path(self._path).read_text(encoding="utf-8"), content))
        return content

    def apply_at_start(self, runtime: BrokerRuntime, content: Content | None) -> None:
        """Have what the file holds before anybody can connect.

        Raises:
            StartupError: with the place of the fault in the file; nothing of it is applied
        """
        self._importer = Importer(runtime.broker, runtime.authenticator)
        if content is None or self._is_to_skip(content):
            return
        users = {user.account.name for user in content.users}
        with definitions_faults(self._path):
            drain(self._importer.leave_out(content))
            self._importer.apply(content)
        self._loaded(content)
        # Who brings users has no need of one that everybody knows.
        default = self._settings.default_user
        if users and default not in users and runtime.has_new_default_user:
            runtime.authenticator.delete(default)

    async def load_again(self) -> None:
        """Apply the file as it is now, while clients are served; what is wrong is logged."""
        if not self._path:
            log.info("definitions.not_configured", meaning="load_definitions is not set")
            return
        try:
            await self._load()
        except StartupError as error:
            is_partly = isinstance(error.__cause__, PartlyAppliedError)
            meaning = "the rest of the file is applied" if is_partly else "no part of it is applied"
            log.error("definitions.rejected", reason=str(error), meaning=meaning)

    async def _load(self) -> None:
        content = Content()
        with definitions_faults(self._path):
            async with import_module("aiofiles").open(self._path, encoding="utf-8") as file:
                text: str = await file.read()
            await in_slices(reading(text, content))
            if self._is_to_skip(content):
                return
            await in_slices(self._importer.leave_out(content))
            await in_slices(self._importer.applying(content))
        self._loaded(content)

    def _is_to_skip(self, content: Content) -> bool:
        """Whether this very file has been applied, and what has changed since is to stay."""
        is_skipping = self._settings.definitions_skip_if_unchanged
        if not (is_skipping and self._importer.is_applied(content)):
            return False
        log.info("definitions.unchanged", path=self._path)
        return True

    def _loaded(self, content: Content) -> None:
        if self._settings.definitions_skip_if_unchanged:
            self._importer.note_applied(content)
        log.info("definitions.loaded", path=self._path)


@contextmanager
def definitions_faults(path: str) -> Iterator[None]:
    """Tell what is wrong with a definitions file with its name, a line for each fault.

    Raises:
        StartupError: something is
    """
    try:
        yield
    except OSError as error:
        raise StartupError(f"definitions file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StartupError(f"definitions file {path}: not UTF-8: {error.reason}") from error
    except DefinitionsError as error:
        raise StartupError(*(f"definitions file {path}: {line}" for line in error.args)) from error


async def in_slices(steps: Iterator[None]) -> None:
    """Do work step by step, with a turn of the loop for others in between (LIMIT-23)."""
    ends_at = time.monotonic() + SLICE_S
    for _ in steps:
        if time.monotonic() >= ends_at:
            await asyncio.sleep(0)
            ends_at = time.monotonic() + SLICE_S
