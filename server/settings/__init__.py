"""What an operator can choose, and values from outside checked against the types they should have.

May import msgspec and paths; of the server only `errors.py` and the ledger's rules for file names.
Start with `settings.py`, which has every setting; `accounts.py` has the users and virtual hosts of
the configuration file, `validation.py` checks any value against its type.
"""
