"""Keeps queued messages within memory: what waits behind is left to the disk.

May import `protocol/` and `store/`, and of the broker only messages. Start with `pager.py`.
"""
