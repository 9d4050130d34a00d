"""The lifecycle of a connection as a table: (state, event) → state.

What is not in the table is illegal. The handshake moves the state up to connection.open, the
connection from there on; each replaces it with what `next_connection_state` gives for an event,
which raises what the peer is told.

Must not know how an event comes about, nor what has to be done before the next state is true.

Spec: CONN-20, CONN-35, CONN-50…55
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from vouchmq.protocol import constants as c
from vouchmq.protocol.errors import ChannelError


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

# Nobody is logged in yet, or not in a virtual host.
OPENING_STATES: Final = frozenset({_CS.STARTING, _CS.SECURING, _CS.TUNING, _CS.OPENING})
# Whatever else comes is thrown away, not judged: the peer may not have seen our close (CONN-54).
DISCARDING_CONNECTION_STATES: Final = frozenset({_CS.CLOSING, _CS.CLOSED})


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
