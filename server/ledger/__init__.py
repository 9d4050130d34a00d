"""The ledger: every message's life as lines of JSON, for `vouchmq audit`.

May import queues, channels and connections, on which it reports; only `files.py` touches the
operating system. Start with `ledger.py`; `recorder.py` is what queues and consumers call.
"""
