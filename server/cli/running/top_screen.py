"""The screen of `vouchmq top`: redrawn at each look, and at each key.

Must not know where the numbers come from.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vouchmq.server.cli.running.top import cells, head_lines, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vouchmq.server.cli.running.top import Frame, Top

KEYS: Final = "q quit   t queues/connections   s next sort column   r reverse"
# What of the screen is not rows: heads, lines around the table, keys.
OTHER_LINES: Final = 8
KEY_BYTES: Final = 64


def run(top: Top, interval_s: float) -> int:
    """Show it until somebody presses q; returns the exit code.

    Raises:
        CommandFailed: the broker has gone
    """
    console = Console()
    with keys_at_once(sys.stdin.fileno()) as terminal:
        frame = top.look()
        with Live(drawn(top, frame, console.height), console=console, screen=True) as live:
            due_at = time.monotonic() + interval_s
            while True:
                pressed = next_keys(terminal, max(0.0, due_at - time.monotonic()))
                if "q" in pressed:
                    return 0
                has_changed_view = press(top, pressed)
                if has_changed_view or time.monotonic() >= due_at:
                    frame = top.look()
                    due_at = time.monotonic() + interval_s
                live.update(drawn(top, frame, console.height), refresh=True)


def press(top: Top, keys: str) -> bool:
    """Do what keys are for; whether something else must be asked for now."""
    for key in keys:
        if key == "s":
            top.change_sort()
        elif key == "r":
            top.is_reversed = not top.is_reversed
        elif key == "t":
            top.change_view()
    return keys.count("t") > 0


def drawn(top: Top, frame: Frame, height: int) -> Group:
    """One screen."""
    view = top.view
    table = Table(expand=True)
    to_the_right = numbers(view)
    rows = [cells(view, row) for row in top.first(frame.rows, max(1, height - OTHER_LINES))]
    for at, head in enumerate(view.heads):
        is_number = at in to_the_right
        mark = (" ▴" if top.is_reversed else " ▾") if head == top.sort else ""
        table.add_column(
            Text(head + mark),
            justify="right" if is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            # A number that is cut off would be another one.
            min_width=max((len(row[at]) for row in rows), default=0) if is_number else None,
        )
    for row in rows:
        # Text, as names may hold what rich takes for markup.
        table.add_row(*map(Text, row))
    heads = [Text(line, no_wrap=True, overflow="ellipsis") for line in head_lines(frame)]
    if frame.alarms:
        heads[-1].stylize("bold red")
    return Group(*heads, table, Text(KEYS, style="dim", no_wrap=True))


@contextmanager
def keys_at_once(terminal: int) -> Iterator[int]:
    """Get each key when it is pressed, and do not show it."""
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield terminal
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def next_keys(terminal: int, limit_s: float) -> str:
    """What has been pressed; empty after this time. The end of the input is a q."""
    ready, _, _ = select.select([terminal], [], [], limit_s)
    if not ready:
        return ""
    return os.read(terminal, KEY_BYTES).decode("ascii", "replace") or "q"
