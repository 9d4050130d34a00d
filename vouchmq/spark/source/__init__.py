"""Reading: queues and streams as a streaming or batch source of Spark.

`queue_mode.py`, `spool_mode.py` and `stream_mode.py` are the three modes.
"""
