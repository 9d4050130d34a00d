"""One AMQP connection: handshake, channel table, heartbeats, what is read and what is sent.

Sockets are behind `wire.py`. Start with `connection.py`.
"""
