"""`vouchmq archive`: queues and streams to tables of Parquet files.

Start with `archive.py`.
"""
