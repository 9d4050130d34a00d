"""What a queue does beyond a plain one: expiry, length limits, redelivery, de-duplication.

`options.py` is the table of arguments and policy keys, `effective.py` says what they come to for
one queue, `apply.py` builds its features, `hooks.py` calls them. A feature is a file with a
subclass of `hooks.Feature`, its place in `hooks.RANKS`, and the rows of its options.
"""
