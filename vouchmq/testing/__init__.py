"""A broker for tests: a process of its own, which can be made to fail.

    with Broker() as broker:
        vhost = broker.new_vhost()
        run_my_program(vhost.url)
        vhost.queue("orders").wait(messages=3)

With pytest the fixtures `vouchmq_broker` and `vouchmq_vhost` are there as soon as it is installed.
May import `server/edge/control/client.py`, which asks a running broker, and pytest in `plugin.py`.
Start with `broker.py`. What stands here is loaded when it is asked for, as pytest loads `plugin.py`
in each of its runs.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vouchmq.testing.broker import AsyncBroker, Broker
    from vouchmq.testing.errors import BrokerError, BrokerNotRunning, WaitTimeout
    from vouchmq.testing.vhost import AsyncQueue, AsyncVHost, Message, Queue, VHost
else:
    from vouchmq.testing.names import __getattr__ as __getattr__

__all__ = [
    "AsyncBroker",
    "AsyncQueue",
    "AsyncVHost",
    "Broker",
    "BrokerError",
    "BrokerNotRunning",
    "Message",
    "Queue",
    "VHost",
    "WaitTimeout",
]
