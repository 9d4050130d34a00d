"""Policies and parameters changed while the broker runs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.unit.server.admin.accounts.administrating import Administrator

POLICY: dict[str, Any] = {"vhost": "/", "name": "p", "pattern": "^q", "definition": {}}


@pytest.fixture
def admin() -> Administrator:
    return Administrator()


def limit_of_q(admin: Administrator) -> object:
    return admin.world.vhost.queues["q"].features.number("max-length")


def test_policies_act_at_once_and_after_a_restart(admin: Administrator) -> None:
    client = admin.world.connect()
    client.open()
    client.declare("q", durable=True)
    policy = POLICY | {"definition": {"max-length": 5}}
    assert admin.do("put policy", **policy)["created"] is True
    assert limit_of_q(admin) == 5
    operator = POLICY | {"definition": {"max-length": 3}, "priority": 1.5}
    assert admin.do("put operator-policy", **operator)["created"] is True
    assert limit_of_q(admin) == 3
    admin = admin.restart()
    assert limit_of_q(admin) == 3
    admin.do("delete operator-policy", vhost="/", name="p")
    assert limit_of_q(admin) == 5
    admin.do("delete policy", vhost="/", name="p")
    assert limit_of_q(admin) is None
    assert admin.refused("delete policy", vhost="/", name="p")[0] == 404


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"definition": {"nonsense": 1}}, 400),
        ({"definition": {}}, 400),
        ({"pattern": "("}, 400),
        ({"apply_to": "cats"}, 400),
        ({"vhost": "nx"}, 404),
    ],
)
def test_a_policy_that_cannot_be_is_refused(
    admin: Administrator, changes: dict[str, Any], code: int
) -> None:
    """POLICY-07."""
    policy = POLICY | {"definition": {"max-length": 5}} | changes
    found, text = admin.refused("put policy", **policy)
    assert found == code
    assert code == 404 or text.startswith("Validation failed\n\n")


def test_parameters_are_kept(admin: Administrator) -> None:
    place = {"vhost": "/", "component": "mine", "name": "n"}
    value = {"a": [1, None, "b"]}
    assert admin.do("put parameter", **place, value=value)["created"] is True
    assert admin.do("put global-parameter", name="g", value="text")["created"] is True
    admin = admin.restart()
    accounts = admin.world.runtime.broker.accounts
    assert accounts.parameters["/", "mine", "n"].value == value
    assert accounts.global_parameters["g"].value == "text"
    admin.do("delete parameter", **place)
    admin.do("delete global-parameter", name="g")
    assert admin.refused("delete parameter", **place)[0] == 404
    assert admin.refused("delete global-parameter", name="g")[0] == 404
    accounts = admin.restart().world.runtime.broker.accounts
    assert (accounts.parameters, accounts.global_parameters) == ({}, {})


@pytest.mark.parametrize(
    ("component", "reason"),
    [
        ("shovel", "component shovel not found"),
        ("federation-upstream", "component federation-upstream not found"),
        ("", "component  not found"),
        ("vhost-limits", "use 'put vhost-limit'"),
        ("operator_policy", "use 'put operator-policy'"),
    ],
)
def test_a_parameter_that_would_do_nothing_is_refused(
    admin: Administrator, component: str, reason: str
) -> None:
    """HTTP-27."""
    code, text = admin.refused("put parameter", component=component, name="n", value={})
    assert code == 400
    assert reason in text


def test_a_value_that_is_no_json_is_refused(admin: Administrator) -> None:
    assert admin.refused("put global-parameter", name="g", value=b"bytes")[0] == 400
    for value, text in (
        ([{"a": 1 << 64}], "value[0].a: 18446744073709551616 does not fit into 64 bits"),
        (math.inf, "value: too large"),
    ):
        assert admin.refused("put global-parameter", name="g", value=value) == (400, text)
