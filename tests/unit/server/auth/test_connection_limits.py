"""Counting connections: limits are reached, and places become free again."""

from __future__ import annotations

import pytest

from vouchmq.protocol.errors import NotAllowed
from vouchmq.server.auth.connection_limits import ConnectionLimits


def test_without_limits_everybody_is_welcome() -> None:
    admission = ConnectionLimits()
    for _ in range(100):
        admission.check_node()
        admission.check_vhost("/", "guest")
        admission.check_user("guest", -1)
        admission.enter("/", "guest")
    assert admission.connection_count == 100


def test_zero_allows_none() -> None:
    admission = ConnectionLimits(0, {"/": 0})
    with pytest.raises(NotAllowed):
        admission.check_node()
    with pytest.raises(NotAllowed):
        admission.check_vhost("/", "guest")
    with pytest.raises(NotAllowed):
        admission.check_user("guest", 0)


def test_places_are_counted_apart() -> None:
    admission = ConnectionLimits(vhost_limits={"a": 1})
    admission.enter("a", "x")
    admission.check_vhost("b", "x")
    admission.check_user("y", 1)
    with pytest.raises(NotAllowed):
        admission.check_vhost("a", "y")
    with pytest.raises(NotAllowed):
        admission.check_user("x", 1)


def test_a_place_becomes_free_and_names_are_forgotten() -> None:
    admission = ConnectionLimits(1)
    admission.enter("a", "x")
    admission.leave("a", "x")
    admission.check_node()
    assert admission.connection_count == 0
    assert not admission._by_vhost
    assert not admission._by_user
