"""Commands that act on exchanges, queues, bindings, messages and connections.

May import the whole server, as `server/admin`. Start with `operator.py`.
"""
