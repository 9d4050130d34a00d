"""The hooks of features: who is called, in which order, and that nobody else is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.server.amqp_client import declare, publish
from tests.unit.server.in_memory import World
from vouchmq.server.broker.dead_letter.dead_letters import DeadLetters, PendingDeadLetters
from vouchmq.server.broker.features.dedup import Dedup
from vouchmq.server.broker.features.expiry import Expiry, QueueExpiry
from vouchmq.server.broker.features.feature import Feature, FeatureContext
from vouchmq.server.broker.features.hooks import FEATURES, FeatureHooks
from vouchmq.server.broker.features.length import LengthLimit
from vouchmq.server.broker.features.queue_seq import QueueSequence
from vouchmq.server.broker.features.redelivery import Redelivery
from vouchmq.server.broker.queues.settlement import DeadLetterReason, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.broker.message import Message

MESSAGE: Message = (b"raw", b"tail", 3, 0)
# What a hook gives that is to go on with the next feature.
ANSWERS: dict[str, Any] = {
    "on_take": [MESSAGE],
    "on_requeue": [MESSAGE],
    "before_dispatch": True,
    "after_dispatch": True,
    "run_outside_dispatch": True,
    "on_dead": [MESSAGE],
    "held": [MESSAGE],
    "held_count": 1,
}
BY_RANK = (
    *("on_enqueue", "on_take", "on_requeue", "on_write_refused", "as_delivered", "on_used"),
    *("on_written", "before_dispatch", "after_dispatch", "end_dispatch", "on_dispatch_paused"),
    *("run_outside_dispatch", "restore", "on_head_parked", "on_dead", "on_publish_refused"),
    "on_duplicate",
)
IN_REVERSE = (
    *("held", "held_count", "release_due", "on_removed", "on_removal_undone", "on_purged"),
    "on_deleted",
)
CALLS: tuple[Callable[[FeatureHooks], object], ...] = (
    lambda hooks: hooks.on_enqueue([MESSAGE]),
    lambda hooks: hooks.on_take([MESSAGE]),
    lambda hooks: hooks.on_requeue([MESSAGE], Outcome.NACKED),
    lambda hooks: hooks.on_write_refused(1),
    lambda hooks: hooks.as_delivered([MESSAGE]),
    lambda hooks: hooks.on_unused(),
    lambda hooks: hooks.before_dispatch(),
    lambda hooks: hooks.after_dispatch(),
    lambda hooks: hooks.dispatch_later(),
    lambda hooks: hooks.run_outside_dispatch(),
    lambda hooks: hooks.restore({}),
    lambda hooks: hooks.park_dead([], DeadLetterReason.EXPIRED, 0),
    lambda hooks: hooks.on_dead([MESSAGE], DeadLetterReason.EXPIRED),
    lambda hooks: hooks.on_publish_refused(MESSAGE),
    lambda hooks: hooks.on_duplicate(MESSAGE),
    lambda hooks: hooks.held(),
    lambda hooks: hooks.held_count,
    lambda hooks: hooks.on_removed([MESSAGE]),
    lambda hooks: hooks.on_removal_undone([MESSAGE]),
    lambda hooks: hooks.on_purged(),
    lambda hooks: hooks.on_deleted(),
)


Kind = type[Feature]


def recording(slot: Kind, only: tuple[str, ...], said: list[tuple[str, Kind]]) -> Feature:
    """A feature that overrides some hooks, and notes when one is called."""

    def override(hook: str) -> Callable[..., Any]:
        def called(*_: object) -> Any:
            said.append((hook, slot))
            return ANSWERS.get(hook)

        return called

    kind: Kind = type("Recording", (Feature,), {hook: override(hook) for hook in only})
    return kind()


def hooks_of(features: dict[Kind, tuple[str, ...]], said: list[tuple[str, Kind]]) -> FeatureHooks:
    """Hooks with a recording feature in the place of each of some."""
    queue: Any = SimpleNamespace(publish_filter=None, wake=lambda: None)
    pace = SimpleNamespace(is_paused=True, wait=lambda _: None)
    around: Any = SimpleNamespace(now_ms=lambda: 0, pace=pace, is_nested=False)
    context = FeatureContext(
        around, around, around, around, serve=lambda _: False, expire=lambda _: None
    )
    hooks = FeatureHooks(queue, context)
    # Paused as one with a dead letter exchange is; a recording one has its place, or none.
    hooks.dead_letters.is_set = True
    del hooks._features[DeadLetters]
    for slot, only in features.items():
        hooks._features[slot] = recording(slot, only, said)
    hooks.rebuild()
    return hooks


def test_the_ranks() -> None:
    """Each has its reason, which stands beside the table."""
    assert (
        *(QueueSequence, Expiry, PendingDeadLetters, DeadLetters),
        *(Dedup, Redelivery, LengthLimit, QueueExpiry),
    ) == FEATURES


@pytest.mark.parametrize("hook", [*BY_RANK, *IN_REVERSE])
def test_a_hook_is_called_in_the_order_of_the_ranks(hook: str) -> None:
    said: list[tuple[str, Kind]] = []
    hooks = hooks_of(dict.fromkeys(FEATURES, (*BY_RANK, *IN_REVERSE)), said)
    for call in CALLS:
        call(hooks)
    slots = FEATURES if hook in BY_RANK else FEATURES[::-1]
    assert [slot for name, slot in said if name == hook] == list(slots)


def test_the_steps_of_a_dispatch() -> None:
    said: list[tuple[str, Kind]] = []
    steps = ("end_dispatch", "after_dispatch", "before_dispatch", "release_due", "on_written")
    hooks = hooks_of({Expiry: steps, Redelivery: steps}, said)
    assert hooks.before_dispatch()
    hooks.after_dispatch()
    assert [hook for hook, slot in said if slot is Expiry] == list(reversed(steps))
    assert [slot for hook, slot in said if hook == "release_due"] == [Redelivery, Expiry]
    parked = said.index(("release_due", Redelivery))
    assert parked < said.index(("before_dispatch", Expiry))


def test_who_has_more_to_do_first_keeps_the_others_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ANSWERS, "before_dispatch", False)
    said: list[tuple[str, Kind]] = []
    hooks = hooks_of({Expiry: ("before_dispatch",), LengthLimit: ("before_dispatch",)}, said)
    assert not hooks.before_dispatch()
    assert said == [("before_dispatch", Expiry)]


def test_what_one_takes_out_the_next_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ANSWERS, "on_take", [])
    hooks = hooks_of({Redelivery: ("on_take",)}, [])
    assert hooks.on_take([MESSAGE]) == []


def test_every_hook_is_tested() -> None:
    """Whoever adds one says here in which order it is called."""
    named = {name for name, what in vars(Feature).items() if callable(what)}
    assert named - {"wants", "recall"} == {*BY_RANK, *IN_REVERSE}


def test_who_does_not_want_a_hook_is_not_called() -> None:
    said: list[tuple[str, Kind]] = []
    hooks = hooks_of({Expiry: ("on_take",), LengthLimit: ("held_count",)}, said)
    for call in CALLS:
        call(hooks)
    assert {(hook, slot) for hook, slot in said} == {
        ("on_take", Expiry),
        ("held_count", LengthLimit),
    }


def test_a_note_is_asked_of_the_feature_that_wrote_it() -> None:
    world = World()
    client = world.connect()
    client.open()
    declare(client, "q", delivery_limit=3, message_deduplication=True, cache_size=5)
    publish(client, "q", b"a", headers={"x-deduplication-header": "k"})
    hooks = world.vhost.queues["q"].hooks
    assert hooks is not None
    assert hooks.recall(b"dsk") is not None
    assert hooks.recall(b"r" + bytes(8)) is None
    assert hooks.recall(b"x") is None
    assert hooks.recall(b"?") is None


def test_a_queue_calls_only_what_it_has() -> None:
    world = World()
    client = world.connect()
    client.open()
    declare(client, "plain")
    declare(client, "limited", max_length=3)
    assert world.vhost.queues["plain"].hooks is None
    hooks = world.vhost.queues["limited"].hooks
    assert hooks is not None
    wanted = {hook for hook in (*BY_RANK, *IN_REVERSE) if getattr(hooks, f"_{hook}")}
    assert wanted == {
        *("on_requeue", "before_dispatch", "after_dispatch", "run_outside_dispatch"),
        *("on_publish_refused", "on_purged", "on_deleted"),
    }
