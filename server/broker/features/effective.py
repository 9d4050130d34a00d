"""The options in effect for a queue: its arguments and policies, merged once by the table.

    arguments, policy, operator policy ──▶ rule of the row in `options.py` ──▶ value, by key

An option needs nothing here: a row in the table is enough, and whoever the option is for reads its
value under the key of the row. Must not know what an option means.

Spec: QUEUE-41 … QUEUE-54, POLICY-05, POLICY-06
"""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from vouchmq.protocol.fields import as_integer, as_text
from vouchmq.server.broker.features.options import (
    ARGUMENT_KEYS,
    CLASSIC,
    CONSUMER_TIMEOUT,
    EFFECTIVE,
    QUORUM,
    queue_type_of,
)
from vouchmq.server.broker.policy.policies import NO_POLICY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vouchmq.protocol.fields import Field, Table
    from vouchmq.server.broker.features.options import Value
    from vouchmq.server.broker.policy.policies import PolicyMatch

NOTHING: Final[Mapping[str, Value]] = MappingProxyType({})


class Features:
    """The options in effect for one queue, by the keys of policies: `message-ttl`, not `x-…`.

    They are read when options change, not for every message: a feature keeps what it needs.

    Args:
        queue_type: `classic`, `quorum` or `stream`
        values: of the options that say something; all of them passed their checks
        most_timeout_ms: what operators allow consumers at most, 0: any (CONS-70)
    """

    __slots__ = ("_values", "consumer_timeout_ms", "most_timeout_ms", "type")

    def __init__(
        self,
        queue_type: str = CLASSIC,
        values: Mapping[str, Value] = NOTHING,
        most_timeout_ms: int = 0,
    ) -> None:
        self.type = queue_type
        self._values = values
        # The only ones that are asked for with every batch of deliveries.
        self.consumer_timeout_ms = self.number(CONSUMER_TIMEOUT)
        self.most_timeout_ms = most_timeout_ms

    @property
    def is_plain(self) -> bool:
        """True when nothing sets the queue apart from one declared without arguments.

        A quorum-type queue is never plain: it has a delivery limit without asking (REDELIVER-14).
        """
        return not self._values and self.type != QUORUM

    def value(self, key: str) -> Value | None:
        """What an option says; None when nothing, or nothing but what holds without it.

        Raises:
            KeyError: the table has no such option of queues
        """
        if key not in EFFECTIVE:
            raise KeyError(key)
        return self._values.get(key)

    def number(self, key: str) -> int | None:
        """The value of an option that is an integer; see `value`."""
        value = self.value(key)
        return value if isinstance(value, int) else None

    def text(self, key: str) -> str | None:
        """The value of an option that is a text; see `value`."""
        value = self.value(key)
        return value if isinstance(value, str) else None

    def is_set(self, key: str) -> bool:
        """Whether an option that is a boolean is there and true; see `value`."""
        return self.value(key) is True


PLAIN: Final = Features()


def features_of(arguments: Table, policy_match: PolicyMatch = NO_POLICY) -> Features:
    """The options that arguments and policies give; all of them passed their checks."""
    # What most queues ask for is worked out once for all of them.
    return _without_arguments(policy_match) if not arguments else _merged(arguments, policy_match)


@lru_cache(maxsize=64)
def _without_arguments(policy_match: PolicyMatch) -> Features:
    return _merged({}, policy_match)


def _merged(arguments: Table, policy_match: PolicyMatch) -> Features:
    queue_type = queue_type_of(arguments)
    given = {
        key: plain(field)
        for name, field in arguments.items()
        if (key := ARGUMENT_KEYS.get(name)) is not None
    }
    policy, operator = policy_match.policy_definition, policy_match.operator_definition
    values: dict[str, Value] = {}
    for key in given.keys() | policy.keys() | operator.keys():
        option = EFFECTIVE.get(key)
        if option is None:
            continue
        value = option.rule_of(queue_type)(given.get(key), policy.get(key), operator.get(key))
        if value is not None and value != option.default:
            values[key] = value
    most_ms = operator.get(CONSUMER_TIMEOUT)
    return Features(queue_type, values, most_ms if isinstance(most_ms, int) else 0)


def plain(field: Field) -> Value:
    """An argument as a policy would say it."""
    number = as_integer(field)
    if number is not None:
        return number
    text = as_text(field)
    return text if text is not None else field.value
