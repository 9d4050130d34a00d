"""Commands that ask a running broker: `status`, `top`, `list`, `show`, `ledger`, `ping`.

May import the client of the control socket (`server/cli/client.py`), and nothing that only a broker
needs. Start with `listing.py`.
"""
