"""Draw docs/internals/flow.svg: a publish, the turn, a confirm, a delivery, an ack, a dead letter.

Each row is one of them, each column a folder; what is in a box are functions, which
tests/test_flow.py resolves. The picture follows the reader's light or dark mode by itself.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

PICTURE: Final = Path(__file__).resolve().parents[1] / "docs" / "internals" / "flow.svg"
COLUMNS: Final = (
    "server/edge",
    "server/connection",
    "server/channel",
    "server/broker",
    "server/runtime",
    "store",
)
COLUMN_WIDTH: Final = 214
BOX_WIDTH: Final = 200
LEFT: Final = 92
TOP: Final = 48
LINE_HEIGHT: Final = 17
ROW_GAP: Final = 18
STYLE: Final = """
  svg { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; background: #ffffff }
  text { fill: #1f2328 } .head, .row { font-weight: 600 } .head { fill: #57606a }
  .box { fill: #f6f8fa; stroke: #8c959f } .way { stroke: #0969da; stroke-width: 2; fill: none }
  .tip { fill: #0969da } .rule { stroke: #d0d7de }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117 } text { fill: #e6edf3 } .head { fill: #9198a1 }
    .box { fill: #161b22; stroke: #6e7681 } .way { stroke: #58a6ff } .tip { fill: #58a6ff }
    .rule { stroke: #30363d }
  }
"""


class Row(NamedTuple):
    """One way of a message: its name, whether it goes to the left, functions by column."""

    name: str
    is_leftward: bool
    boxes: dict[int, tuple[str, ...]]


ROWS: Final = (
    Row(
        "publish",
        False,
        {
            0: ("SocketProtocol.receive",),
            1: ("Connection.receive", "InboundQueue.receive_data", "Reader.begin"),
            2: ("Channel.publish", "Publisher.publish", "StorePlan.store_run", "Channel.confirm"),
            3: ("Enqueuer.store", "ClassicQueue.enqueue"),
            5: ("Journal.append_run",),
        },
    ),
    Row(
        "turn",
        False,
        {
            4: ("Turn.run",),
            5: ("Journal.write", "GroupCommit.request", "HelperProcess.submit"),
        },
    ),
    Row(
        "confirm",
        True,
        {
            5: ("GroupCommit.on_readable", "Journal.end_sync"),
            4: ("BrokerContext.synced", "Turn.flush"),
            2: ("Channel.release", "Confirms.release"),
            1: ("Outbox.send", "Outbox.flush"),
            0: ("SocketProtocol.write",),
        },
    ),
    Row(
        "delivery",
        True,
        {
            4: ("Turn.run", "Turn.flush"),
            3: ("ClassicQueue.dispatch", "ClassicQueue.take", "ClassicQueue.deliver"),
            2: ("Consumer.capacity", "Consumer.deliver", "Unacked.add"),
            1: ("Outbox.add", "Outbox.flush"),
            0: ("SocketProtocol.write",),
        },
    ),
    Row(
        "ack",
        False,
        {
            0: ("SocketProtocol.receive",),
            1: ("Connection.receive",),
            2: ("Channel.ack_ranges", "Unacked.take_range", "Channel.settle"),
            3: ("ClassicQueue.settle", "ClassicQueue.log_settled"),
            5: ("Journal.settle",),
        },
    ),
    Row(
        "dead letter",
        False,
        {
            2: ("Channel.reject_ranges", "Channel.settle"),
            3: (
                "ClassicQueue.discard",
                "DeadLetterPublisher.send",
                "VHost.route",
                "Enqueuer.store",
            ),
            5: ("Journal.append_run", "Journal.settle"),
        },
    ),
)


def drawn() -> str:
    """The picture, which is a pure function of the tables above."""
    parts: list[str] = []
    y = TOP
    for row in ROWS:
        height = LINE_HEIGHT * max(map(len, row.boxes.values())) + 12
        parts += row_of(row, y, height)
        y += height + ROW_GAP
    width = LEFT + COLUMN_WIDTH * len(COLUMNS)
    heads = [
        f'<text class="head" x="{LEFT + COLUMN_WIDTH * at + BOX_WIDTH // 2}" y="24"'
        f' text-anchor="middle">{name}/</text>'
        for at, name in enumerate(COLUMNS)
    ]
    title = "The functions that a publish, a confirm, a delivery, an ack and a dead letter pass"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" role="img">',
            f"<title>{title}</title>",
            f"<style>{STYLE}</style>",
            *heads,
            *parts,
            "</svg>\n",
        ]
    )


def row_of(row: Row, y: int, height: int) -> list[str]:
    """The boxes of one row, and the arrows between those that follow each other."""
    middle = y + height // 2
    parts = [
        f'<line class="rule" x1="0" x2="{LEFT + COLUMN_WIDTH * len(COLUMNS)}"'
        f' y1="{y - ROW_GAP // 2}" y2="{y - ROW_GAP // 2}"/>',
        f'<text class="row" x="4" y="{middle + 4}">{row.name}</text>',
    ]
    order = sorted(row.boxes, reverse=row.is_leftward)
    for at, column in enumerate(order):
        left = LEFT + COLUMN_WIDTH * column
        if at + 1 < len(order):
            parts += arrow(left, LEFT + COLUMN_WIDTH * order[at + 1], middle)
        parts.append(
            f'<rect class="box" x="{left}" y="{y}" width="{BOX_WIDTH}" height="{height}" rx="5"/>'
        )
        names = row.boxes[column]
        first = middle - LINE_HEIGHT * (len(names) - 1) // 2 + 4
        parts += (
            f'<text x="{left + 8}" y="{first + LINE_HEIGHT * line}">{escape(name)}</text>'
            for line, name in enumerate(names)
        )
    return parts


def arrow(left: int, next_left: int, y: int) -> list[str]:
    """From one box to the next one, which may be several columns away."""
    step = 1 if next_left > left else -1
    start, end = (left + BOX_WIDTH, next_left) if step > 0 else (left, next_left + BOX_WIDTH)
    return [
        f'<path class="way" d="M{start} {y}H{end - 7 * step}"/>',
        f'<path class="tip" d="M{end} {y}l{-8 * step} -5v10z"/>',
    ]


def main() -> int:
    """Write the picture below docs/."""
    PICTURE.write_text(drawn(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
