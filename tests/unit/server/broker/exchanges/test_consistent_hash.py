"""The ring: whose a key is, when it is put together, and how much may be on it."""

from __future__ import annotations

import pytest

from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.server.broker.exchanges.bindings import Binding
from vouchmq.server.broker.exchanges.consistent_hash import ConsistentHashRouter

KEYS = [f"key {number}" for number in range(2000)]


def bound(router: ConsistentHashRouter, queue: str, weight: int, source: str = "x") -> Binding:
    """A binding, checked and taken in."""
    binding = Binding(source, "queue", queue, str(weight), {})
    router.validate(binding)
    router.add(binding)
    return binding


def owners(router: ConsistentHashRouter) -> list[str]:
    """To which queue each key goes."""
    return [binding.destination for binding in router.match(KEYS, None)]


class Counted(ConsistentHashRouter):
    """Counts how often the ring is put together."""

    count = 0

    def _build(self) -> None:
        self.count += 1
        super()._build()


def test_the_hash_ring_is_put_together_when_it_is_needed() -> None:
    """Twelve bindings one after the other must not each sort the points of all."""
    router = Counted({})
    bindings = [bound(router, f"q{number}", 100) for number in range(12)]
    router.remove(bindings[3])
    assert router.count == 0
    owners(router)
    owners(router)
    assert router.count == 1
    router.remove(bindings[4])
    assert {"q3", "q4"}.isdisjoint(owners(router))
    assert router.count == 2


def test_shares_are_as_the_weights() -> None:
    router = ConsistentHashRouter({})
    bound(router, "heavy", 30)
    bound(router, "light", 10)
    share = owners(router).count("heavy") / len(KEYS)
    assert 0.70 < share < 0.80


def test_a_destination_takes_keys_and_gives_them_back() -> None:
    router = ConsistentHashRouter({})
    bound(router, "one", 10)
    bound(router, "two", 10)
    before = owners(router)
    third = bound(router, "three", 10)
    during = owners(router)
    assert all(now in {was, "three"} for was, now in zip(before, during, strict=True))
    assert "three" in during
    router.remove(third)
    assert owners(router) == before


def test_the_heaviest_of_a_destinations_bindings_counts() -> None:
    alone, together = ConsistentHashRouter({}), ConsistentHashRouter({})
    bound(alone, "other", 10)
    bound(alone, "q", 20)
    bound(together, "other", 10)
    light = bound(together, "q", 5)
    heavy = bound(together, "q", 20)
    assert owners(together) == owners(alone)
    together.remove(heavy)
    assert owners(together) != owners(alone)
    together.remove(light)
    assert set(owners(together)) == {"other"}


def test_points_are_limited() -> None:
    """LIMIT-26."""
    router = ConsistentHashRouter({})
    first = bound(router, "q0", 1000, "hash")
    bound(router, "q1", 1000)
    with pytest.raises(PreconditionFailed) as refused:
        bound(router, "q2", 501, "hash")
    assert refused.value.text == (
        "The binding keys of exchange 'hash' must not add up to more than 2500"
    )
    bound(router, "q2", 500)
    # What adds nothing is no more, and what goes makes room.
    router.validate(Binding("hash", "queue", "q2", "500", {}))
    with pytest.raises(PreconditionFailed):
        bound(router, "q3", 1)
    router.remove(first)
    bound(router, "q3", 1000)
    assert set(owners(router)) == {"q1", "q2", "q3"}
