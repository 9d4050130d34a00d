"""Dead lettering: which headers a dead letter gets, where it goes, what is tried again.

May import `exchanges/`, `features/` and `queues/`. Start with `dead_letters.py`, the dead letters
of one queue; `publisher.py` sends those of all, `pace.py` says how many in a turn, `headers.py`
writes x-death.
"""
