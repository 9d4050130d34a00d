"""The classic queue: ready messages, consumers, dispatch, settlement.

Start with `classic.py`; `ready_list.py` holds the messages, `dispatch.py` deals them out.
"""
