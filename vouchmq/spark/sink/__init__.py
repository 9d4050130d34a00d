"""Writing: a row is done when the broker has confirmed its message.

May import `protocol/` and the kit. Start with `sink.py`.
"""
