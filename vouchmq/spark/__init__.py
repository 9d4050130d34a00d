"""AMQP 0-9-1 for Spark: `format("amqp")` to read and to write; the schema of ledgers.

May import the kit and `protocol/`, nothing of the broker. Start with `data_source.py`, which Spark
calls; `source/` reads, `sink/` writes, the other folders are programs that work on tables.
"""

from vouchmq.spark.command_line import reason_of
from vouchmq.spark.ledger.events import schema as ledger_schema
from vouchmq.spark.progress import SourceProgress, progress
from vouchmq.spark.registration import register

__all__ = ["SourceProgress", "ledger_schema", "progress", "reason_of", "register"]
