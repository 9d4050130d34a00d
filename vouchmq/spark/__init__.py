"""AMQP 0-9-1 for Spark: `format("amqp")` to read and to write; the schema of ledgers."""

from vouchmq.spark.audit.events import schema as ledger_schema
from vouchmq.spark.command_line import reason_of
from vouchmq.spark.progress import SourceProgress, progress
from vouchmq.spark.registration import register

__all__ = ["SourceProgress", "ledger_schema", "progress", "reason_of", "register"]
