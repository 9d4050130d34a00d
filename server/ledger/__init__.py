"""The ledger: every message's life as lines of JSON, for `vouchmq audit`.

Start with `ledger.py`; `recorder.py` is what queues and consumers call.
"""
