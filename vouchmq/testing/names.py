"""Where the public names of `vouchmq.testing` are, so that each is loaded when it is asked for."""

from importlib import import_module
from typing import Final

MODULES: Final = {
    "AsyncBroker": "broker",
    "AsyncQueue": "vhost",
    "AsyncVHost": "vhost",
    "Broker": "broker",
    "BrokerError": "errors",
    "BrokerNotRunning": "errors",
    "Message": "vhost",
    "Queue": "vhost",
    "VHost": "vhost",
    "WaitTimeout": "errors",
}


def __getattr__(name: str) -> object:
    # For `vouchmq.testing` (PEP 562).
    if name not in MODULES:
        raise AttributeError(f"module 'vouchmq.testing' has no attribute {name!r}")
    return getattr(import_module(f"vouchmq.testing.{MODULES[name]}"), name)
