"""Columns in, columns out: a run of deliveries as lists, lists as a run of publishes.

Knows no socket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from vouchmq.kit.bulk.frames import Delivery
from vouchmq.kit.bulk.properties import NAMES, encode_properties

if TYPE_CHECKING:
    from vouchmq.kit.bulk.confirms import Row

DELIVERY_COLUMNS: Final = (
    *("tag", "redelivered", "exchange", "routing_key", "properties_raw", "body"),
)
PUBLISH_COLUMNS: Final = frozenset(
    {"exchange", "routing_key", "properties_raw", "body", "type", *NAMES}
)

Columns: TypeAlias = Mapping[str, object]
_SCALARS: Final = (str, bytes, int, float, Mapping)


def columns_of(deliveries: Sequence[Delivery]) -> dict[str, list[object]]:
    """One list for each field of the deliveries, by the names of `DELIVERY_COLUMNS`."""
    if not deliveries:
        return {name: [] for name in DELIVERY_COLUMNS}
    lists = map(list, zip(*deliveries, strict=True))
    return dict(zip(DELIVERY_COLUMNS, lists, strict=True))


def rows_of(columns: Columns) -> Iterator[Row]:
    """The publishes that columns describe.

    A column is a sequence, or one value for all rows; `body` must be a sequence of bytes.
    `properties_raw`, where it is not None, is sent as it is; else the columns of properties make
    them. Exchange and routing key are empty where there is no column.

    Raises:
        ValueError: no `body`, a column of another name, or of another length
        PropertiesError: a value does not fit
    """
    unknown = columns.keys() - PUBLISH_COLUMNS
    if unknown:
        raise ValueError(f"no column {min(unknown)!r} can be published")
    body = columns.get("body")
    if not isinstance(body, Sequence) or isinstance(body, str | bytes):
        raise ValueError("body must be a sequence of bytes")
    count = len(body)
    lists = {name: _values(name, column, count) for name, column in columns.items()}
    return _rows(lists, count)


def _rows(lists: dict[str, Sequence[object]], count: int) -> Iterator[Row]:
    empty: Sequence[object] = _Same("", count)
    none: Sequence[object] = _Same(None, count)
    exchanges = lists.get("exchange", empty)
    keys = lists.get("routing_key", empty)
    raws = lists.get("properties_raw", none)
    bodies = lists["body"]
    named = [name for name in lists if name in NAMES or name == "type"]
    values = [lists[name] for name in named]
    for place in range(count):
        raw = raws[place]
        if raw is None:
            raw = encode_properties(
                {name: column[place] for name, column in zip(named, values, strict=True)}
            )
        body = bodies[place]
        if not isinstance(body, bytes) or not isinstance(raw, bytes):
            raise TypeError(f"row {place}: body and properties_raw must be bytes")
        yield str(exchanges[place]), str(keys[place]), raw, body


class _Same(Sequence[object]):
    """One value for every row."""

    def __init__(self, value: object, count: int) -> None:
        self._value = value
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: object) -> object:  # type: ignore[override]  # of a list
        return self._value


def _values(name: str, column: object, count: int) -> Sequence[object]:
    if column is None or isinstance(column, _SCALARS) or not isinstance(column, Sequence):
        return _Same(column, count)
    if len(column) != count:
        raise ValueError(f"column {name!r} has {len(column)} values, body has {count}")
    return column
