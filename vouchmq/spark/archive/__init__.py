"""`vouchmq archive`: queues and streams to tables of Parquet files.

May import `source/`, by whose data source it reads, and the kit. Start with `archive.py`.
"""
