"""A load generator for any AMQP 0-9-1 broker: `vouchmq bench`.

May import `vouchmq/kit/bulk`. Start with `run.py`, which starts the processes of `workers.py`.
"""
