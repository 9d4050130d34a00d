"""Counting connections: limits are reached, and places become free again."""

from __future__ import annotations

import pytest

from vouchmq.protocol.errors import NotAllowed
from vouchmq.server.auth.connection_limits import ConnectionLimits


def test_without_limits_everybody_is_welcome() -> None:
    connection_limits = ConnectionLimits()
    for _ in range(100):
        connection_limits.check_node()
        connection_limits.check_vhost("/", "guest", -1)
        connection_limits.check_user("guest", -1)
        connection_limits.enter("/", "guest")
    assert connection_limits.connection_count == 100


def test_zero_allows_none() -> None:
    connection_limits = ConnectionLimits(0)
    with pytest.raises(NotAllowed):
        connection_limits.check_node()
    with pytest.raises(NotAllowed):
        connection_limits.check_vhost("/", "guest", 0)
    with pytest.raises(NotAllowed):
        connection_limits.check_user("guest", 0)


def test_places_are_counted_apart() -> None:
    connection_limits = ConnectionLimits()
    connection_limits.enter("a", "x")
    connection_limits.check_vhost("b", "x", 1)
    connection_limits.check_user("y", 1)
    with pytest.raises(NotAllowed):
        connection_limits.check_vhost("a", "y", 1)
    with pytest.raises(NotAllowed):
        connection_limits.check_user("x", 1)


def test_a_place_becomes_free_and_names_are_forgotten() -> None:
    connection_limits = ConnectionLimits(1)
    connection_limits.enter("a", "x")
    connection_limits.leave("a", "x")
    connection_limits.check_node()
    assert connection_limits.connection_count == 0
    assert not connection_limits._by_vhost
    assert not connection_limits._by_user
