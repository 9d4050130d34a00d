"""What a queue does beyond a plain one: expiry, length limits, redelivery, de-duplication.

`options.py` is the table of arguments and policy keys, `effective.py` says what they come to for
one queue, `apply.py` builds its features, `hooks.py` calls them.
"""
