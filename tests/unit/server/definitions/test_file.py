"""Definitions files: what is read from them, and how a fault is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.server.definitions.entries import BINDING, POLICY, QUEUE
from vouchmq.protocol.fields import Field, longstr
from vouchmq.server.definitions.document import DefinitionsError
from vouchmq.server.definitions.file import Content, read_content


def content(**document: Any) -> Content:
    return read_content(json.dumps(document))


def test_an_export_of_rabbitmq_is_read_whole() -> None:
    found = content(
        rabbit_version="3.10.8",
        rabbitmq_version="3.10.8",
        product_name="RabbitMQ",
        product_version="3.10.8",
        users=[
            {
                "name": "u",
                "password_hash": "h",
                "hashing_algorithm": "rabbit_password_hashing_sha512",
                "tags": ["administrator"],
                "limits": {"max-connections": 3},
            }
        ],
        vhosts=[{"name": "/"}],
        permissions=[{"user": "u", "vhost": "/", "configure": "c", "write": "w", "read": "r"}],
        topic_permissions=[
            {"user": "u", "vhost": "/", "exchange": "amq.topic", "write": "^w", "read": ""}
        ],
        parameters=[
            {
                "component": "vhost-limits",
                "name": "limits",
                "value": {"max-queues": 7},
                "vhost": "/",
            },
            {
                "component": "operator_policy",
                "name": "o",
                "value": {
                    "apply-to": "queues",
                    "definition": {"expires": 1},
                    "pattern": "",
                    "priority": 2,
                },
                "vhost": "/",
            },
        ],
        global_parameters=[{"name": "internal_cluster_id", "value": "x"}],
        policies=[POLICY | {"apply-to": "streams", "priority": 1}],
        queues=[QUEUE],
        exchanges=[
            {
                "vhost": "/",
                "name": "x",
                "type": "topic",
                "durable": True,
                "auto_delete": False,
                "internal": True,
                "arguments": {},
            }
        ],
        bindings=[BINDING],
    )
    assert found.skipped == []
    account = found.users[0].account
    assert (account.name, account.password_hash, account.tags) == ("u", "h", ("administrator",))
    assert (account.max_connections, account.max_channels, account.vhosts) == (3, -1, ())
    assert found.permissions[0].patterns == ("c", "w", "r")
    assert found.limits[0].limits == {"max-queues": 7}
    operator, policy = (each.policy for each in found.policies)
    assert (operator.name, operator.is_operator, operator.priority) == ("o", True, 2)
    assert (policy.apply_to, policy.is_operator, policy.comes_from_file) == ("streams", False, True)
    assert found.exchanges[0].internal
    assert found.queues[0].where == "queues[0]"
    assert found.bindings[0].kind == "queue"


def test_limits_as_rabbitmq_3_10_writes_them() -> None:
    found = content(vhosts=[{"name": "v", "limits": [["max-queues", 5], ["max-connections", 2]]}])
    assert found.limits[0].limits == {"max-queues": 5, "max-connections": 2}
    assert found.limits[0].where == "vhosts[0].limits"
    with pytest.raises(
        DefinitionsError, match=r"^vhosts\[0\].limits: expected an object, not a list"
    ):
        content(vhosts=[{"name": "v", "limits": [5]}])


def test_operator_policies_as_rabbitmq_3_10_writes_them() -> None:
    value = {"pattern": "", "definition": [["max-length", 7]]}
    row = {"component": "operator_policy", "name": "o", "vhost": "/", "value": value}
    assert content(parameters=[row]).policies[0].policy.definition == {"max-length": 7}
    with pytest.raises(DefinitionsError, match=r"value.definition: missing$"):
        content(parameters=[row | {"value": {"pattern": ""}}])


def test_operator_policies_may_stand_in_a_list_of_their_own() -> None:
    found = content(operator_policies=[POLICY])
    assert found.policies[0].policy.is_operator


def test_defaults() -> None:
    found = content(queues=[{"vhost": "/", "name": "q"}], policies=[POLICY])
    assert (found.queues[0].durable, found.queues[0].auto_delete) == (True, False)
    assert (found.policies[0].policy.apply_to, found.policies[0].policy.priority) == ("all", 0)


def test_types_of_arguments() -> None:
    arguments = {
        "i": 1,
        "f": 1.5,
        "s": "text",
        "t": True,
        "v": None,
        "a": [1, "x"],
        "o": {"x": -1},
    }
    table = content(queues=[QUEUE | {"arguments": arguments}]).queues[0].arguments
    assert table == {
        "i": Field("l", 1),
        "f": Field("d", 1.5),
        "s": longstr("text"),
        "t": Field("t", True),
        "v": Field("V", None),
        "a": Field("A", (Field("l", 1), longstr("x"))),
        "o": Field("F", {"x": Field("l", -1)}),
    }


def test_the_type_of_a_queue_may_stand_beside_its_arguments() -> None:
    table = content(queues=[QUEUE | {"type": "quorum"}]).queues[0].arguments
    assert table == {"x-queue-type": longstr("quorum")}
    assert content(queues=[QUEUE | {"type": "classic"}]).queues[0].arguments == {}


def test_tags_of_old_exports() -> None:
    found = content(users=[{"name": "u", "tags": "administrator, monitoring"}])
    assert found.users[0].account.tags == ("administrator", "monitoring")


def test_what_this_broker_has_not_got_is_listed() -> None:
    """HTTP-41."""
    found = content(
        parameters=[{"component": "shovel", "name": "s", "vhost": "/", "value": {}}],
        global_parameters=[{"name": "mqtt_port_to_vhost_mapping", "value": {}}],
        vhosts=[{"name": "v", "default_queue_type": "undefined", "limits": []}],
        unheard_of=[1],
        nothing_in_it=[],
    )
    assert found.skipped == [
        "parameters[0] of component 'shovel'",
        "unheard_of",
    ]


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({}, None),
        ({"default_queue_type": "undefined", "metadata": {"default_queue_type": None}}, None),
        ({"default_queue_type": "stream"}, "stream"),
        ({"metadata": {"default_queue_type": "quorum"}}, "quorum"),
        (
            {"default_queue_type": "undefined", "metadata": {"default_queue_type": "quorum"}},
            "quorum",
        ),
        ({"default_queue_type": "classic"}, "classic"),
    ],
)
def test_the_default_queue_type_of_a_vhost_is_read(
    said: dict[str, object], wanted: str | None
) -> None:
    """VHOST-03."""
    found = content(vhosts=[{"name": "v", **said}])
    assert found.vhosts[0].default_queue_type == wanted
    assert found.skipped == []


@pytest.mark.parametrize("word", ["ring", 5, ["quorum"]])
def test_a_queue_type_that_is_none_is_refused(word: object) -> None:
    with pytest.raises(DefinitionsError, match=r"vhosts\[0\].metadata.default_queue_type"):
        content(vhosts=[{"name": "v", "metadata": {"default_queue_type": word}}])


def test_a_word_that_nobody_knows_is_listed_with_its_place() -> None:
    found = content(
        queues=[QUEUE | {"durrable": True, "nothing": None}],
        policies=[POLICY | {"applies-to": "queues"}],
        vhosts=[{"name": "v", "description": "of ours", "tracing": False, "motto": "never lost"}],
        parameters=[
            {
                "component": "operator_policy",
                "name": "o",
                "vhost": "/",
                "value": {"pattern": "", "definition": {"max-length": 1}, "colour": 1},
            }
        ],
    )
    assert found.skipped == [
        "parameters[0].value.colour",
        "policies[0].applies-to",
        "queues[0].durrable",
        "vhosts[0].motto",
    ]


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"queues": {}}, "queues: expected a list, not an object"),
        ({"queues": [1]}, "queues[0]: expected an object, not a number"),
        ({"queues": [QUEUE, {"vhost": "/"}]}, "queues[1].name: missing"),
        ({"queues": [QUEUE | {"name": 5}]}, "queues[0].name: expected a string, not a number"),
        ({"queues": [QUEUE | {"name": ""}]}, "queues[0].name: must not be empty"),
        (
            {"queues": [QUEUE | {"name": "é" * 128}]},
            "queues[0].name: expected at most 255 bytes, not 256",
        ),
        ({"queues": [QUEUE | {"name": "\nq"}]}, "queues[0].name: must not have line ends"),
        ({"queues": [QUEUE | {"name": "\ud800"}]}, "queues[0].name: not valid Unicode text"),
        (
            {"queues": [QUEUE | {"durable": "yes"}]},
            "queues[0].durable: expected true or false, not a string",
        ),
        (
            {"queues": [QUEUE | {"arguments": {"a": {"b": [1 << 63]}}}]},
            "queues[0].arguments.a.b[0]: 9223372036854775808 does not fit into 64 bits",
        ),
        (
            {"policies": [POLICY | {"pattern": None}]},
            "policies[0].pattern: expected a string, not null",
        ),
        (
            {"policies": [POLICY | {"definition": "x"}]},
            "policies[0].definition: expected an object, not a string",
        ),
        (
            {"policies": [POLICY | {"priority": "1"}]},
            "policies[0].priority: expected a number, not a string",
        ),
        (
            {"parameters": [{"component": "operator_policy", "name": "o", "vhost": "/"}]},
            "parameters[0].value: missing",
        ),
        (
            {
                "parameters": [
                    {"component": "vhost-limits", "vhost": "/", "value": {"max-queues": "1"}}
                ]
            },
            "parameters[0].value.max-queues: expected an integer, not a string",
        ),
        (
            {"bindings": [BINDING | {"destination_type": "topic"}]},
            "bindings[0].destination_type: expected one of queue, exchange",
        ),
        ({"users": [{"name": "u", "tags": [1]}]}, "users[0].tags: expected a list of strings"),
    ],
)
def test_faults(document: dict[str, Any], text: str) -> None:
    with pytest.raises(DefinitionsError) as refused:
        content(**document)
    assert str(refused.value) == text


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(DefinitionsError) as refused:
        content(
            queues=[QUEUE | {"name": 5, "durable": "yes"}, 7, QUEUE, {"name": "q"}],
            exchanges={},
            vhosts=[{"name": "v", "limits": {"max-queues": "1", "max-exchanges": None}}],
        )
    assert refused.value.args == (
        "vhosts[0].limits.max-queues: expected an integer, not a string",
        "vhosts[0].limits.max-exchanges: expected an integer, not null",
        "exchanges: expected a list, not an object",
        "queues[0].name: expected a string, not a number",
        "queues[0].durable: expected true or false, not a string",
        "queues[1]: expected an object, not a number",
        "queues[3].vhost: missing",
    )
    assert "; queues[1]: expected" in str(refused.value)


def test_of_very_many_faults_the_first_are_told() -> None:
    with pytest.raises(DefinitionsError) as refused:
        content(queues=[1] * 50)
    assert len(refused.value.args) == 21
    assert refused.value.args[-1] == "30 more faults are not listed"


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        ("{", "not JSON: Expecting property name"),
        ("[]", "expected an object, not a list"),
        ("[" * 100_000, "nested too deeply"),
        ('{"policies": [{"priority": NaN}]}', "not JSON: NaN is not a JSON number"),
    ],
)
def test_no_document(octets: str, text: str) -> None:
    with pytest.raises(DefinitionsError, match=text):
        read_content(octets)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ('{"queues": [{"name": 1}], "queues": []}', ["queues"]),
        ('{"unheard_of": 1, "unheard_of": 1}', ["unheard_of"]),
        (
            '{"queues": [1, {"name": "a", "name": "a", "arguments": {"x": [{"y": 1, "y": 2}]}}],'
            ' "users": [{"password": "p", "tags": [], "password": "q", "tags": []}]}',
            [
                *("queues[1].name", "queues[1].arguments.x[0].y"),
                *("users[0].password", "users[0].tags"),
            ],
        ),
        ('{"queues": [{"queues": 1, "queues": 2}], "queues": 3}', ["queues"]),
        ('{"a\\nb": 1, "a\\nb": 1}', ["'a\\nb'"]),
        ('{"": {"": 1, "": 2}}', ["''.''"]),
    ],
)
def test_a_key_that_stands_twice_is_refused_with_its_place(text: str, places: list[str]) -> None:
    with pytest.raises(DefinitionsError) as refused:
        read_content(text)
    assert refused.value.args == tuple(f"{place}: given twice" for place in places)


def test_keys_that_stand_in_different_objects_are_not_repeated() -> None:
    found = content(queues=[QUEUE, QUEUE | {"name": "other"}])
    assert [queue.name for queue in found.queues] == [QUEUE["name"], "other"]


def test_numbers_without_end() -> None:
    text = json.dumps({"policies": [POLICY]}).replace('"^q",', '"^q", "priority": 1e999,')
    with pytest.raises(DefinitionsError, match=r"^policies\[0\].priority: too large$"):
        read_content(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (f"{1 << 64}", r"\[0\].value: 18446744073709551616 does not fit into 64 bits"),
        (f'[1, {{"a": {-(1 << 63) - 1}}}]', r"\[0\].value\[1\].a: -9223372036854775809 does not"),
        ("[1e999]", r"\[0\].value\[0\]: too large"),
        (r'["\ud800"]', r"\[0\].value\[0\]: not valid Unicode text"),
        (r'{"a": {"\ud800": 1}}', r"\[0\].value.a: not valid Unicode text"),
        ("[" * 200 + "]" * 200, r"\[0\]: nested too deeply"),
    ],
)
def test_a_value_that_could_not_be_shown_again(value: str, text: str) -> None:
    """Otherwise no listing and no export would be possible from then on."""
    with pytest.raises(DefinitionsError, match=rf"^global_parameters{text}"):
        read_content(f'{{"global_parameters": [{{"name": "x", "value": {value}}}]}}')


def test_values_at_their_limits() -> None:
    value = [(1 << 64) - 1, -(1 << 63), "\N{GRINNING FACE}", None, 1.5, True]
    [found] = content(global_parameters=[{"name": "x", "value": value}]).global_parameters
    assert found.value == value


def test_arguments_nested_without_end() -> None:
    nested: dict[str, Any] = {}
    for _ in range(50):
        nested = {"a": nested}
    with pytest.raises(DefinitionsError, match="nested too deeply"):
        content(queues=[QUEUE | {"arguments": nested}])
