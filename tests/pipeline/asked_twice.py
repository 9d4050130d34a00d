"""A reader of which every question of Spark's is asked twice, and must be answered alike.

Spark asks `initialOffset` before the first `latestOffset`, before `partitions` of the first batch,
and again in every process that runs this batch again; other questions more than once in some
versions and plans. All models of a query in these tests go through here.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

_T = TypeVar("_T")


class AskedTwice:
    """Stands in for a reader; what is no question goes straight to it."""

    def __init__(self, reader: Any) -> None:
        self._asked = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._asked, name)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        limit: ReadLimit = _alike(self._asked.getDefaultReadLimit, repr)
        return limit

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        return _alike(self._asked.initialOffset, json.dumps)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        _alike(self._asked.prepareForTriggerAvailableNow, repr)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Nothing new may be something new a moment later; what was new stays as it was."""
        answer: dict[str, Any] = self._asked.latestOffset(start, limit)
        if json.dumps(answer) != json.dumps(start):
            assert json.dumps(self._asked.latestOffset(start, limit)) == json.dumps(answer)
        return answer

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return _alike(
            lambda: self._asked.partitions(start, end),
            lambda parts: pickle.dumps([vars(part) for part in parts]),
        )

    def commit(self, end: dict[str, Any]) -> None:
        _alike(lambda: self._asked.commit(end), repr)


def _alike(question: Callable[[], _T], text: Callable[[_T], object]) -> _T:
    first = question()
    assert text(question()) == text(first)
    return first
