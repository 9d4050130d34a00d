"""AMQP 0-9-1 for Spark: `format("amqp")` to read and to write; the audit of ledgers."""

from vouchmq.spark.registration import register

__all__ = ["register"]
