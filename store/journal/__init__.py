"""The log while it is written: blocks of records in numbered segments.

May import `store/` alone. Start with `journal.py`, which is what the broker calls;
`block_buffer.py` gathers a turn, `records.py` is the format, `segments.py` keeps the chain of
segments.
"""
