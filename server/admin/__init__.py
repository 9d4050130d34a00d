"""What an operator may ask of a running broker: read-only views, and the commands that show them.

May import the whole server; nothing but `edge` and `cli` imports it. Start with `views.py`.
"""
