"""What makes a running broker of its parts: the turn, alarms, memory, a full disk, compaction.

May import the server and `store/`, but not `edge/` or `cli/`. Start with `runtime.py`, the
composition root, and `turn.py`.
"""
