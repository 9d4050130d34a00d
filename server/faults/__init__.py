"""What can be made to fail in a broker that is started for tests (`test_commands`).

A broker without that setting makes none of it. May import `server/`, `protocol/` and `store/`;
only `edge` imports it. Start with `faults.py`, which puts it together.
"""
