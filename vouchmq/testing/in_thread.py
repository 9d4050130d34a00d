"""Blocking context managers for coroutines."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractContextManager

T = TypeVar("T")


@asynccontextmanager
async def in_thread(blocking: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave a context manager in a thread, while the loop goes on."""
    entered = await asyncio.to_thread(blocking.__enter__)
    try:
        yield entered
    finally:
        await asyncio.to_thread(blocking.__exit__, None, None, None)
