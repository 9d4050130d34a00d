"""The lifecycle of a connection, read from its table."""

from __future__ import annotations

import pytest

from vouchmq.protocol.constants import CONNECTION_CLOSE, CONNECTION_CLOSE_OK, CONNECTION_OPEN
from vouchmq.protocol.errors import ChannelError
from vouchmq.protocol.states import (
    CONNECTION_TRANSITIONS,
    DISCARDING_CONNECTION_STATES,
    EXPECTED_METHODS,
    ConnectionEvent,
    ConnectionState,
    is_expected,
    next_connection_state,
)


def walk(*events: ConnectionEvent) -> ConnectionState:
    """Where a new connection is after `events`."""
    state = ConnectionState.STARTING
    for event in events:
        state = next_connection_state(state, event)
    return state


class TestConnection:
    def test_a_handshake_without_challenge_ends_in_running(self) -> None:
        event = ConnectionEvent
        assert walk(event.AUTHENTICATED, event.TUNED, event.OPENED) is ConnectionState.RUNNING

    def test_a_mechanism_may_challenge_more_than_once(self) -> None:
        """CONN-20."""
        event = ConnectionEvent
        assert walk(event.CHALLENGED, event.CHALLENGED) is ConnectionState.SECURING
        assert walk(event.CHALLENGED, event.AUTHENTICATED) is ConnectionState.TUNING

    def test_closes_that_cross_leave_ours_to_be_answered(self) -> None:
        """CONN-54."""
        event = ConnectionEvent
        state = walk(event.AUTHENTICATED, event.SERVER_CLOSED, event.CLIENT_CLOSED)
        assert state is ConnectionState.CLOSING
        assert next_connection_state(state, event.CLOSE_OK) is ConnectionState.CLOSED

    def test_a_lost_socket_closes_from_everywhere(self) -> None:
        """CONN-55."""
        for state in ConnectionState:
            assert next_connection_state(state, ConnectionEvent.LOST) is ConnectionState.CLOSED

    def test_nothing_but_the_end_leads_out_of_closed(self) -> None:
        leaving = {e for (state, e) in CONNECTION_TRANSITIONS if state is ConnectionState.CLOSED}
        assert leaving == {ConnectionEvent.LOST}

    def test_every_state_can_be_reached(self) -> None:
        assert {ConnectionState.STARTING, *CONNECTION_TRANSITIONS.values()} == set(ConnectionState)

    @pytest.mark.parametrize("state", ["starting", "securing", "tuning", "opening", "running"])
    def test_a_method_out_of_turn_is_told_the_state(self, state: str) -> None:
        """CONN-35, CONN-51."""
        with pytest.raises(ChannelError) as raised:
            is_expected(ConnectionState(state), CONNECTION_CLOSE_OK)
        text = f"CHANNEL_ERROR - unexpected method in connection state {state}"
        assert raised.value.reply_text == text
        assert raised.value.ids == CONNECTION_CLOSE_OK

    def test_an_illegal_event_is_told_the_state(self) -> None:
        with pytest.raises(ChannelError, match="unexpected method in connection state tuning"):
            next_connection_state(ConnectionState.TUNING, ConnectionEvent.OPENED)

    def test_what_has_its_turn_is_expected(self) -> None:
        for state, methods in EXPECTED_METHODS.items():
            assert all(is_expected(state, ids) for ids in methods)

    def test_after_our_close_all_but_its_answers_is_discarded(self) -> None:
        """CONN-54."""
        assert is_expected(ConnectionState.CLOSING, CONNECTION_CLOSE)
        assert is_expected(ConnectionState.CLOSING, CONNECTION_CLOSE_OK)
        for state in DISCARDING_CONNECTION_STATES:
            assert not is_expected(state, CONNECTION_OPEN)
