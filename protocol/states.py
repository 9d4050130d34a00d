"""The lifecycles of a connection and of a channel, as tables: (state, event) → state.

What is not in a table is illegal. Nobody sets a state by hand: whoever holds one replaces it with
what `next_connection_state` or `next_channel_state` gives for an event, and those raise what the
peer shall be told. The diagrams in the manual are drawn from these tables.

Must not know how an event comes about, nor what has to be done before the next state is true.

Spec: CONN-20, CONN-35, CONN-50…55, CHAN-01…11
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from vouchmq.protocol import constants as c
from vouchmq.protocol.errors import AmqpError, ChannelError, CommandInvalid


class ConnectionState(StrEnum):
    """Where a connection stands; the value is what error texts call it.

    starting: protocol header or start-ok awaited. securing: secure-ok awaited. tuning: tune-ok
    awaited. opening: open awaited. running. closing: our close is sent, close-ok awaited.
    closed: nothing is sent any more but what the socket still holds.
    """

    STARTING = "starting"
    SECURING = "securing"
    TUNING = "tuning"
    OPENING = "opening"
    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"

    # Enum's own is a function in Python, and states are looked up with every method.
    __hash__ = str.__hash__


class ConnectionEvent(StrEnum):
    """What moves a connection on."""

    CHALLENGED = "secure sent"
    AUTHENTICATED = "authenticated, tune sent"
    TUNED = "tune-ok accepted"
    OPENED = "open accepted"
    CLIENT_CLOSED = "close received"
    SERVER_CLOSED = "close sent"
    CLOSE_OK = "close-ok received"
    LOST = "socket gone or given up"

    __hash__ = str.__hash__


class ChannelState(StrEnum):
    """Where a channel stands; closing: our close is sent, close-ok awaited."""

    CLOSED = "closed"
    OPEN = "open"
    CLOSING = "closing"


class ChannelEvent(StrEnum):
    """What moves a channel on."""

    OPENED = "open received"
    CLIENT_CLOSED = "close received"
    SERVER_CLOSED = "close sent"
    CLOSE_OK = "close-ok received"
    CONNECTION_ENDED = "connection closed"


_CS = ConnectionState
_CE = ConnectionEvent

CONNECTION_TRANSITIONS: Final[dict[tuple[ConnectionState, ConnectionEvent], ConnectionState]] = {
    (_CS.STARTING, _CE.CHALLENGED): _CS.SECURING,
    (_CS.STARTING, _CE.AUTHENTICATED): _CS.TUNING,
    # A mechanism may ask more than once.
    (_CS.SECURING, _CE.CHALLENGED): _CS.SECURING,
    (_CS.SECURING, _CE.AUTHENTICATED): _CS.TUNING,
    (_CS.TUNING, _CE.TUNED): _CS.OPENING,
    (_CS.OPENING, _CE.OPENED): _CS.RUNNING,
    (_CS.RUNNING, _CE.CLIENT_CLOSED): _CS.CLOSED,
    # Every state in which a rule can be broken can end with our close (CONN-24, CONN-31, CONN-40).
    (_CS.STARTING, _CE.SERVER_CLOSED): _CS.CLOSING,
    (_CS.SECURING, _CE.SERVER_CLOSED): _CS.CLOSING,
    (_CS.TUNING, _CE.SERVER_CLOSED): _CS.CLOSING,
    (_CS.OPENING, _CE.SERVER_CLOSED): _CS.CLOSING,
    (_CS.RUNNING, _CE.SERVER_CLOSED): _CS.CLOSING,
    # Both sides closed at once: theirs is answered, the answer to ours is still owed (CONN-54).
    (_CS.CLOSING, _CE.CLIENT_CLOSED): _CS.CLOSING,
    (_CS.CLOSING, _CE.CLOSE_OK): _CS.CLOSED,
} | {(state, _CE.LOST): _CS.CLOSED for state in _CS}

# The methods of channel 0 that have their turn in a state (CONN-35, CONN-50, CONN-51).
EXPECTED_METHODS: Final[dict[ConnectionState, frozenset[c.Ids]]] = {
    _CS.STARTING: frozenset({c.CONNECTION_START_OK}),
    _CS.SECURING: frozenset({c.CONNECTION_SECURE_OK}),
    _CS.TUNING: frozenset({c.CONNECTION_TUNE_OK}),
    _CS.OPENING: frozenset({c.CONNECTION_OPEN}),
    _CS.RUNNING: frozenset({c.CONNECTION_CLOSE, c.CONNECTION_UPDATE_SECRET}),
    _CS.CLOSING: frozenset({c.CONNECTION_CLOSE, c.CONNECTION_CLOSE_OK}),
    _CS.CLOSED: frozenset(),
}

# Whatever else comes is thrown away, not judged: the peer may not have seen our close (CONN-54).
DISCARDING_CONNECTION_STATES: Final = frozenset({_CS.CLOSING, _CS.CLOSED})

_HS = ChannelState
_HE = ChannelEvent

CHANNEL_TRANSITIONS: Final[dict[tuple[ChannelState, ChannelEvent], ChannelState]] = {
    (_HS.CLOSED, _HE.OPENED): _HS.OPEN,
    (_HS.OPEN, _HE.CLIENT_CLOSED): _HS.CLOSED,
    (_HS.OPEN, _HE.SERVER_CLOSED): _HS.CLOSING,
    # Both sides closed at once: theirs is answered, the answer to ours is still owed (CHAN-11).
    (_HS.CLOSING, _HE.CLIENT_CLOSED): _HS.CLOSING,
    (_HS.CLOSING, _HE.CLOSE_OK): _HS.CLOSED,
} | {(state, _HE.CONNECTION_ENDED): _HS.CLOSED for state in _HS}


def is_expected(state: ConnectionState, ids: c.Ids) -> bool:
    """Whether the method has its turn on channel 0; False in a discarding state means: ignore it.

    Raises:
        ChannelError: 504, it is out of turn.

    Spec: CONN-35, CONN-51, CONN-54
    """
    if ids in EXPECTED_METHODS[state]:
        return True
    if state in DISCARDING_CONNECTION_STATES:
        return False
    raise unexpected_method(state, ids)


def unexpected_method(state: ConnectionState, ids: c.Ids | None = None) -> ChannelError:
    """The error for a method of channel 0 that comes out of turn.

    Spec: CONN-35, CONN-51
    """
    return ChannelError(f"unexpected method in connection state {state}", ids)


def next_connection_state(state: ConnectionState, event: ConnectionEvent) -> ConnectionState:
    """The state that follows.

    Raises:
        ChannelError: 504, the event is illegal in that state.

    Spec: CONN-35, CONN-51
    """
    following = CONNECTION_TRANSITIONS.get((state, event))
    if following is None:
        raise unexpected_method(state)
    return following


def next_channel_state(state: ChannelState, event: ChannelEvent) -> ChannelState:
    """The state that follows.

    Raises:
        ChannelError: 504, channel.open on a channel that is not closed, or anything else on one
            that is.
        CommandInvalid: 503, close-ok on an open channel.

    Spec: CHAN-02, CHAN-03, FRAME-17
    """
    following = CHANNEL_TRANSITIONS.get((state, event))
    if following is None:
        raise _channel_error(state, event)
    return following


def _channel_error(state: ChannelState, event: ChannelEvent) -> AmqpError:
    if event is _HE.OPENED:
        return ChannelError("second 'channel.open' seen")
    if state is _HS.CLOSED:
        return ChannelError("expected 'channel.open'")
    if event is _HE.CLOSE_OK:
        return CommandInvalid("unimplemented method")
    # What is left is closing a channel twice from our side, which no client can bring about.
    raise ValueError(f"no {event!r} in channel state {state!r}")
