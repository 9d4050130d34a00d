"""Ledger files as Spark reads them: their events, lines, seals, and which lines are missing.

Knows what a broker wrote, not what it proves: `audit/` and `witness/` judge. May import pyspark,
nothing else of the project. Start with `events.py`, the schema; `lines.py` reads files, `seals.py`
checks their hashes, `collect.py` makes the `Facts` of `facts.py` of them.
"""
