"""One AMQP channel: publish, consume, acknowledge, confirm, transactions, topology.

Start with `channel.py`, which has the state, and `methods.py`, which has a handler for each method.
"""
