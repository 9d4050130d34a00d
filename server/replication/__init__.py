"""The replicated log, as far as it is outside this process: a NATS client, the checks of a start.

May import `store/`, and msgspec; `connection.py`, `client.py` and `monitoring.py` also the
operating system. Nothing uses it yet. Start with `log.py`, which appends records and reads them
back, and `standby.py`, which brings them into a directory.
"""
