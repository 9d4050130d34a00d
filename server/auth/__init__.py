"""Users, permissions, limits on connections and on failed logins.

May import `protocol/`, the patterns of `broker/` and the users of `settings/`. Start with
`users.py`.
"""
