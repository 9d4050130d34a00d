"""`vouchmq top`: rates of queues or connections, as they change.

    listings, twice ─▶ differences by time ─▶ rows, the busiest first ─▶ a screen, text or JSON

Counters of a broker only grow, and start again with it; a rate is what one has grown by since the
last look, divided by the time between. Must not know how the broker is asked.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from heapq import nlargest, nsmallest
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

from vouchmq.server.cli.running.listing import cell, order
from vouchmq.server.cli.tables import print_table
from vouchmq.server.cli.units import amount, count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from vouchmq.server.cli.client import Broker

Row = dict[str, Any]


class Column(NamedTuple):
    """One column of a view.

    Args:
        head: what it is called, also by `--sort`
        source: the column of the listing
        shown: makes text of its value
        is_rate: per second, and not as it is
    """

    head: str
    source: str
    shown: Callable[[Any], str] = cell
    is_rate: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """What is shown of one listing; `key` identifies an object from one look to the next."""

    listing: str
    key: tuple[str, ...]
    sort: str
    columns: tuple[Column, ...]

    @property
    def heads(self) -> list[str]:
        """The names of the columns."""
        return [column.head for column in self.columns]


VIEWS: Final[Mapping[str, View]] = {
    "queues": View(
        "queues",
        ("vhost", "name"),
        "ready",
        (
            *(Column("vhost", "vhost"), Column("queue", "name")),
            Column("ready", "messages_ready", count),
            Column("unacked", "messages_unacknowledged", count),
            Column("consumers", "consumers", count),
            Column("in/s", "published", count, is_rate=True),
            Column("out/s", "delivered", count, is_rate=True),
            Column("ack/s", "acked", count, is_rate=True),
        ),
    ),
    "connections": View(
        "connections",
        ("name",),
        "received/s",
        (
            *(Column("connection", "name"), Column("user", "user"), Column("vhost", "vhost")),
            *(Column("state", "state"), Column("channels", "channels", count)),
            Column("unacked", "unacknowledged_bytes", amount),
            Column("received/s", "received_bytes", amount, is_rate=True),
            Column("sent/s", "sent_bytes", amount, is_rate=True),
        ),
    ),
}
RATES: Final = ("published", "confirmed", "delivered", "acked", "received_bytes", "sent_bytes")
LEVELS: Final = (
    *("messages_ready", "messages_unacknowledged", "queues"),
    *("connections", "connections_blocked", "channels", "consumers"),
)


@dataclass(slots=True)
class Look:
    """What a broker had counted at one time."""

    at: float
    overview: Row
    rows: dict[tuple[str, ...], Row]
    alarms: list[str] = field(default_factory=list)


class Frame(NamedTuple):
    """What one screen shows: the whole broker, and one row for each object."""

    overview: Row
    rows: list[Row]
    alarms: list[str]


class Top:
    """Looks at a broker again and again.

    Args:
        broker: is asked
        clock: monotonic seconds
        view: what is shown
        sort: the head of the column by which rows are sorted; empty: that of the view
    """

    def __init__(
        self, broker: Broker, clock: Callable[[], float], view: View, sort: str = ""
    ) -> None:
        self._broker = broker
        self._clock = clock
        self.view = view
        self.sort = sort or view.sort
        self.is_reversed = False
        self._last: Look | None = None

    def change_view(self) -> None:
        """Show the next listing."""
        names = list(VIEWS)
        self.view = VIEWS[names[(names.index(self.view.listing) + 1) % len(names)]]
        self.sort = self.view.sort
        self._last = None

    def change_sort(self) -> None:
        """Sort by the next column."""
        heads = self.view.heads
        self.sort = heads[(heads.index(self.sort) + 1) % len(heads)]

    def look(self) -> Frame:
        """Ask the broker; rates are since the last time, 0 at the first.

        Raises:
            CommandFailed: there is no broker
        """
        view = self.view
        at = self._clock()
        [overview] = self._broker.rows("list overview")
        rows = {
            tuple(str(row[name]) for name in view.key): row
            for row in self._broker.rows(f"list {view.listing}")
        }
        alarms = [row["name"] for row in self._broker.rows("list alarms") if row["raised"]]
        now = Look(at, overview, rows, alarms)
        before = self._last or now
        self._last = now
        elapsed_s = now.at - before.at
        shown = [
            {
                column.head: rate(row, before.rows.get(key), column.source, elapsed_s)
                if column.is_rate
                else row[column.source]
                for column in view.columns
            }
            for key, row in rows.items()
        ]
        whole = {f"{name}/s": rate(overview, before.overview, name, elapsed_s) for name in RATES}
        return Frame({**{name: overview[name] for name in LEVELS}, **whole}, shown, alarms)

    def first(self, rows: list[Row], limit: int) -> list[Row]:
        """So many rows, in order: text from a to z, numbers from the largest."""
        if not rows:
            return []
        is_number = isinstance(rows[0][self.sort], int | float)
        choose = nlargest if is_number is not self.is_reversed else nsmallest
        return choose(limit, rows, key=lambda row: order(row[self.sort]))


def rate(row: Row, before: Row | None, name: str, elapsed_s: float) -> float:
    """By how much a counter has grown each second.

    One that was not there before, or counted more, has grown from 0: the broker has been restarted,
    or it is another object with the same name.
    """
    if elapsed_s <= 0:
        return 0.0
    was = before[name] if before is not None and before[name] <= row[name] else 0
    return float(row[name] - was) / elapsed_s


def head_lines(frame: Frame) -> Iterator[str]:
    """The lines above the rows."""
    whole = frame.overview
    yield (
        f"published {count(whole['published/s'])}/s, confirmed {count(whole['confirmed/s'])}/s, "
        f"delivered {count(whole['delivered/s'])}/s, acked {count(whole['acked/s'])}/s, "
        f"in {amount(whole['received_bytes/s'])}/s, out {amount(whole['sent_bytes/s'])}/s"
    )
    yield (
        f"ready {whole['messages_ready']:,}, unacked {whole['messages_unacknowledged']:,}, "
        f"queues {whole['queues']:,}, connections {whole['connections']:,} "
        f"({whole['connections_blocked']:,} blocked), channels {whole['channels']:,}, "
        f"consumers {whole['consumers']:,}"
    )
    yield f"alarms: {', '.join(frame.alarms) or 'none'}"


def cells(view: View, row: Row) -> list[str]:
    """One row as text."""
    return [column.shown(row[column.head]) for column in view.columns]


def numbers(view: View) -> frozenset[int]:
    """The columns that are set to the right."""
    return frozenset(at for at, each in enumerate(view.columns) if each.shown is not cell)


def print_once(
    top: Top, sleep: Callable[[float], None], interval_s: float, out: TextIO, *, as_json: bool
) -> int:
    """Look twice and print the difference; returns the exit code."""
    top.look()
    sleep(interval_s)
    frame = top.look()
    rows = top.first(frame.rows, len(frame.rows))
    if as_json:
        document = {"overview": frame.overview, "alarms": frame.alarms, top.view.listing: rows}
        out.write(json.dumps(document, indent=2) + "\n")
        return 0
    out.writelines(f"{line}\n" for line in head_lines(frame))
    if not rows:
        out.write(f"no {top.view.listing}\n")
        return 0
    table = [cells(top.view, row) for row in rows]
    print_table(top.view.listing, top.view.heads, table, out, numbers=numbers(top.view))
    return 0
