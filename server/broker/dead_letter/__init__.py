"""Dead lettering: which headers a dead letter gets, where it goes, what is tried again.

Start with `publisher.py`; `headers.py` writes x-death.
"""
