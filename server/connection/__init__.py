"""One AMQP connection: handshake, channel table, heartbeats, what is read and what is sent.

May import `channel/`, `auth/` and `protocol/`; sockets are behind `wire.py`. Start with
`connection.py`.
"""
