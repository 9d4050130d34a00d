"""When Python's garbage collector looks, and at what.

Nearly all objects of a broker are freed by their reference counts; the collector is for the few in
rings. What it costs grows with the objects that it looks at, so it looks at each once, and not at
all at those that one long step makes.

Spec: LIMIT-23
"""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

# The collector looks when there are so many more objects than at its last look: about 2 ms.
YOUNG_OBJECTS: Final = 20_000


def settle_collector() -> None:
    """From now on the garbage collector looks at each object once (LIMIT-23).

    What survives its first collection is frozen (`gc.freeze`). Otherwise objects that live on, such
    as those of ten thousand queues, are gone through together some day, which takes a hundred
    milliseconds. Cycles that live longer stay until `collect_all`; connections, channels and queues
    break theirs.
    """
    gc.collect()
    gc.freeze()
    gc.callbacks.append(_freeze_survivors)


def collect_all() -> None:
    """Look at all objects, the frozen ones included; of many that takes long."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def uncollected(count: int) -> AbstractContextManager[None]:
    """For one step that makes so many objects which live on: freeze them without a look.

    The collector would look at all of them within the step, for about as long as it takes to make
    and queue them. Nothing happens if they are few, or the collector was not settled.
    """
    if count < YOUNG_OBJECTS or _freeze_survivors not in gc.callbacks:
        return _AS_EVER
    return _frozen()


# Of nearly every commit, so it is made once.
_AS_EVER: Final = nullcontext()


@contextmanager
def _frozen() -> Iterator[None]:
    gc.collect(0)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _freeze_survivors(phase: str, _: object) -> None:
    if phase == "stop":
        gc.freeze()
