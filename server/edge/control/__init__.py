"""The control socket in the data directory: who asks, who answers, and what can be asked.

May import the whole server for `commands.py`, which puts the commands together; `client.py` only
`server/admin/` for frames. Start with `client.py`.
"""
