"""What a row of the pipeline's table is: arms played in turn, and demands on their ratios.

A row is a module of this folder that has `ROWS`. It says what is measured; the frame decides when,
how often, and what the figures are worth. A minimal one:

    @contextmanager
    def measure(place: Place) -> Iterator[Play]:
        loops.fill(place.url, QUEUE, count)           # once
        yield lambda arm: {"rows_per_s": ...}         # one go of one arm, as often as asked
        loops.delete(place.url, QUEUE)

    ROWS: Final = (
        Row("bulk_stream", "what the bulk client saves", ("pika", "bulk"), measure,
            (Demand("rows_per_s", "bulk", "pika", at_least=2.0),)),
    )

Modules are imported to list their rows, so pyspark and pyarrow belong inside `measure`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS: Final = "vouchmq"
THEIRS: Final = "rabbitmq"
QUICK_SHARE: Final = 5
Values = dict[str, float]
Play = Callable[[str], Values]


class RowError(Exception):
    """A go of an arm does not count, and why: rows are missing, doubled or not what they were."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row is played: a broker or none, a directory of its own, a session of Spark."""

    server: Server | None
    directory: Path
    is_quick: bool
    session: Callable[[], SparkSession]
    """The run's one session, started when first asked for: local[2], 1 GiB of heap, no UI."""

    @property
    def name(self) -> str:
        """`vouchmq` or `rabbitmq`; empty where no broker takes part."""
        return self.server.name if self.server else ""

    @property
    def url(self) -> str:
        """The broker's URL.

        Raises:
            RowError: the row said that it needs no broker
        """
        if self.server is None:
            raise RowError("a row without `servers` has no URL")
        at = self.server.address
        vhost = "%2F" if at.vhost == "/" else at.vhost
        return f"amqp://{at.user}:{at.password}@{at.host}:{at.port}/{vhost}"

    def scaled(self, count: int) -> int:
        """So many messages, or a fifth with --quick."""
        return count // QUICK_SHARE if self.is_quick else count


@dataclass(frozen=True, slots=True)
class Demand:
    """What a figure of an arm must be, as a quotient with another arm's or by itself.

    The quotient is taken within each round, where both arms ran next to each other, and the
    median of the rounds is judged. `at_least` and `at_most` may both be given, or neither: then
    the figure is shown and not judged.
    """

    value: str
    over: str
    under: str = ""
    at_least: float | None = None
    at_most: float | None = None
    server: str = ""
    """Only on this one; empty: on each that the row is played on."""

    def figure(self, played: dict[str, Values]) -> float | None:
        """The figure of one round; None when an arm has none."""
        top = played.get(self.over, {}).get(self.value)
        if top is None or not self.under:
            return top
        bottom = played.get(self.under, {}).get(self.value)
        return top / bottom if bottom else None

    def is_met(self, figure: float) -> bool:
        """Hold a figure against it."""
        return (self.at_least is None or figure >= self.at_least) and (
            self.at_most is None or figure <= self.at_most
        )

    @property
    def text(self) -> str:
        """What is demanded, such as `>= 2x`; empty where nothing is."""
        unit = "x" if self.under else ""
        bounds = ((">=", self.at_least), ("<=", self.at_most))
        return " and ".join(
            f"{sign} {bound:g}{unit}" for sign, bound in bounds if bound is not None
        )

    @property
    def subject(self) -> str:
        """What it is about, such as `rows_per_s bulk / pika`."""
        return f"{self.value} {self.over}" + (f" / {self.under}" if self.under else "")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a question, the arms that answer it, what is demanded."""

    name: str
    question: str
    arms: tuple[str, ...]
    measure: Callable[[Place], AbstractContextManager[Play]]
    demands: tuple[Demand, ...]
    servers: tuple[str, ...] = (OURS, THEIRS)
    """Which brokers it is played on, one after the other; empty: it needs none."""
    is_asked_for: bool = False
    """Played only when it is named: it takes too long for a run of all rows."""
