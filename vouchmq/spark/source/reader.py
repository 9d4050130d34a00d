"""What Spark calls of a query that takes messages out of queues, in either mode.

An instance on the driver has a state, its driver; those elsewhere only `read`. Must not know how
messages are kept.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from vouchmq.spark.errors import sentence_only
from vouchmq.spark.options import SourceOptions
from vouchmq.spark.progress import BACKLOG

log = logging.getLogger("vouchmq.spark")


@contextmanager
def telling() -> Iterator[None]:
    """Write the reason to stderr before Spark ends the process: not every end of it is shown."""
    try:
        with sentence_only():
            yield
    except BaseException as error:
        log.error("vouchmq source: %s: %s", type(error).__name__, error)
        raise


class Driver(Protocol):
    """The state of a query, in the process beside Spark's driver."""

    def prepare_available_now(self) -> None:
        """This run ends with what is in the queues now."""

    def latest(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` itself when there is none."""

    def finish(self, end: dict[str, Any]) -> None:
        """Batches up to `end` are done with."""

    def backlog(self) -> dict[str, Any]:
        """What is not handed out yet, and what the batch under way has."""

    def stop(self) -> None:
        """Release what the reader holds when the query ends."""


DriverT = TypeVar("DriverT", bound=Driver)


class RefusingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Of a query that cannot be: whatever is asked of it, it raises what is wrong."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _refuse(self) -> NoReturn:
        with telling():
            raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Raise the error that was found when the query began."""
        self._refuse()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Raise the error that was found when the query began."""
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Raise the error that was found when the query began."""
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Raise the error that was found when the query began."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the error that was found when the query began."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raise the error that was found when the query began."""
        self._refuse()


class QueryReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[DriverT]):
    """What is the same in mode queue and in mode spool."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        """Opens nothing: Spark makes instances where there is nothing to be opened."""
        self._options = options
        self._columns = columns
        self._driver: DriverT | None = None

    @abstractmethod
    def new_driver(self) -> DriverT:
        """A driver that has not begun."""

    @property
    def driver(self) -> DriverT:
        """What the driver-side instance does; made with the first call."""
        if self._driver is None:
            self._driver = self.new_driver()
        return self._driver

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """At most `maxMessagesPerTrigger` messages in a batch."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """This run ends with what is in the queues now."""
        with telling():
            self.driver.prepare_available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Finish what is up to `start`, take the next batch; `start` itself when there is none."""
        with telling():
            return self.driver.latest(start, limit)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's
        """For `latestOffset` of a query's progress; `vouchmq.spark.progress` reads it."""
        return None if self._driver is None else {"v": 1, BACKLOG: self._driver.backlog()}

    def commit(self, end: dict[str, Any]) -> None:
        """Batches up to `end` are done with, if that is not known already."""
        with telling():
            self.driver.finish(end)

    def stop(self) -> None:
        """What is not acked goes back to the queue."""
        if self._driver is not None:
            self._driver.stop()
