"""The command line: `vouchmq serve`, `ping`, `store`, `ledger`, `definitions`, and more.

Start with `main.py`.
"""
