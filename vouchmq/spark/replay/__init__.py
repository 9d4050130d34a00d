"""`vouchmq replay`: tables of Parquet files back to an exchange.

Start with `replay.py`.
"""
