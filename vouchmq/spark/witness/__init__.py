"""Judges what clients saw, with or without a broker's ledger.

Start with `witness.py`.
"""
