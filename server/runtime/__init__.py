"""What makes a running broker of its parts: the turn, alarms, memory, a full disk, compaction.

Start with `runtime.py`, the composition root, and `turn.py`.
"""
