"""Reading: queues and streams as a streaming or batch source of Spark.

May import the kit, and of `sink/` only `property_edit.py`. Start with a mode: `queue_mode.py` or
`spool_mode.py`, for both of which `consumer.py` reads from queues; mode stream is in `streams/`.
"""
