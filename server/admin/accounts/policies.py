"""`put policy`, `put parameter` and the like: what is laid down for a virtual host or the broker.

Policies act at once. Parameters are kept for whoever asks for them; those of plugins that this
broker has not got are refused, because nothing would come of them. Must not know sockets.

Spec: HTTP-26, HTTP-27, POLICY-01, POLICY-03, POLICY-07, POLICY-08
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec import field

from vouchmq.server.admin.accounts.administration import NOT_FOUND, POLICYMAKER
from vouchmq.server.admin.accounts.users import require_name
from vouchmq.server.admin.audit import Changing, who
from vouchmq.server.admin.commands import CommandRefused
from vouchmq.server.broker import definitions as d
from vouchmq.server.broker.features.options import InvalidPolicy
from vouchmq.server.broker.policy.policies import ALL, QUEUES, Policy
from vouchmq.server.definitions.arguments import require_storable
from vouchmq.server.definitions.file import OPERATOR_POLICY, VHOST_LIMITS, is_of_plugin
from vouchmq.server.settings.validation import InvalidValueError

if TYPE_CHECKING:
    from vouchmq.server.admin.accounts.administration import Administration
    from vouchmq.server.admin.commands import ControlCommands, Reply
    from vouchmq.server.broker.features.options import Value
    from vouchmq.server.broker.policy.engine import PolicyEngine
    from vouchmq.server.broker.queues.api import Queue

log = structlog.get_logger(__name__)

# They have commands of their own.
OTHERS: Final = {OPERATOR_POLICY: "put operator-policy", VHOST_LIMITS: "put vhost-limit"}


class PolicyArguments(Changing, frozen=True, kw_only=True):
    """The policy that a command is about."""

    vhost: str = "/"
    name: str


class PutPolicy(PolicyArguments, frozen=True, kw_only=True):
    """A policy to make or change; see `Policy`. `apply_to` None: all that it may apply to."""

    pattern: str
    definition: dict[str, Any]
    apply_to: str | None = None
    priority: int | float = 0


class ParameterArguments(Changing, frozen=True, kw_only=True):
    """The parameter of a virtual host that a command is about."""

    vhost: str = "/"
    component: str
    name: str


class PutParameter(ParameterArguments, frozen=True, kw_only=True):
    """A parameter and its value."""

    value: Any = field()


class GlobalParameterArguments(Changing, frozen=True, kw_only=True):
    """The parameter of the whole broker that a command is about."""

    name: str


class PutGlobalParameter(GlobalParameterArguments, frozen=True, kw_only=True):
    """A parameter and its value."""

    value: Any = field()


class PolicyCommands:
    """The commands that change policies and parameters.

    Args:
        administration: of the broker
    """

    def __init__(self, administration: Administration) -> None:
        self._administration = administration
        self._accounts = administration.accounts

    def register(self, commands: ControlCommands) -> None:
        """Enter the commands."""
        commands.register("put policy", PutPolicy, self._put_user_policy)
        commands.register("delete policy", PolicyArguments, self._delete_user_policy)
        commands.register("put operator-policy", PutPolicy, self._put_operator_policy)
        commands.register("delete operator-policy", PolicyArguments, self._delete_operator_policy)
        commands.register("put parameter", PutParameter, self._put_parameter)
        commands.register("delete parameter", ParameterArguments, self._delete_parameter)
        commands.register("put global-parameter", PutGlobalParameter, self._put_global)
        commands.register("delete global-parameter", GlobalParameterArguments, self._delete_global)

    # Policies

    def _put_user_policy(self, asked: PutPolicy, reply: Reply) -> None:
        self._administration.begin(asked, POLICYMAKER, vhost=asked.vhost)
        self._put(asked, reply, is_operator=False)

    def _put_operator_policy(self, asked: PutPolicy, reply: Reply) -> None:
        self._administration.begin(asked)
        self._put(asked, reply, is_operator=True)

    def _put(self, asked: PutPolicy, reply: Reply, *, is_operator: bool) -> None:
        engine = self._administration.vhost(asked.vhost).policy_engine
        definition: dict[str, Value] = asked.definition
        apply_to = asked.apply_to or (QUEUES if is_operator else ALL)
        policy = Policy(
            asked.name, asked.pattern, definition, apply_to, asked.priority, is_operator
        )
        before = engine.policies.find(asked.name, is_operator=is_operator)
        try:
            lsn = engine.set_policy(policy)
        except InvalidPolicy as error:
            raise CommandRefused(f"Validation failed\n\n{error}") from None
        log.info(
            "admin.policy_set",
            **who(asked),
            vhost=asked.vhost,
            name=asked.name,
            is_operator=is_operator,
            pattern=asked.pattern,
            apply_to=apply_to,
            priority=asked.priority,
            definition=definition,
        )
        self._answer(reply, engine, lsn, created=before is None)

    def _delete_user_policy(self, asked: PolicyArguments, reply: Reply) -> None:
        self._administration.begin(asked, POLICYMAKER, vhost=asked.vhost)
        self._delete(asked, reply, is_operator=False)

    def _delete_operator_policy(self, asked: PolicyArguments, reply: Reply) -> None:
        self._administration.begin(asked)
        self._delete(asked, reply, is_operator=True)

    def _delete(self, asked: PolicyArguments, reply: Reply, *, is_operator: bool) -> None:
        engine = self._administration.vhost(asked.vhost).policy_engine
        lsn = engine.delete_policy(asked.name, is_operator=is_operator)
        if lsn is None:
            raise CommandRefused(f"no policy {asked.name!r} in {asked.vhost!r}", NOT_FOUND)
        log.info(
            "admin.policy_cleared",
            **who(asked),
            vhost=asked.vhost,
            name=asked.name,
            is_operator=is_operator,
        )
        self._answer(reply, engine, lsn)

    def _answer(self, reply: Reply, engine: PolicyEngine[Queue], lsn: int, **facts: Any) -> None:
        """Answer once the policies are in force everywhere, and the record is on disk."""
        administration = self._administration
        administration.in_slices(
            engine.settling(), lambda: administration.answer(reply, lsn, **facts)
        )

    # Parameters

    def _put_parameter(self, asked: PutParameter, reply: Reply) -> None:
        self._administration.begin(asked, POLICYMAKER, vhost=asked.vhost)
        self._administration.vhost(asked.vhost)
        require_name(asked.name)
        component = asked.component
        if component in OTHERS:
            raise CommandRefused(f"component {component!r}: use {OTHERS[component]!r}")
        if not component or is_of_plugin(component):
            raise CommandRefused(f"Validation failed\n\ncomponent {component} not found\n")
        place = (asked.vhost, component, asked.name)
        is_new = place not in self._accounts.parameters
        lsn = self._change(d.ParameterSet(*place, asked.value))
        log.info(
            "admin.parameter_set",
            **who(asked),
            vhost=asked.vhost,
            component=component,
            name=asked.name,
        )
        self._administration.answer(reply, lsn, created=is_new)

    def _delete_parameter(self, asked: ParameterArguments, reply: Reply) -> None:
        self._administration.begin(asked, POLICYMAKER, vhost=asked.vhost)
        place = (asked.vhost, asked.component, asked.name)
        if place not in self._accounts.parameters:
            raise CommandRefused(f"no parameter {asked.name!r} of {asked.component!r}", NOT_FOUND)
        lsn = self._accounts.change(d.ParameterCleared(*place))
        log.info(
            "admin.parameter_cleared",
            **who(asked),
            vhost=asked.vhost,
            component=asked.component,
            name=asked.name,
        )
        self._administration.answer(reply, lsn)

    def _put_global(self, asked: PutGlobalParameter, reply: Reply) -> None:
        self._administration.begin(asked)
        require_name(asked.name)
        is_new = asked.name not in self._accounts.global_parameters
        lsn = self._change(d.GlobalParameterSet(asked.name, asked.value))
        log.info("admin.global_parameter_set", **who(asked), name=asked.name)
        self._administration.answer(reply, lsn, created=is_new)

    def _delete_global(self, asked: GlobalParameterArguments, reply: Reply) -> None:
        self._administration.begin(asked)
        if asked.name not in self._accounts.global_parameters:
            raise CommandRefused(f"no global parameter {asked.name!r}", NOT_FOUND)
        lsn = self._accounts.change(d.GlobalParameterCleared(asked.name))
        log.info("admin.global_parameter_cleared", **who(asked), name=asked.name)
        self._administration.answer(reply, lsn)

    def _change(self, definition: d.ParameterSet | d.GlobalParameterSet) -> int:
        try:
            # As in an import, so that what is exported can be imported.
            require_storable(definition.value)
            # What a request can hold is more than JSON can.
            d.encode(definition)
        except InvalidValueError as error:
            raise CommandRefused(f"value{error.at}: {error}") from None
        except (TypeError, ValueError):
            raise CommandRefused("the value cannot be kept as JSON") from None
        return self._accounts.change(definition)
