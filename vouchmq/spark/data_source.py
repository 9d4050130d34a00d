"""The class that Spark knows: format `amqp`, its schema, and which reader or writer serves a call.

Each call takes place in another short-lived process, to which the class comes pickled by its name:
an instance holds the user's options and nothing else, and opens nothing. Readers and writers are
imported when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from vouchmq.spark.columns import SCHEMA_DDL, TYPED, TYPED_DDL, projection
from vouchmq.spark.errors import sentence_only
from vouchmq.spark.options import (
    QUEUE,
    SPOOL,
    STREAM,
    OptionError,
    SinkOptions,
    SourceOptions,
    refuse,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class AmqpDataSource(DataSource):
    """Queues, spooled queues and streams to read from, exchanges to write to.

    Options are looked at by whoever is asked for first: `schema()` at `load()`, or, where the user
    gives a schema, the reader when the query is planned; the writer before anything is sent.
    """

    # Whether tasks may run twice at once; see SpeculativeAmqpDataSource.
    is_speculative = False

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`: amqp."""
        return "amqp"

    @sentence_only()
    def schema(self) -> str:
        """All columns; asked for at `load()`, unless the user gives a schema.

        Raises:
            OptionError: an option of reading is wrong
        """
        return TYPED_DDL if SourceOptions.parse(self.options).typed_headers else SCHEMA_DDL

    @sentence_only()
    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`, which can read a stream only.

        Raises:
            OptionError: an option is wrong, or it is a queue that shall be read
            SchemaError: `schema` is no subset of the columns
        """
        options = SourceOptions.parse(self.options)
        columns = _columns(options, schema)
        if options.mode != STREAM:
            refuse(
                "mode",
                f"spark.read cannot read a queue (mode {options.mode}): a queue has no end at "
                "which a batch is done, so messages could only be lost or repeated; use "
                "spark.readStream with trigger(availableNow=True), or mode stream for a stream",
            )
        from vouchmq.spark.source.streams.mode import batch_reader

        return batch_reader(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """For `spark.readStream`.

        What is wrong with options, schema or spool is raised by the reader's first method: from
        here Spark would show an error of its own in the place of ours.
        """
        try:
            return self._stream_reader(schema)
        except Exception as error:  # noqa: BLE001 - whatever it is, it would not be seen
            from vouchmq.spark.source.reader import RefusingReader

            return RefusingReader(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        options = SourceOptions.parse(self.options)
        columns = _columns(options, schema)
        if options.has_ending_offsets:
            refuse("endingOffsets", "of spark.read; a streaming query has no end")
        if options.mode in (QUEUE, SPOOL):
            from vouchmq.spark.source.queue_mode import stream_reader as queue_reader

            return queue_reader(options, columns)
        from vouchmq.spark.source.streams.mode import stream_reader

        return stream_reader(options, columns)

    @sentence_only()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For `df.write`, which can append only.

        Raises:
            OptionError: an option is wrong
            SchemaError: a column cannot be published, or there is no body
        """
        options = self._sink_options(overwrite)
        from vouchmq.spark.sink.sink import batch_writer

        return batch_writer(options, schema)

    @sentence_only()
    def streamWriter(  # noqa: N802 - Spark's
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """For `df.writeStream`, which can append only.

        Raises:
            OptionError: an option is wrong
            SchemaError: a column cannot be published, or there is no body
        """
        options = self._sink_options(overwrite)
        from vouchmq.spark.sink.sink import stream_writer

        return stream_writer(options, schema)

    def _sink_options(self, overwrite: bool) -> SinkOptions:
        options = SinkOptions.parse(self.options)
        if overwrite:
            raise OptionError("mode: only append; a broker cannot overwrite what it has delivered")
        if self.is_speculative and options.message_id == "none":
            refuse(
                "messageId",
                "none with spark.speculation=true publishes rows twice that nothing can tell apart",
            )
        return options


def _columns(options: SourceOptions, schema: StructType) -> tuple[str, ...]:
    """What is read.

    Raises:
        OptionError: the schema lacks what an option asks for
        SchemaError: `schema` is no subset of the columns
    """
    columns = projection(schema)
    if options.typed_headers and TYPED not in columns:
        refuse("typedHeaders", f"true, but the schema that is given has no column {TYPED}")
    return columns


class SpeculativeAmqpDataSource(AmqpDataSource):
    """The same in a session with `spark.speculation=true`, where tasks may run twice at once."""

    is_speculative = True
