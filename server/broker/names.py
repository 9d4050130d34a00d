"""Names of queues and exchanges: how they are cleaned, which are reserved, how texts show them.

Must not know whether anything of that name exists.

Spec: GEN-04, EXCH-04, EXCH-06, QUEUE-03, QUEUE-04
"""

from __future__ import annotations

from typing import Final

from vouchmq.protocol.errors import AccessRefused

RESERVED_PREFIX: Final = "amq."
SERVER_NAMED_PREFIX: Final = "amq.gen-"
DEFAULT_EXCHANGE: Final = ""

_CR_AND_LF: Final = {ord("\r"): None, ord("\n"): None}


def queue_text(name: str, vhost: str) -> str:
    """A queue as error texts show it, the {Q} of the rules (GEN-04)."""
    return f"queue '{name}' in vhost '{vhost}'"


def exchange_text(name: str, vhost: str) -> str:
    """An exchange as error texts show it, the {X} of the rules (GEN-04)."""
    return f"exchange '{name}' in vhost '{vhost}'"


def strip_cr_lf(name: str) -> str:
    """`name` without carriage returns and line feeds (EXCH-06, QUEUE-04)."""
    return name.translate(_CR_AND_LF)


def check_exchange_name(name: str) -> None:
    """Refuse the names that only the broker may give.

    Raises:
        AccessRefused: 403, the name starts with `amq.`.

    Spec: EXCH-04
    """
    _check_prefix("exchange", name)


def check_queue_name(name: str) -> None:
    """Refuse the names that only the broker may give.

    Raises:
        AccessRefused: 403, the name starts with `amq.`.

    Spec: QUEUE-03
    """
    _check_prefix("queue", name)


def check_not_default(*exchanges: str) -> None:
    """Refuse every operation but publishing on the default exchange.

    Raises:
        AccessRefused: 403, one of the names is the empty one.

    Spec: EXCH-03
    """
    if DEFAULT_EXCHANGE in exchanges:
        raise AccessRefused("operation not permitted on the default exchange")


def _check_prefix(kind: str, name: str) -> None:
    if name.startswith(RESERVED_PREFIX):
        raise AccessRefused(f"{kind} name '{name}' contains reserved prefix '{RESERVED_PREFIX}*'")
