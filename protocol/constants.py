"""The numbers and fixed octets of AMQP 0-9-1, under their names in the specification.

Knows next to nothing but literals: every other module of `protocol/` may read it, and it reads
nobody.
"""

from __future__ import annotations

from typing import Final

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
# The header of AMQP 0-9; old clients send it and speak 0-9-1 afterwards (CONN-02).
PROTOCOL_HEADER_0_9: Final = b"AMQP\x01\x01\x00\x09"

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_END_OCTET: Final = b"\xce"
# type:1 channel:2 size:4, then the payload, then the end octet.
FRAME_HEADER_SIZE: Final = 7
FRAME_OVERHEAD: Final = 8
FRAME_MIN_SIZE: Final = 4096

METHOD_PAYLOAD_MIN_SIZE: Final = 4
MAX_TABLE_DEPTH: Final = 64
MAX_SHORTSTR_SIZE: Final = 255

PERSISTENT_DELIVERY_MODE: Final = 2
DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"

CLASS_BASIC: Final = 60

# (class id, method id), as they stand in a method frame and in a close.
Ids = tuple[int, int]
NO_IDS: Final[Ids] = (0, 0)


def index_of(ids: Ids) -> int:
    """The first four octets of a method's payload, as one number."""
    return ids[0] << 16 | ids[1]


CONNECTION_START: Final[Ids] = (10, 10)
CONNECTION_START_OK: Final[Ids] = (10, 11)
CONNECTION_SECURE: Final[Ids] = (10, 20)
CONNECTION_SECURE_OK: Final[Ids] = (10, 21)
CONNECTION_TUNE: Final[Ids] = (10, 30)
CONNECTION_TUNE_OK: Final[Ids] = (10, 31)
CONNECTION_OPEN: Final[Ids] = (10, 40)
CONNECTION_OPEN_OK: Final[Ids] = (10, 41)
CONNECTION_CLOSE: Final[Ids] = (10, 50)
CONNECTION_CLOSE_OK: Final[Ids] = (10, 51)
CONNECTION_BLOCKED: Final[Ids] = (10, 60)
CONNECTION_UNBLOCKED: Final[Ids] = (10, 61)
CONNECTION_UPDATE_SECRET: Final[Ids] = (10, 70)
CONNECTION_UPDATE_SECRET_OK: Final[Ids] = (10, 71)

CHANNEL_OPEN: Final[Ids] = (20, 10)
CHANNEL_OPEN_OK: Final[Ids] = (20, 11)
CHANNEL_FLOW: Final[Ids] = (20, 20)
CHANNEL_FLOW_OK: Final[Ids] = (20, 21)
CHANNEL_CLOSE: Final[Ids] = (20, 40)
CHANNEL_CLOSE_OK: Final[Ids] = (20, 41)

ACCESS_REQUEST: Final[Ids] = (30, 10)
ACCESS_REQUEST_OK: Final[Ids] = (30, 11)

EXCHANGE_DECLARE: Final[Ids] = (40, 10)
EXCHANGE_DECLARE_OK: Final[Ids] = (40, 11)
EXCHANGE_DELETE: Final[Ids] = (40, 20)
EXCHANGE_DELETE_OK: Final[Ids] = (40, 21)
EXCHANGE_BIND: Final[Ids] = (40, 30)
EXCHANGE_BIND_OK: Final[Ids] = (40, 31)
EXCHANGE_UNBIND: Final[Ids] = (40, 40)
EXCHANGE_UNBIND_OK: Final[Ids] = (40, 51)

QUEUE_DECLARE: Final[Ids] = (50, 10)
QUEUE_DECLARE_OK: Final[Ids] = (50, 11)
QUEUE_BIND: Final[Ids] = (50, 20)
QUEUE_BIND_OK: Final[Ids] = (50, 21)
QUEUE_PURGE: Final[Ids] = (50, 30)
QUEUE_PURGE_OK: Final[Ids] = (50, 31)
QUEUE_DELETE: Final[Ids] = (50, 40)
QUEUE_DELETE_OK: Final[Ids] = (50, 41)
QUEUE_UNBIND: Final[Ids] = (50, 50)
QUEUE_UNBIND_OK: Final[Ids] = (50, 51)

BASIC_QOS: Final[Ids] = (60, 10)
BASIC_QOS_OK: Final[Ids] = (60, 11)
BASIC_CONSUME: Final[Ids] = (60, 20)
BASIC_CONSUME_OK: Final[Ids] = (60, 21)
BASIC_CANCEL: Final[Ids] = (60, 30)
BASIC_CANCEL_OK: Final[Ids] = (60, 31)
BASIC_PUBLISH: Final[Ids] = (60, 40)
BASIC_RETURN: Final[Ids] = (60, 50)
BASIC_DELIVER: Final[Ids] = (60, 60)
BASIC_GET: Final[Ids] = (60, 70)
BASIC_GET_OK: Final[Ids] = (60, 71)
BASIC_GET_EMPTY: Final[Ids] = (60, 72)
BASIC_ACK: Final[Ids] = (60, 80)
BASIC_REJECT: Final[Ids] = (60, 90)
BASIC_RECOVER_ASYNC: Final[Ids] = (60, 100)
BASIC_RECOVER: Final[Ids] = (60, 110)
BASIC_RECOVER_OK: Final[Ids] = (60, 111)
BASIC_NACK: Final[Ids] = (60, 120)

CONFIRM_SELECT: Final[Ids] = (85, 10)
CONFIRM_SELECT_OK: Final[Ids] = (85, 11)

TX_SELECT: Final[Ids] = (90, 10)
TX_SELECT_OK: Final[Ids] = (90, 11)
TX_COMMIT: Final[Ids] = (90, 20)
TX_COMMIT_OK: Final[Ids] = (90, 21)
TX_ROLLBACK: Final[Ids] = (90, 30)
TX_ROLLBACK_OK: Final[Ids] = (90, 31)

# Replies that are no errors; the codes of errors stand with their classes in errors.py.
NO_ROUTE: Final = 312
NO_CONSUMERS: Final = 313
