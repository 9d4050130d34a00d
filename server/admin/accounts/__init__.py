"""What an administrator changes and lists: users, permissions, virtual hosts, policies, parameters.

May import the whole server. Start with `administration.py`.
"""
