"""The control socket in the data directory: who asks, and who answers.

May import `server/admin/` for frames and commands. Start with `client.py`.
"""
