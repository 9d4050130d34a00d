"""What rows cost: a stream read into Arrow record batches in one process, beside a loop with pika.

No Spark: this is what one task of mode `stream` does, and what the driver of modes `queue` and
`spool` does. `two_columns` shows what a schema of the user's saves.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench.pipeline import loops
from bench.pipeline.row import Demand, Place, Play, Row, RowError, Values
from vouchmq.kit.bulk import BulkConnection

STREAM: Final = "bench.arrow"
MESSAGES: Final = 60_000
BATCH_ROWS: Final = 5000
PREFETCH: Final = 4000
PIKA, ALL_COLUMNS, TWO_COLUMNS = "pika", "all_columns", "two_columns"


def read(url: str, count: int, columns: tuple[str, ...]) -> float:
    """Read so many messages of the stream into record batches; rows per second.

    Raises:
        RowError: they do not come, or not in order
    """
    from vouchmq.spark.rows import batch_from

    with BulkConnection.open(url) as connection, connection.channel() as channel:
        channel.qos(PREFETCH)
        began = time.perf_counter()
        channel.consume(STREAM, arguments={"x-stream-offset": "first"})
        rows, last = 0, -1
        while rows < count:
            run = channel.wait(min(BATCH_ROWS, PREFETCH // 2, count - rows), loops.PATIENCE_S)
            if not run:
                raise RowError(f"{rows} of {count} messages came")
            channel.ack(run[-1][0], multiple=True)
            batch = batch_from(STREAM, run, columns)
            first, rows = batch.column("offset")[0].as_py(), rows + batch.num_rows
            if first <= last:
                raise RowError(f"offset {first} came after {last}")
            last = batch.column("offset")[batch.num_rows - 1].as_py()
        took = time.perf_counter() - began
        channel.fence()
    return rows / took


@contextmanager
def measure(place: Place) -> Iterator[Play]:
    """The same stream again and again, from its beginning."""
    from vouchmq.spark.columns import ALL

    count = place.scaled(MESSAGES)
    loops.delete(place.url, STREAM)
    loops.fill(place.url, STREAM, count, stream=True)
    columns = {ALL_COLUMNS: ALL, TWO_COLUMNS: ("body", "offset")}
    read(place.url, loops.CHUNK, ALL)  # pyarrow is imported when first used

    def play(arm: str) -> Values:
        cpu_s = time.process_time()
        if arm == PIKA:
            rate = loops.pika_consume(place.url, STREAM, count, stream=True)
        else:
            rate = read(place.url, count, columns[arm])
        spent_us = (time.process_time() - cpu_s) / count * 1e6
        return {"rows_per_s": round(rate), "client_cpu_us": round(spent_us, 2)}

    yield play
    loops.delete(place.url, STREAM)


ROWS: Final = (
    Row(
        "arrow_rows",
        "a stream read into Arrow rows with the bulk client, in one process",
        (PIKA, ALL_COLUMNS, TWO_COLUMNS),
        measure,
        (
            Demand("rows_per_s", ALL_COLUMNS, PIKA, at_least=1.5),
            Demand("rows_per_s", TWO_COLUMNS, PIKA),
        ),
    ),
)
