"""Exchanges, their bindings, and a router for each type.

An exchange type is one file with `validate`, `add`, `remove` and `match`. Start with `routes.py`.
"""
