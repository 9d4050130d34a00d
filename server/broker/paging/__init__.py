"""Keeps queued messages within memory: what waits behind is left to the disk.

Start with `pager.py`.
"""
