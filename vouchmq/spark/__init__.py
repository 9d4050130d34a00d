"""AMQP 0-9-1 for Spark: `format("amqp")` to read and to write; the schema of ledgers."""

from vouchmq.spark.ledger import schema as ledger_schema
from vouchmq.spark.registration import register

__all__ = ["ledger_schema", "register"]
