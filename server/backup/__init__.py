"""`vouchmq store backup` and `restore`: copies of a running broker's data directory.

Start with `copying.py`; `hold.py` asks the broker to keep its files meanwhile. May import anything
of the broker, and use files, sockets and the clock. Knows nothing of AMQP.
"""
