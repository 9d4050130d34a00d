"""Reads messages back from the log by LSN, for paging, streams and inspection.

Start with `reader.py`.
"""
