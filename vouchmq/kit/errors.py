"""What goes wrong in the kit, beside wrong arguments (`TypeError`, `ValueError`)."""

from __future__ import annotations


class KitError(Exception):
    """Whatever the kit raises of its own."""


class IllegalStateError(KitError):
    """A call that does not go with what the receiver is or does just now.

    Spec: REDELIVER-53
    """


class ChannelLostError(KitError):
    """The channel or its connection ended; its settlements went with it.

    Spec: REDELIVER-51
    """


class RefusedError(ChannelLostError):
    """The broker refused a call and closed the channel over it; the text is the broker's."""


class TransactionRolledBackError(KitError):
    """A transaction that was not committed, or of which nobody knows, as the channel ended."""
