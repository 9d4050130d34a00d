"""The blocking bulk client: runs of messages as columns, without aio-pika.

May import `protocol/` and pamqp. Start with `connection.py`, which has the socket; `channel.py` is
what users call, `publish_run.py` and `frames.py` pack and parse runs.
"""

from vouchmq.kit.bulk.channel import BulkChannel, QueueState
from vouchmq.kit.bulk.confirms import PublishWatch
from vouchmq.kit.bulk.connection import BulkConnection
from vouchmq.kit.bulk.errors import BulkClosed, BulkError, BulkTimeout, PropertiesError
from vouchmq.kit.bulk.frames import Delivery, Returned
from vouchmq.kit.bulk.properties import decode_properties, encode_properties
from vouchmq.kit.bulk.publish import RowError
from vouchmq.kit.bulk.result import PublishResult

__all__ = [
    "BulkChannel",
    "BulkClosed",
    "BulkConnection",
    "BulkError",
    "BulkTimeout",
    "Delivery",
    "PropertiesError",
    "PublishResult",
    "PublishWatch",
    "QueueState",
    "Returned",
    "RowError",
    "decode_properties",
    "encode_properties",
]
