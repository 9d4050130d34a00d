"""The public names of the kit, imported when they are first asked for.

The bulk client lives in the same package and needs no aio-pika: `import vouchmq.kit.bulk` must
not ask for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

_MODULES: Final = {
    "ChannelLostError": "vouchmq.kit.errors",
    "Connection": "vouchmq.kit.connection",
    "IllegalStateError": "vouchmq.kit.errors",
    "KitError": "vouchmq.kit.errors",
    "Message": "vouchmq.kit.message",
    "Mode": "vouchmq.kit.modes",
    "Receiver": "vouchmq.kit.receiver",
    "RedeliveryPolicy": "vouchmq.kit.redelivery",
    "RefusedError": "vouchmq.kit.errors",
    "TransactionRolledBackError": "vouchmq.kit.errors",
    "connect": "vouchmq.kit.connection",
}


def __getattr__(name: str) -> object:
    """A public name of `vouchmq.kit`."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'vouchmq.kit' has no attribute {name!r}")
    # The way in says what is missing where aio-pika is not there.
    import_module("vouchmq.kit.connection")
    return getattr(import_module(module), name)
