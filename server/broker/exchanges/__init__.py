"""Exchanges, their bindings, and a router for each type.

May import `queues/` and `features/` for what messages are routed to. An exchange type is one file
with `validate`, `add`, `remove` and `match`. Start with `routes.py`.
"""
