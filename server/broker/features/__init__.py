"""What a queue does beyond a plain one: expiry, length limits, redelivery, de-duplication.

May import what any queue is (`queues/api.py`), `dead_letter/`, `paging/` and `policy/`, but not the
queues that have features. Start with `options.py`, the table of arguments and policy keys;
`effective.py` says what they come to for one queue, `feature.py` what a feature is, `hooks.py`
which there are and when a queue calls them. A feature is a file with a subclass of
`feature.Feature`, a row in `hooks.FEATURES`, and the rows of its options.
"""
