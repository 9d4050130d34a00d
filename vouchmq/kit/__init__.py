"""The client kit: JMS's acknowledgement modes and redelivery policies over AMQP 0-9-1.

May import aio-pika, nothing of the broker. Start with `connection.py`;
`modes.py` has the acknowledgement modes, `redelivery.py` the policies.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vouchmq.kit.connection import Connection, connect
    from vouchmq.kit.errors import (
        ChannelLostError,
        IllegalStateError,
        KitError,
        RefusedError,
        TransactionRolledBackError,
    )
    from vouchmq.kit.message import Message
    from vouchmq.kit.modes import Mode
    from vouchmq.kit.receiver import Receiver
    from vouchmq.kit.redelivery import RedeliveryPolicy
else:
    # At run time the names are imported when they are asked for: the bulk client needs no aio-pika.
    from vouchmq.kit.names import __getattr__ as __getattr__

__all__ = [
    "ChannelLostError",
    "Connection",
    "IllegalStateError",
    "KitError",
    "Message",
    "Mode",
    "Receiver",
    "RedeliveryPolicy",
    "RefusedError",
    "TransactionRolledBackError",
    "connect",
]
