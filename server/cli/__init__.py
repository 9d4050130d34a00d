"""The command line: `vouchmq serve`, `ping`, `store`, `ledger`, `definitions`, and more.

May import the server and `store/`; a command imports what it needs when it is run. Start with
`main.py`.
"""
