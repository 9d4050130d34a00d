"""Reading: queues and streams as a streaming or batch source of Spark.

May import the kit, and of `sink/` only `property_edit.py`. Start with a mode: `queue_mode.py`,
`spool_mode.py` or `stream_mode.py`. `consumer.py` reads from queues for the first two,
`range_reader.py` from streams for the third.
"""
