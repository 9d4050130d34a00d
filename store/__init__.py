"""The write-ahead log: messages, settlements and definitions on disk, and how they come back.

Knows LSNs and bytes; must not know AMQP. May import the standard library, and only `disk.py` and
`sync/` the operating system. Start with `journal/journal.py` for writing and `recovery/recover.py`
for a start.
"""
