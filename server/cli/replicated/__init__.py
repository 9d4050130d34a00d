"""`vouchmq ha`: several brokers with one shared log.

May import what `server/cli/` may. Start with `commands.py`.
"""
