"""Reads messages back from the log by LSN, for paging, streams and inspection.

May import `store/` alone. Start with `reader.py`.
"""
