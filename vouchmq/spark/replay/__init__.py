"""`vouchmq replay`: tables of Parquet files back to an exchange.

May import `archive/`, whose tables it reads, `sink/` and the kit. Start with `replay.py`.
"""
