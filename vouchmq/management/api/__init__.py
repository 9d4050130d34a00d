"""The HTTP API: requests, who may send them, and how lists are cut, sorted and filtered.

May import `vouchmq/management/` and Starlette. Start with `app.py`.
"""
