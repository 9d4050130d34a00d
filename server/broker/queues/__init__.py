"""The classic queue: ready messages, consumers, dispatch, settlement; what any queue is to others.

Start with `api.py`, then `classic.py`; `ready_list.py` holds the messages, `consumers.py` deals
them out. Streams are in `streams/`, queues of delayed messages in `delays.py`.
"""
