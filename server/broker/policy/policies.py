"""Policies: what an operator lays down for queues and exchanges by their names.

A vhost has two lists, policies and operator policies. At most one of each applies to an object;
what comes of the two and of the object's own arguments is up to `features/effective.py` and the
exchange. What a definition may say is in `features/options.py`. Must not know queues or exchanges
beyond name and type.

Spec: POLICY-01 … POLICY-03, POLICY-09
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.server.broker.features.options import (
    CLASSIC,
    QUORUM,
    STREAM,
    InvalidPolicy,
    Value,
    check_definition,
    check_operator_definition,
    merged,
    term,
)
from vouchmq.server.broker.patterns import Pattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ALL: Final = "all"
QUEUES: Final = "queues"
EXCHANGES: Final = "exchanges"
QUEUE_KINDS: Final = {
    CLASSIC: "classic_queues",
    QUORUM: "quorum_queues",
    STREAM: "streams",
}
OPERATOR_TARGETS: Final = (ALL, QUEUES, *QUEUE_KINDS.values())
TARGETS: Final = (*OPERATOR_TARGETS, EXCHANGES)
NAME_MAX_SIZE: Final = 255


@dataclass(slots=True, frozen=True)
class Policy:
    """One policy, or one operator policy.

    `comes_from_file`: it goes again when the definitions file does not name it any more.

    Spec: POLICY-01
    """

    name: str
    pattern: str
    definition: Mapping[str, Value] = field(hash=False)
    apply_to: str = ALL
    priority: float = 0
    is_operator: bool = False
    comes_from_file: bool = False

    def require_valid(self) -> None:
        """Check it as a whole.

        Raises:
            InvalidPolicy: in the words that an operator is shown

        Spec: POLICY-07, POLICY-08
        """
        if not 0 < len(self.name.encode("utf-8", "surrogateescape")) <= NAME_MAX_SIZE:
            raise InvalidPolicy(f"name should have 1 to {NAME_MAX_SIZE} bytes")
        compile_pattern(self.pattern)
        targets = OPERATOR_TARGETS if self.is_operator else TARGETS
        if self.apply_to not in targets:
            *others, last = (f"'{each}'" for each in targets)
            raise InvalidPolicy(
                f"apply-to '{self.apply_to}' unrecognised; should be {', '.join(others)} or {last}"
            )
        if self.is_operator:
            check_operator_definition(self.definition)
        else:
            check_definition(self.definition)

    @property
    def rank(self) -> tuple[float, str]:
        """What is smallest among those that match applies (POLICY-02)."""
        return -self.priority, self.name

    @property
    def kinds(self) -> frozenset[str]:
        """What it is for: values of QUEUE_KINDS, and EXCHANGES."""
        queues = frozenset(QUEUE_KINDS.values())
        some = {ALL: queues | {EXCHANGES}, QUEUES: queues}
        return some.get(self.apply_to, frozenset({self.apply_to}))


class PolicyMatch(NamedTuple):
    """What applies to one object."""

    policy: Policy | None = None
    operator: Policy | None = None

    @property
    def policy_definition(self) -> Mapping[str, Value]:
        """The definition of the policy, empty when there is none."""
        return self.policy.definition if self.policy is not None else {}

    @property
    def operator_definition(self) -> Mapping[str, Value]:
        """The definition of the operator policy, empty when there is none."""
        return self.operator.definition if self.operator is not None else {}

    def effective(self, queue_type: str = CLASSIC) -> dict[str, Value]:
        """Both together, without the object's arguments (POLICY-09)."""
        return merged(self.policy_definition, self.operator_definition, queue_type)


NO_POLICY: Final = PolicyMatch()


def compile_pattern(pattern: str) -> Pattern:
    """The expression that is searched in names.

    Raises:
        InvalidPolicy: it is none (POLICY-07)
    """
    try:
        return Pattern(pattern)
    except ValueError as error:
        raise InvalidPolicy(
            f"pattern should be regular expression but is invalid: {term(str(error))}"
        ) from None


class _Ranked:
    """A policy with its pattern made ready."""

    __slots__ = ("_kinds", "_pattern", "policy")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._kinds = policy.kinds
        self._pattern = compile_pattern(policy.pattern)

    def matches(self, kind: str, name: str) -> bool:
        """Whether it is for this one; a name that takes too long to search does not match."""
        return kind in self._kinds and bool(self._pattern.is_in(name))


class Policies:
    """The two lists of one vhost.

    Spec: POLICY-01, POLICY-03
    """

    __slots__ = ("_lists",)

    def __init__(self) -> None:
        # Policies, then operator policies; each by name, in the order in which they are asked.
        self._lists: tuple[dict[str, _Ranked], dict[str, _Ranked]] = ({}, {})

    def __iter__(self) -> Iterator[Policy]:
        """All policies, then all operator policies."""
        for ranked in self._lists:
            yield from (each.policy for each in ranked.values())

    def __len__(self) -> int:
        return sum(map(len, self._lists))

    def find(self, name: str, *, is_operator: bool = False) -> Policy | None:
        """The policy or operator policy of that name."""
        ranked = self._lists[is_operator].get(name)
        return ranked.policy if ranked is not None else None

    def put(self, policy: Policy) -> None:
        """Create or replace one; it was checked.

        Raises:
            InvalidPolicy: its pattern is no regular expression
        """
        ranked = self._lists[policy.is_operator]
        ranked[policy.name] = _Ranked(policy)
        in_order = sorted(ranked.items(), key=lambda item: item[1].policy.rank)
        ranked.clear()
        ranked.update(in_order)

    def remove(self, name: str, *, is_operator: bool = False) -> bool:
        """Forget one; False when there is none."""
        return self._lists[is_operator].pop(name, None) is not None

    def of_queue(self, name: str, queue_type: str) -> PolicyMatch:
        """What applies to a queue of this name and type."""
        kind = QUEUE_KINDS[queue_type]
        policies, operator_policies = self._lists
        return PolicyMatch(_first(policies, kind, name), _first(operator_policies, kind, name))

    def of_exchange(self, name: str) -> PolicyMatch:
        """What applies to an exchange of this name; operator policies are for queues."""
        return PolicyMatch(_first(self._lists[0], EXCHANGES, name))


def _first(ranked: Mapping[str, _Ranked], kind: str, name: str) -> Policy | None:
    for each in ranked.values():
        if each.matches(kind, name):
            return each.policy
    return None
