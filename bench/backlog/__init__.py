"""Backlogs that outgrow memory, over restarts: `python -m bench.backlog`.

Start with `__main__.py`, the scenarios; `load.py` fills and drains, `broker.py` has the broker that
is measured.
"""
