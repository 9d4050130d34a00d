"""Who listens to what happens in a broker."""

from __future__ import annotations

from vouchmq.server.broker.events import EventBus


def test_whoever_tells_can_see_whether_anybody_listens() -> None:
    bus = EventBus()
    heard: list[tuple[str, dict[str, object]]] = []

    def first(event: str, facts: dict[str, object]) -> None:
        heard.append((event, facts))

    def second(event: str, facts: dict[str, object]) -> None:
        heard.append((event, facts))

    seen = [bus.is_heard]
    bus.listen(first)
    bus.listen(second)
    bus.leave(first)
    seen.append(bus.is_heard)
    bus.tell("queue.created", name="orders")
    assert heard == [("queue.created", {"name": "orders"})]
    bus.leave(second)
    bus.leave(second)
    seen.append(bus.is_heard)
    assert seen == [False, True, False]
