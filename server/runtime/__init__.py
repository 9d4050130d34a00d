"""What makes rooms into a running broker: the turn, alarms, memory, a full disk, compaction.

Start with `runtime.py`, the composition root, and `turn.py`.
"""
