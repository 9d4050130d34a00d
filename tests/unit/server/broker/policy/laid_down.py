"""Policies, set as an operator does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.server.in_memory import World
from vouchmq.server.broker.policy.policies import Policy

if TYPE_CHECKING:
    pass


def lay_down(world: World, name: str = "p", pattern: str = "^q", **definition: object) -> None:
    """Set a policy; keys with underscores."""
    table = {key.replace("_", "-"): value for key, value in definition.items()}
    world.vhost.policy_engine.set_policy(Policy(name, pattern, table))
    world.run_turns()
