"""Processes that a broker starts beside itself and watches, but for the one that syncs.

May import what `server/edge/` may. Start with `management.py`.
"""
