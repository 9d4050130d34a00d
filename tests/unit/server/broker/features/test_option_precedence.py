"""Policies by themselves: what may be said, whom it governs, and which of several words counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.server.broker.stand_ins import integer
from vouchmq.protocol.fields import Field, longstr
from vouchmq.server.broker.dead_letter.dead_letters import is_at_least_once
from vouchmq.server.broker.features import options
from vouchmq.server.broker.features.effective import features_of
from vouchmq.server.broker.features.options import (
    OPERATOR_POLICY_KEYS,
    POLICY_KEYS,
    InvalidPolicy,
    merged,
    resolve,
)
from vouchmq.server.broker.features.redelivery import ReturnRules, rules_of
from vouchmq.server.broker.policy.policies import NO_POLICY, Policies, Policy, PolicyMatch


def policy(name: str = "p", pattern: str = ".*", **more: object) -> Policy:
    definition = more.pop("definition", {"max-length": 1})
    assert isinstance(definition, Mapping)
    return Policy(name, pattern, definition, **more)  # type: ignore[arg-type]


def operator(name: str = "o", pattern: str = ".*", **more: object) -> Policy:
    return policy(name, pattern, is_operator=True, **more)


def governs(policies: Policies, name: str, queue_type: str = "classic") -> tuple[str, str]:
    policy_match = policies.of_queue(name, queue_type)
    return (
        policy_match.policy.name if policy_match.policy else "",
        policy_match.operator.name if policy_match.operator else "",
    )


class TestMatching:
    """POLICY-01 … POLICY-03."""

    def test_pattern_is_searched_in_the_name(self) -> None:
        policies = Policies()
        policies.put(policy(pattern="or"))
        policies.put(operator(pattern="^or"))
        assert governs(policies, "orders") == ("p", "o")
        assert governs(policies, "my-orders") == ("p", "")
        assert policies.of_queue("other", "classic") == NO_POLICY

    def test_empty_pattern_matches_everything(self) -> None:
        policies = Policies()
        policies.put(policy(pattern=""))
        assert governs(policies, "q") == ("p", "")

    @pytest.mark.parametrize(
        ("apply_to", "kinds"),
        [
            ("all", {"classic", "quorum", "stream", "exchange"}),
            ("queues", {"classic", "quorum", "stream"}),
            ("classic_queues", {"classic"}),
            ("quorum_queues", {"quorum"}),
            ("streams", {"stream"}),
            ("exchanges", {"exchange"}),
        ],
    )
    def test_apply_to(self, apply_to: str, kinds: set[str]) -> None:
        policies = Policies()
        policies.put(policy(apply_to=apply_to))
        found = {
            each for each in ("classic", "quorum", "stream") if governs(policies, "n", each)[0]
        }
        if policies.of_exchange("n").policy:
            found.add("exchange")
        assert found == kinds

    def test_highest_priority_then_smallest_name_governs_alone(self) -> None:
        policies = Policies()
        for name, priority in (("c", 1), ("b", 7), ("a", 7), ("z", 6.5)):
            policies.put(policy(name, priority=priority))
            policies.put(operator(name, priority=-priority))
        assert governs(policies, "q") == ("a", "c")
        assert policies.remove("a")
        assert governs(policies, "q") == ("b", "c")
        assert not policies.remove("a")
        assert policies.remove("c", is_operator=True)
        assert governs(policies, "q") == ("b", "z")

    def test_the_same_name_replaces(self) -> None:
        policies = Policies()
        policies.put(policy("a", priority=9))
        policies.put(policy("b", priority=5))
        policies.put(policy("a", priority=1))
        assert governs(policies, "q") == ("b", "")
        assert len(policies) == 2

    def test_operator_policies_do_not_apply_to_exchanges(self) -> None:
        policies = Policies()
        policies.put(operator())
        assert policies.of_exchange("x") == NO_POLICY

    def test_a_pattern_without_end_governs_nothing_and_leaves_the_others_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("vouchmq.server.broker.patterns.SEARCH_LIMIT_S", 0.001)
        policies = Policies()
        policies.put(policy("slow", "^(([a-z])+.)+[A-Z]([a-z])+$", priority=2))
        policies.put(policy("quick", priority=1))
        for number in range(100):
            assert governs(policies, "a" * 60 + str(number)) == ("quick", "")
        # It is not given up: a name that it can be searched in is governed.
        assert governs(policies, "a.Bc") == ("slow", "")


class TestValidation:
    """POLICY-07, POLICY-08: the words are RabbitMQ's where it has them."""

    @pytest.mark.parametrize(
        ("changed", "text"),
        [
            ({"definition": {}}, "no policy provided"),
            (
                {"definition": {"max-length": 1, "nonsense": 7, "x": "y"}},
                '[{<<"nonsense">>,7},{<<"x">>,<<"y">>}] are not recognised policy settings',
            ),
            ({"definition": {"max-length": -1}}, "-1 is not a valid maximum length"),
            ({"definition": {"max-length": True}}, "true is not a valid maximum length"),
            ({"definition": {"max-length": "5"}}, '<<"5">> is not a valid maximum length'),
            ({"definition": {"max-length": 1.5}}, "1.5 is not a valid maximum length"),
            (
                {"definition": {"max-length-bytes": None}},
                "null is not a valid maximum length in bytes",
            ),
            ({"definition": {"expires": 0}}, "0 is not a valid queue expiry"),
            ({"definition": {"message-ttl": []}}, "[] is not a valid message TTL"),
            ({"definition": {"overflow": "x"}}, '<<"x">> is not a valid overflow value'),
            (
                {"definition": {"dead-letter-exchange": 1}},
                "1 is not a valid dead letter exchange name",
            ),
            ({"definition": {"max-age": "7"}}, '<<"7">> is not a valid max age'),
            ({"definition": {"queue-version": 3}}, "3 is not a valid queue version"),
            (
                {"definition": {"delayed-retry-multiplier": 0.5}},
                "0.5 is not a valid delayed retry multiplier",
            ),
            (
                {"apply_to": "cats"},
                "apply-to 'cats' unrecognised; should be 'all', 'queues', 'classic_queues', "
                "'quorum_queues', 'streams' or 'exchanges'",
            ),
            ({"name": ""}, "name should have 1 to 255 bytes"),
            ({"name": "é" * 128}, "name should have 1 to 255 bytes"),
        ],
    )
    def test_refused(self, changed: dict[str, object], text: str) -> None:
        with pytest.raises(InvalidPolicy) as refused:
            policy(**changed).require_valid()  # type: ignore[arg-type]
        assert str(refused.value) == text

    def test_bad_pattern(self) -> None:
        with pytest.raises(InvalidPolicy, match=r"^pattern should be regular expr"):
            policy(pattern="(").require_valid()
        with pytest.raises(InvalidPolicy):
            Policies().put(policy(pattern="("))

    @pytest.mark.parametrize("key", sorted(set(POLICY_KEYS) - set(OPERATOR_POLICY_KEYS)))
    def test_operators_may_not_say_everything(self, key: str) -> None:
        with pytest.raises(InvalidPolicy, match=r"are not recognised policy settings$"):
            operator(definition={key: "1h"}).require_valid()

    def test_operator_policies_are_for_queues(self) -> None:
        with pytest.raises(InvalidPolicy, match=r"^apply-to 'exchanges' unrecognised"):
            operator(apply_to="exchanges").require_valid()
        operator(apply_to="streams").require_valid()

    def test_operator_keys(self) -> None:
        assert set(OPERATOR_POLICY_KEYS) == {
            *("expires", "message-ttl", "max-length", "max-length-bytes", "overflow"),
            *("delivery-limit", "max-in-memory-length", "max-in-memory-bytes"),
            *("target-group-size", "queue-version", "consumer-timeout"),
            "queue-master-locator",
            *("delayed-retry-type", "delayed-retry-min", "delayed-retry-max"),
        }

    def test_what_rabbitmq_knows_is_accepted(self) -> None:
        policy(
            definition={
                "ha-mode": "exactly",
                "ha-params": 2,
                "ha-sync-mode": "automatic",
                "federation-upstream-set": "all",
                "queue-leader-locator": "balanced",
                "queue-mode": "lazy",
                "consumer-timeout": 60_000,
                "dead-letter-strategy": "at-least-once",
                "delivery-limit": -1,
                "delayed-message": True,
                "max-age": "7D",
            }
        ).require_valid()


class TestPrecedence:
    """POLICY-05, as (argument, policy, operator policy) → what counts."""

    @pytest.mark.parametrize(
        "key",
        ["message-ttl", "expires", "max-length", "max-length-bytes", "delayed-retry-max"],
    )
    def test_smallest(self, key: str) -> None:
        assert resolve(key, 3, 2, 1) == 1
        assert resolve(key, 1, 2, 3) == 1
        assert resolve(key, 3, 2, None) == 2
        assert resolve(key, None, None, 3) == 3
        assert resolve(key, 0, 2, 3) == 0
        assert resolve(key, None, None, None) is None

    @pytest.mark.parametrize(
        ("given", "counts"),
        [
            ((5, 3, 4), 3),
            ((-1, 3, 4), 3),
            ((0, -1, 4), 0),
            ((-1, -1, None), -1),
            ((None, None, -1), -1),
            ((None, 7, None), 7),
            ((None, None, None), None),
        ],
    )
    def test_delivery_limit(self, given: tuple[object, object, object], counts: object) -> None:
        assert resolve("delivery-limit", *given) == counts

    @pytest.mark.parametrize(
        ("given", "counts"),
        [
            ((20, 3, None), 3),
            ((3, 20, None), 3),
            ((20, None, 3), 3),
            ((None, 20, 3), 3),
            ((4, 3, 5), 3),
            # 0 is no limit.
            ((0, 3, None), 3),
            ((3, 0, None), 3),
            ((0, 0, 3), 3),
            ((0, None, None), 0),
            ((None, None, None), None),
        ],
    )
    def test_consumer_timeout(self, given: tuple[object, object, object], counts: object) -> None:
        assert resolve("consumer-timeout", *given) == counts

    @pytest.mark.parametrize(
        ("given", "counts"),
        [
            ((500, 1000, 2000), 500),
            ((5000, 1000, 2000), 2000),
            ((5000, 1000, None), 1000),
            ((None, 1000, 100), 1000),
            ((7, None, None), 7),
            ((None, None, None), None),
        ],
    )
    def test_delayed_retry_minimum(
        self, given: tuple[object, object, object], counts: object
    ) -> None:
        """An operator's minimum is a floor for policies, and the argument may be lower."""
        assert resolve("delayed-retry-min", *given) == counts

    def test_delayed_retry_type(self) -> None:
        assert resolve("delayed-retry-type", "a", "p", "o") == "o"
        assert resolve("delayed-retry-type", "a", "p", None) == "p"
        assert resolve("delayed-retry-type", "a", None, None) == "a"

    def test_each_number_where_the_three_meet_has_a_rule_that_compares(self) -> None:
        """A number that a policy may bound is not the argument's alone."""
        numbers = {
            (key, kind): tuple(
                resolve(key, argument, by_policy, by_operator, kind)
                for argument, by_policy, by_operator in ((9, 8, 7), (9, 7, None), (7, 8, 9))
            )
            for key, row in options.EFFECTIVE.items()
            for kind in row.types
            if row.policy_term and row.check.policy(7) and not row.check.policy("7")
        }
        bounds, first, last = (7, 7, 7), (9, 9, 7), (7, 7, 9)
        bounding = (
            *("consumer-timeout", "delayed-retry-max", "delivery-limit", "expires", "max-length"),
            *("max-length-bytes", "message-ttl"),
        )
        of_queues = {
            **dict.fromkeys(bounding, bounds),
            "delayed-retry-min": (8, 7, 7),
            # It says how delays grow, and nobody is bounded by it.
            "delayed-retry-multiplier": first,
        }
        of_streams = {
            "max-length": bounds,
            "max-length-bytes": last,
            "stream-max-segment-size-bytes": last,
        }
        assert numbers == {
            **{(key, kind): of_queues[key] for key in of_queues for kind in ("classic", "quorum")},
            **{(key, "stream"): found for key, found in of_streams.items()},
        }

    def test_overflow(self) -> None:
        assert resolve("overflow", "a", "p", "o") == "o"
        assert resolve("overflow", "a", "p", None) == "a"
        assert resolve("overflow", None, "p", None) == "p"
        assert resolve("overflow", "a", "p", None, "quorum") == "p"
        assert resolve("overflow", "a", None, None, "quorum") == "a"
        assert resolve("overflow", "a", "p", "o", "quorum") == "o"

    @pytest.mark.parametrize(
        "key", ["dead-letter-exchange", "delayed-retry-backoff", "alternate-exchange"]
    )
    def test_argument_beats_policy(self, key: str) -> None:
        assert resolve(key, "a", "p", None) == "a"
        assert resolve(key, None, "p", None) == "p"

    @pytest.mark.parametrize(
        "key", ["max-age", "max-length-bytes", "stream-max-segment-size-bytes"]
    )
    def test_in_streams_arguments_count_least(self, key: str) -> None:
        assert resolve(key, 1, 2, 3, "stream") == 3
        assert resolve(key, 1, 2, None, "stream") == 2
        assert resolve(key, 1, None, None, "stream") == 1

    def test_merged_keys_of_both_policies(self) -> None:
        """POLICY-03, POLICY-09."""
        user = {"max-length": 3, "dead-letter-exchange": "x", "overflow": "drop-head"}
        by_operator = {"max-length": 2, "expires": 9, "overflow": "reject-publish"}
        policy_match = PolicyMatch(policy(definition=user), operator(definition=by_operator))
        assert policy_match.effective() == {
            "max-length": 2,
            "dead-letter-exchange": "x",
            "overflow": "reject-publish",
            "expires": 9,
        }
        assert merged({}, {}) == {}


class TestFeatures:
    """What a queue has in the end."""

    def test_each_key_by_itself(self) -> None:
        """POLICY-06."""
        policy_match = PolicyMatch(
            policy(definition={"dead-letter-routing-key": "k", "dead-letter-exchange": "p"})
        )
        features = features_of({"x-dead-letter-exchange": longstr("a")}, policy_match)
        assert features.text("dead-letter-exchange") == "a"
        assert features.text("dead-letter-routing-key") == "k"

    def test_all_keys_of_queues(self) -> None:
        definition = {
            "message-ttl": 1,
            "expires": 2,
            "max-length": 3,
            "max-length-bytes": 4,
            "overflow": "reject-publish",
            "dead-letter-exchange": "x",
            "dead-letter-strategy": "at-least-once",
            "delivery-limit": 5,
            "consumer-timeout": 6,
            "delayed-retry-type": "all",
            "delayed-retry-min": 7,
            "delayed-retry-max": 8,
            "delayed-retry-backoff": "exponential",
            "delayed-retry-multiplier": 1.5,
        }
        features = features_of({}, PolicyMatch(policy(definition=definition)))
        assert {key: features.value(key) for key in definition} == definition
        assert is_at_least_once(features)
        assert features.consumer_timeout_ms == 6
        assert rules_of(features) == ReturnRules(
            5, "all", 7, 8, is_exponential=True, multiplier=1.5
        )

    def test_streams(self) -> None:
        arguments = {"x-queue-type": longstr("stream"), "x-max-length-bytes": integer(1)}
        definition = {"max-age": "1h", "max-length-bytes": 7, "stream-max-segment-size-bytes": 9}
        features = features_of(arguments, PolicyMatch(policy(definition=definition)))
        assert (features.text("max-age"), features.number("max-length-bytes")) == ("1h", 7)
        assert features.number("stream-max-segment-size-bytes") == 9

    def test_default_limit_of_quorum_queues_is_no_argument(self) -> None:
        """REDELIVER-14: who names a limit, even a higher one, has it."""
        arguments = {"x-queue-type": longstr("quorum")}
        assert rules_of(features_of(arguments)).limit == 20
        policy_match = PolicyMatch(policy(definition={"delivery-limit": 30}))
        assert rules_of(features_of(arguments, policy_match)).limit == 30

    def test_without_policies_arguments_are_all(self) -> None:
        arguments = {"x-max-length": integer(7), "x-overflow": longstr("drop-head")}
        features = features_of(arguments)
        assert (features.number("max-length"), features.text("overflow")) == (7, "drop-head")

    def test_only_what_sets_a_queue_apart_is_no_plain_one(self) -> None:
        assert features_of({"x-single-active-consumer": Field("t", False)}).is_plain
        assert not features_of({"x-single-active-consumer": Field("t", True)}).is_plain
        assert features_of({"x-max-priority": integer(0)}).is_plain
        # Accepted, and without effect.
        assert features_of({"x-queue-mode": longstr("lazy")}).is_plain
        assert not features_of({"x-queue-type": longstr("quorum")}).is_plain
        assert features_of({}, PolicyMatch(policy(definition={"ha-mode": "all"}))).is_plain

    def test_what_the_table_does_not_have_is_no_option(self) -> None:
        with pytest.raises(KeyError, match="max-lenght"):
            features_of({}).number("max-lenght")
        with pytest.raises(KeyError, match="queue-mode"):
            features_of({}).text("queue-mode")

    def test_every_option_with_an_effect_is_read(self) -> None:
        """A row that nobody reads would be accepted and ignored."""
        server = Path(options.__file__).parents[2]
        modules = [*(server / "broker").rglob("*.py"), *(server / "channel").rglob("*.py")]
        text = "".join(each.read_text() for each in modules if each.name != "options.py")
        constants = {value: name for name, value in vars(options).items() if isinstance(value, str)}
        unread = [
            key
            for key, row in options.EFFECTIVE.items()
            if f'"{key}"' not in text
            and not re.search(rf"\b{constants.get(row.argument, key)}\b", text)
        ]
        # `levels_of` reads it, in the table's own module.
        assert unread == ["max-priority"]
        assert options.levels_of({"x-max-priority": integer(3)}) == (3, 0)
