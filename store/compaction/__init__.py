"""Gets disk space back: copies what is alive out of old segments and retires them.

May import `store/` alone. Start with `compactor.py`; `victim.py` picks the segment.
"""
