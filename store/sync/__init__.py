"""fsync in batches: one sync at a time, in a helper process, and the watermark it reports.

May import `store/` and, in `worker.py` and `helper.py`, the operating system. Start with
`group_commit.py`.
"""
