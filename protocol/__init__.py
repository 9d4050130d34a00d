"""The wire format of AMQP 0-9-1: frames, methods, properties, field tables, reply codes.

May import the standard library and pamqp, nothing else of ours. Start with `reader.py`, which turns
bytes into events, and `codec.py`, which turns methods into bytes. The bulk client and the Spark
source and sink read and write their bytes by the same constants, `property_layout.py` and
`fields.py`; the conformance suite has a codec of its own on purpose.
"""
