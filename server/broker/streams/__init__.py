"""Streams: queues from which consuming removes nothing.

May import `queues/api.py`, `features/` and `paging/`. Start with `stream.py`; `index.py` knows
where messages are.
"""
