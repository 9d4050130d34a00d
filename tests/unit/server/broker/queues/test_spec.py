"""A queue's declaration: who may use it and what survives."""

from __future__ import annotations

import pytest

from vouchmq.protocol.errors import PreconditionFailed, ResourceLocked
from vouchmq.server.broker.queues.spec import QueueSpec

ME, YOU = object(), object()


def spec(owner: object | None = None, *, durable: bool = False) -> QueueSpec:
    return QueueSpec("q", "/", 1, durable, owner, False, {})


@pytest.mark.parametrize(
    ("durable", "owner", "stored"),
    [(True, None, True), (True, ME, False), (False, None, False), (False, ME, False)],
)
def test_only_durable_queues_of_nobody_are_stored(
    durable: bool, owner: object | None, stored: bool
) -> None:
    assert spec(owner, durable=durable).stored is stored


def test_exclusive_queue_is_for_its_owner() -> None:
    spec(ME).require_access(ME)
    spec().require_access(YOU)
    with pytest.raises(ResourceLocked, match="locked queue 'q' in vhost '/'"):
        spec(ME).require_access(YOU)


def test_owner_is_compared_before_the_flags() -> None:
    spec(ME).require_equivalent(False, ME, False)
    with pytest.raises(ResourceLocked):
        spec(ME).require_equivalent(True, None, True)
    with pytest.raises(PreconditionFailed, match="'durable'"):
        spec(ME).require_equivalent(True, ME, True)
