"""One AMQP channel: publish, consume, acknowledge, confirm, transactions, topology.

May import `broker/`, `auth/`, `protocol/`; of its connection, the ledger and the runtime what it
writes to and reports to. Start with `channel.py`, which has the state, and `methods.py`, which has
a handler for each method.
"""
