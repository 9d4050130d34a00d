"""The broker as a node of a shared log: what `vouchmq serve` and `vouchmq ha` do with an engine.

May import what `server/edge/` may. Start with `membership.py`.
"""
