"""`vouchmq show queue NAME` and so on: one object, and the objects around it.

A queue with its bindings and consumers, an exchange with its bindings, a connection with its
channels and consumers. Must not know how the broker is asked.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

from vouchmq.server.cli.program import CommandFailed
from vouchmq.server.cli.running.listing import cell, print_facts
from vouchmq.server.cli.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vouchmq.server.cli.client import Broker

Row = dict[str, Any]
LEFT_OUT: Final = frozenset({"vhost"})


class Around(NamedTuple):
    """A listing that belongs to an object.

    Args:
        listing: its name
        belongs: whether a row of it does, to the row of the object
        selected: arguments that have the broker leave out most of the others
    """

    listing: str
    belongs: Callable[[Row, Row], bool]
    selected: Callable[[Row], Mapping[str, object]]


def _in_vhost(row: Row) -> Mapping[str, object]:
    return {"vhost": row["vhost"]}


def _is_bound(binding: Row, queue: Row) -> bool:
    return (binding["destination_type"], binding["destination"]) == ("queue", queue["name"])


def _has_binding(binding: Row, exchange: Row) -> bool:
    is_destination = binding["destination_type"] == "exchange"
    return exchange["name"] in {
        binding["source"],
        binding["destination"] if is_destination else None,
    }


def _is_of_connection(row: Row, connection: Row) -> bool:
    return bool(row["connection"] == connection["name"])


AROUND: Final[Mapping[str, tuple[Around, ...]]] = {
    "queue": (
        Around("bindings", _is_bound, _in_vhost),
        Around(
            "consumers",
            lambda consumer, queue: consumer["queue"] == queue["name"],
            lambda queue: {"vhost": queue["vhost"], "name": queue["name"]},
        ),
    ),
    "exchange": (Around("bindings", _has_binding, _in_vhost),),
    "vhost": (),
    "connection": (
        Around("channels", _is_of_connection, lambda row: {"name": row["name"]}),
        Around("consumers", _is_of_connection, lambda _: {}),
    ),
}


def show(
    broker: Broker,
    kind: str,
    name: str,
    vhost: str | None,
    *,
    as_json: bool,
    out: TextIO | None = None,
) -> int:
    """Print one object; returns the exit code.

    Raises:
        CommandFailed: there is none of this name, or no broker
    """
    out = sys.stdout if out is None else out
    selected = {"name": name} if vhost is None else {"name": name, "vhost": vhost}
    row = next(iter(broker.rows(f"list {kind}s", **selected)), None)
    if row is None:
        where = "" if vhost is None else f" in virtual host {vhost!r}"
        raise CommandFailed(f"there is no {kind} {name!r}{where}")
    around = {
        each.listing: [
            other
            for other in broker.rows(f"list {each.listing}", **each.selected(row))
            if each.belongs(other, row)
        ]
        for each in AROUND[kind]
    }
    if as_json:
        out.write(json.dumps({**row, **around} if around else row, indent=2) + "\n")
        return 0
    print_facts(f"{kind} {cell(name)}", row, out)
    for listing, rows in around.items():
        _print_rows(listing, rows, out)
    return 0


def _print_rows(title: str, rows: list[Row], out: TextIO) -> None:
    if not rows:
        out.write(f"no {title}\n")
        return
    heads = [head for head in rows[0] if head not in LEFT_OUT]
    numbers = frozenset(at for at, head in enumerate(heads) if type(rows[0][head]) in {int, float})
    print_table(
        title, heads, [[cell(row[head]) for head in heads] for row in rows], out, numbers=numbers
    )
