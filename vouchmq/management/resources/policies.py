"""Policies and parameters: shown and changed.

Spec: HTTP-26, HTTP-27
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from msgspec import Struct

from vouchmq.management.api.call import NO_CONTENT, Call, changed
from vouchmq.management.api.errors import not_found
from vouchmq.management.api.listed import in_vhosts
from vouchmq.management.api.paging import Page, projected
from vouchmq.management.broker import Row

POLICY: Final = "policy"
OPERATOR_POLICY: Final = "operator-policy"
LISTINGS: Final = {POLICY: "policies", OPERATOR_POLICY: "operator-policies"}


class PolicyBody(Struct, rename={"apply_to": "apply-to"}):
    """A policy."""

    pattern: str
    definition: dict[str, Any]
    apply_to: str | None = None
    priority: int | float = 0


class ParameterBody(Struct):
    """The value of a parameter."""

    value: Any


async def policies(kind: str, call: Call) -> object:
    """All policies of a kind, or those of a virtual host."""
    rows = await in_vhosts(call, LISTINGS[kind], "name")
    return Page(call.query).of(map(_policy, rows))


async def policy(kind: str, call: Call) -> object:
    """One policy."""
    rows = await call.broker.rows(
        LISTINGS[kind], vhost=await call.vhost(), name=call.names["policy"]
    )
    if not rows:
        raise not_found()
    return projected(_policy(rows[0]), call.query)


async def put_policy(kind: str, call: Call) -> object:
    """Make or change a policy."""
    body = call.content(PolicyBody)
    answer = await call.do(
        f"put {kind}",
        vhost=await call.vhost(),
        name=call.names["policy"],
        pattern=body.pattern,
        definition=body.definition,
        apply_to=body.apply_to,
        priority=body.priority,
    )
    return changed(answer)


async def delete_policy(kind: str, call: Call) -> object:
    """Remove a policy."""
    await call.do(f"delete {kind}", vhost=await call.vhost(), name=call.names["policy"])
    return NO_CONTENT


async def parameters(call: Call) -> object:
    """Parameters of virtual hosts: all, those of a component, or of one in a virtual host."""
    component = call.names.get("component")
    rows = await in_vhosts(call, "parameters", "component", "name")
    return Page(call.query).of(row for row in rows if component in {None, row["component"]})


async def parameter(call: Call) -> object:
    """One parameter."""
    names = (call.names["component"], call.names["name"])
    for row in await in_vhosts(call, "parameters", "name"):
        if (row["component"], row["name"]) == names:
            return projected(row, call.query)
    raise not_found()


async def put_parameter(call: Call) -> object:
    """Set a parameter."""
    value = call.content(ParameterBody).value
    where = {"component": call.names["component"], "name": call.names["name"]}
    return changed(await call.do("put parameter", vhost=await call.vhost(), **where, value=value))


async def delete_parameter(call: Call) -> object:
    """Remove a parameter."""
    where = {"component": call.names["component"], "name": call.names["name"]}
    await call.do("delete parameter", vhost=await call.vhost(), **where)
    return NO_CONTENT


async def global_parameters(call: Call) -> object:
    """Parameters of the whole broker."""
    return Page(call.query).of(await call.broker.rows("global-parameters"))


async def global_parameter(call: Call) -> object:
    """One of them."""
    rows = await call.broker.rows("global-parameters", name=call.names["name"])
    if not rows:
        raise not_found()
    return projected(rows[0], call.query)


async def put_global_parameter(call: Call) -> object:
    """Set one of them."""
    value = call.content(ParameterBody).value
    return changed(await call.do("put global-parameter", name=call.names["name"], value=value))


async def delete_global_parameter(call: Call) -> object:
    """Remove one of them."""
    await call.do("delete global-parameter", name=call.names["name"])
    return NO_CONTENT


def _policy(row: Row) -> Row:
    return {
        "vhost": row["vhost"],
        "name": row["name"],
        "pattern": row["pattern"],
        "apply-to": row["apply_to"],
        "definition": row["definition"],
        "priority": row["priority"],
    }


OF_USERS: Final = tuple(
    partial(each, POLICY) for each in (policies, policy, put_policy, delete_policy)
)
OF_OPERATORS: Final = tuple(
    partial(each, OPERATOR_POLICY) for each in (policies, policy, put_policy, delete_policy)
)
