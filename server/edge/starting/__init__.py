"""What a broker needs before it serves: signals from the first instruction on, and definitions.

May import what `server/edge/` may. Start with `stop_signals.py`.
"""
