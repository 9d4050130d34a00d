"""Judges what clients saw, with or without a broker's ledger.

May import `ledger/`, not `audit/`, which has the command. Start with `witness.py`.
"""
