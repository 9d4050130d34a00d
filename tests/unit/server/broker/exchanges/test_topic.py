"""Topic matching against the measured truth table, and the bounds of a binding key."""

from __future__ import annotations

import pytest

from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.server.broker.exchanges.bindings import Binding
from vouchmq.server.broker.exchanges.topic import STEP_NODES, TopicRouter

KEYS = ("", "a", "b", "a.b", "a.c", "a.b.c", ".", "a.", ".a", "a..b")
# EXCH-40, row by row; an x stands for a match.
TRUTH = {
    "#": "xxxxxxxxxx",
    "#.#": "xxxxxxxxxx",
    "*": " xx       ",
    "*.#": " xxxxxxxxx",
    "*.*": "   xx xxx ",
    "a.*": "   xx  x  ",
    "a.#": " x xxx x x",
    "*.b": "   x      ",
    "#.b": "  xx     x",
    "a.*.c": "     x    ",
    "a.#.c": "    xx    ",
    "#.a.#": " x xxx xxx",
    "a..b": "         x",
    "": "x         ",
}


def bound(router: TopicRouter, key: str, queue: str = "q") -> Binding:
    binding = Binding("x", "queue", queue, key, {})
    router.add(binding)
    return binding


def matches(pattern: str, *keys: str) -> bool:
    router = TopicRouter()
    bound(router, pattern)
    return bool(list(filter(None, router.match(keys, None))))


@pytest.mark.parametrize("pattern", TRUTH)
def test_match_follows_the_measured_truth_table(pattern: str) -> None:
    assert "".join("x" if matches(pattern, key) else " " for key in KEYS) == TRUTH[pattern]


@pytest.mark.parametrize("pattern", ["a*", "*a", "a#", "#a", "**", "##"])
def test_wildcards_count_as_whole_words_only(pattern: str) -> None:
    assert matches(pattern, pattern)
    assert not matches(pattern, "a")
    assert not matches(pattern, "aa")


def test_wildcards_in_a_message_key_are_plain_words() -> None:
    assert matches("a.*", "a.#")
    assert matches("a.#", "a.*.b")
    assert not matches("a.b", "a.*")
    assert not matches("a.b", "a.#")


def test_any_key_of_several_suffices() -> None:
    assert matches("b.*", "a.a", "b.a")
    assert not matches("b.*", "a.a", "c.a")


def test_removal_leaves_the_other_bindings_and_no_empty_branch() -> None:
    router = TopicRouter()
    long = bound(router, "a.b.c.d")
    short = bound(router, "a.b")
    twin = bound(router, "a.b", "q2")
    router.remove(long)
    assert not list(filter(None, router.match(["a.b.c.d"], None)))
    router.remove(short)
    assert list(filter(None, router.match(["a.b"], None))) == [twin]
    router.remove(twin)
    assert not router._root.children


def test_thousands_of_bindings_come_and_go() -> None:
    router = TopicRouter()
    bindings = [bound(router, f"a.{i}.#", f"q{i}") for i in range(20_000)]
    assert list(filter(None, router.match(["a.777.x"], None))) == [bindings[777]]
    for binding in bindings:
        router.remove(binding)
    assert not router._root.children


def test_patterns_full_of_wildcards_stay_quick() -> None:
    # A backtracking matcher needs more steps here than there are atoms; the time limit of the
    # test run is the judge.
    router = TopicRouter()
    for i in range(60):
        bound(router, ".".join(["*"] * i + ["#", "a", "#"]), f"q{i}")
    assert not list(filter(None, router.match([".".join(["b"] * 120)], None)))


@pytest.mark.parametrize(("key", "count"), [("#.a.#.b.#", 3), ("#.#.#.#", 4)])
def test_more_than_two_hashes_are_refused(key: str, count: int) -> None:
    with pytest.raises(PreconditionFailed) as refusal:
        TopicRouter().validate(Binding("x", "queue", "q", key, {}))
    assert refusal.value.reply_text == (
        f"PRECONDITION_FAILED - Topic binding key '{key}' uses {count} '#' wildcards, "
        "at most 2 are allowed"
    )


@pytest.mark.parametrize("key", ["#.a.#", "#", "a#.#.#.##", ""])
def test_up_to_two_hashes_are_accepted(key: str) -> None:
    TopicRouter().validate(Binding("x", "queue", "q", key, {}))


def test_a_walk_through_very_many_nodes_can_be_interrupted() -> None:
    """LIMIT-23: each word doubles the nodes that a key of this kind reaches."""
    router = TopicRouter()
    for number in range(2**10):
        words = ("*" if number >> bit & 1 else "a" for bit in range(10))
        router.add(Binding("e", "queue", "q", ".".join((*words, "end")), {}))
    steps = list(router.match([".".join(["a"] * 11)], None))
    assert not list(filter(None, steps))
    assert len(steps) >= 2**10 // STEP_NODES
