"""Users, permissions, limits on connections and on failed logins.

Start with `users.py`.
"""
