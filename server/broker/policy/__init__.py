"""Policies and operator policies: their definitions, ranking, and who they apply to.

May import what policies apply to: virtual hosts, exchanges, queues and their `features/`. Start
with `engine.py`.
"""
