"""Commands that read a data directory themselves, or copy it: `store`, `definitions export`.

May import `store/`, and what of the server knows definitions. Start with `store.py`.
"""
