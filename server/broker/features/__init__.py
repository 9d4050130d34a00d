"""What a queue does beyond a plain one: expiry, length limits, redelivery, de-duplication.

`options.py` is the table of arguments and policy keys, `effective.py` says what they come to for
one queue, `feature.py` what a feature is, `hooks.py` which there are and when a queue calls them. A
feature is a file with a subclass of `feature.Feature`, a row in `hooks.FEATURES`, and the rows of
its options.
"""
