"""What a queue does beyond a plain one: expiry, length limits, redelivery, de-duplication.

`arguments.py` declares the options, `options.py` resolves them against policies, `apply.py`
builds the features, `hooks.py` calls them.
"""
