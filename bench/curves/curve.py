"""What a curve is: sizes, and how the point of one size is measured; values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.curves.stage import Stage


@dataclass(frozen=True, slots=True)
class Curve:
    """A question of the form: what does one cost when there are that many of the other?

    Args:
        name: on the command line, and of its picture
        title: what grows
        per: what one item is
        sizes: the points
        quick: the sizes of a quick run
        play: measures one point on a fresh broker
        flags: of that broker
    """

    name: str
    title: str
    per: str
    sizes: tuple[int, ...]
    quick: tuple[int, ...]
    play: Callable[[Stage, int, bool], None]
    flags: tuple[str, ...] = ()
