"""fsync in batches: one sync at a time, in a helper process, and the watermark it reports.

Start with `group_commit.py`.
"""
