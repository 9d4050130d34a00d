"""Streams: queues from which consuming removes nothing.

Start with `stream.py`; `index.py` knows where messages are.
"""
