"""What the HTTP API answers, by the things that it is about.

May import `vouchmq/management/`. Start with `table.py`, the table of all routes.
"""
