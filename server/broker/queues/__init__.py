"""The classic queue: ready messages, consumers, dispatch, settlement; what any queue is to others.

May import `features/` for their hooks, `paging/` and, for what consumers may ask, `streams/`. Start
with `api.py`, then `classic.py`; `ready_list.py` holds the messages, `consumers.py` deals them out.
Streams are in `streams/`, queues of delayed messages in `delays.py`.
"""
