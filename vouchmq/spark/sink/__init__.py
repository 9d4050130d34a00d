"""Writing: a row is done when the broker has confirmed its message.

Start with `sink.py`.
"""
