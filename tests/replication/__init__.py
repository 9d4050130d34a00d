"""The shared log's rules against a model of its engine, in random schedules.

Start with `world.py`; `python -m tests.replication --schedules 1000000` runs them, and
`test_planted_bugs.py` shows that they find something.
"""
