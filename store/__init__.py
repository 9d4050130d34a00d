"""The write-ahead log: messages, settlements and definitions on disk, and how they come back.

Knows LSNs and bytes; must not know AMQP. Start with `journal/journal.py` for writing and
`recovery/recover.py` for a start.
"""
