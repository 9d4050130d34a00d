"""`vouchmq put` and `delete` of users, permissions, virtual hosts, policies, limits, parameters."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from vouchmq.server.cli.commands.objects import change, on_vhost, quoted
from vouchmq.server.cli.options import broker_options, json_option
from vouchmq.server.cli.program import Group
from vouchmq.server.cli.values import Assignment, Names

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.cli.client import Broker

USER_LIMITS = ("max-connections", "max-channels")
VHOST_LIMITS = ("max-connections", "max-queues", "max-exchanges")


class JsonValue(click.ParamType[Any]):
    """A value in JSON."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click."""
        try:
            return json.loads(str(value))
        except ValueError:
            self.fail(f'expected JSON such as 5, "text" or {{"a": 1}}, not {value!r}', param, ctx)


def _of_broker(command: Callable[..., int]) -> Callable[..., int]:
    return json_option(broker_options(command))


def _names(arguments: dict[str, Any]) -> dict[str, Any]:
    """Only what was given."""
    return {name: value for name, value in arguments.items() if value is not None}


user_argument = click.argument("name", metavar="USER")
vhost_argument = click.argument("name", metavar="VHOST")
operator_option = click.option(
    "--operator", is_flag=True, help="An operator policy, which users' policies cannot exceed."
)


@click.group(cls=Group)
def put() -> None:
    """Make or change a user, permissions, a virtual host, a policy, a limit or a parameter; change
    the prefetch of a consumer.

    A change is in force at once, also for connections that are open, and on disk before the command
    ends. What is not given stays as it is; permissions are given as a whole.
    """


# A limit of a consumer


@put.command("prefetch")
@click.argument("name", metavar="CONNECTION")
@click.argument("number", metavar="CHANNEL", type=click.IntRange(1, 65535))
@click.argument("tag", metavar="CONSUMER")
@click.argument("prefetch", metavar="N", type=click.IntRange(0, 65535))
@_of_broker
def put_prefetch(
    broker: Broker, name: str, number: int, tag: str, prefetch: int, as_json: bool
) -> int:
    """Change how many unacknowledged messages a consumer may have; 0 is no limit.

    `vouchmq list consumers` shows its connection, channel and tag. What it has above a lower limit
    stays with it. The limit ends with the consumer.
    """
    return change(
        broker,
        "set prefetch",
        f"prefetch of {quoted(tag)} changed from {{before}} to {prefetch}",
        as_json,
        name=name,
        number=number,
        tag=tag,
        prefetch=prefetch,
    )


# Users and what they may do


@put.command("user")
@user_argument
@click.option("--password", metavar="TEXT", help="Others can see it while the command runs.")
@click.option("--password-stdin", is_flag=True, help="Read the password from the input.")
@click.option("--tags", metavar="NAME,…", type=Names(), help="Such as administrator.")
@_of_broker
def put_user(
    broker: Broker,
    name: str,
    password: str | None,
    password_stdin: bool,
    tags: tuple[str, ...] | None,
    as_json: bool,
) -> int:
    """Make a user, or change its password or tags. Without a password nobody can log in with it."""
    if password is not None and password_stdin:
        raise click.UsageError("expected --password or --password-stdin, not both")
    if password_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    given = _names({"password": password, "tags": list(tags) if tags is not None else None})
    return change(broker, "put user", f"user {quoted(name)} set", as_json, name=name, **given)


@put.command("permissions")
@user_argument
@click.option("--configure", metavar="REGEX", required=True, help="What it may declare and delete.")
@click.option("--write", metavar="REGEX", required=True, help="What it may publish or bind to.")
@click.option("--read", metavar="REGEX", required=True, help="What it may consume or bind from.")
@on_vhost
def put_permissions(broker: Broker, name: str, vhost: str, as_json: bool, **given: str) -> int:
    """Set what a user may do in a virtual host: regular expressions that names must match."""
    done = f"permissions of {quoted(name)} in {quoted(vhost)} set"
    return change(broker, "put permissions", done, as_json, name=name, vhost=vhost, **given)


@put.command("topic-permissions")
@user_argument
@click.argument("exchange", metavar="EXCHANGE")
@click.option("--write", metavar="REGEX", required=True, help="Keys it may publish with.")
@click.option("--read", metavar="REGEX", required=True, help="Keys it may bind with.")
@on_vhost
def put_topic_permissions(
    broker: Broker, name: str, vhost: str, as_json: bool, **given: str
) -> int:
    """Set which routing keys a user may use with a topic exchange."""
    done = f"topic permissions of {quoted(name)} in {quoted(vhost)} set"
    return change(broker, "put topic-permissions", done, as_json, name=name, vhost=vhost, **given)


@put.command("user-limit")
@user_argument
@click.argument("limit", metavar="LIMIT", type=click.Choice(USER_LIMITS))
@click.argument("value", metavar="N", type=click.IntRange(0))
@_of_broker
def put_user_limit(broker: Broker, as_json: bool, **given: object) -> int:
    """Limit a user: max-connections or max-channels."""
    return change(broker, "put user-limit", "limit set", as_json, **given)


# Virtual hosts


@put.command("vhost")
@vhost_argument
@click.option("--description", metavar="TEXT", help="What it is for.")
@click.option("--tags", metavar="NAME,…", type=Names(), help="For people.")
@click.option(
    "--default-queue-type",
    type=click.Choice(["classic", "quorum", "stream"]),
    help="Of queues that are declared without a type.",
)
@_of_broker
def put_vhost(
    broker: Broker, name: str, tags: tuple[str, ...] | None, as_json: bool, **given: str | None
) -> int:
    """Make a virtual host, or change its description, tags or default queue type."""
    chosen = _names({**given, "tags": list(tags) if tags is not None else None})
    done = f"virtual host {quoted(name)} set"
    return change(broker, "put vhost", done, as_json, name=name, **chosen)


@put.command("vhost-limit")
@vhost_argument
@click.argument("limit", metavar="LIMIT", type=click.Choice(VHOST_LIMITS))
@click.argument("value", metavar="N", type=click.IntRange(0))
@_of_broker
def put_vhost_limit(broker: Broker, as_json: bool, **given: object) -> int:
    """Limit a virtual host: max-connections, max-queues or max-exchanges."""
    return change(broker, "put vhost-limit", "limit set", as_json, **given)


# Policies and parameters


@put.command("policy")
@click.argument("name", metavar="NAME")
@click.argument("pattern", metavar="REGEX")
@click.option(
    "--set",
    "definition",
    metavar="KEY=VALUE",
    type=Assignment(),
    multiple=True,
    required=True,
    help="A key of the policy, such as max-length=1000; values are JSON or else text.",
)
@click.option("--apply-to", metavar="WHAT", help="queues, exchanges, all… Default: all")
@click.option("--priority", metavar="N", type=int, default=0, help="Default: 0")
@operator_option
@on_vhost
def put_policy(
    broker: Broker,
    name: str,
    pattern: str,
    definition: tuple[tuple[str, object], ...],
    apply_to: str | None,
    priority: int,
    operator: bool,
    vhost: str,
    as_json: bool,
) -> int:
    """Set a policy for the queues and exchanges whose names match."""
    noun = "operator-policy" if operator else "policy"
    return change(
        broker,
        f"put {noun}",
        f"policy {quoted(name)} set",
        as_json,
        vhost=vhost,
        name=name,
        pattern=pattern,
        definition=dict(definition),
        priority=priority,
        **_names({"apply_to": apply_to}),
    )


@put.command("parameter")
@click.argument("component", metavar="COMPONENT")
@click.argument("name", metavar="NAME")
@click.argument("value", metavar="JSON", type=JsonValue())
@on_vhost
def put_parameter(broker: Broker, as_json: bool, **given: object) -> int:
    """Set a parameter of a virtual host."""
    return change(broker, "put parameter", "parameter set", as_json, **given)


@put.command("global-parameter")
@click.argument("name", metavar="NAME")
@click.argument("value", metavar="JSON", type=JsonValue())
@_of_broker
def put_global_parameter(broker: Broker, as_json: bool, **given: object) -> int:
    """Set a parameter of the whole broker."""
    return change(broker, "put global-parameter", "parameter set", as_json, **given)


# The same, deleted; they are commands of `vouchmq delete`.


@click.command()
@user_argument
@_of_broker
def delete_user(broker: Broker, name: str, as_json: bool) -> int:
    """Delete a user, and close its connections."""
    return change(broker, "delete user", f"user {quoted(name)} deleted", as_json, name=name)


@click.command()
@user_argument
@on_vhost
def delete_permissions(broker: Broker, name: str, vhost: str, as_json: bool) -> int:
    """Delete what a user may do in a virtual host: it may not enter it any more."""
    done = f"permissions of {quoted(name)} in {quoted(vhost)} deleted"
    return change(broker, "delete permissions", done, as_json, name=name, vhost=vhost)


@click.command()
@user_argument
@click.option("--exchange", metavar="NAME", help="Only those of this exchange.")
@on_vhost
def delete_topic_permissions(
    broker: Broker, name: str, exchange: str | None, vhost: str, as_json: bool
) -> int:
    """Delete the topic permissions of a user in a virtual host: all keys are allowed again."""
    done = f"topic permissions of {quoted(name)} in {quoted(vhost)} deleted"
    given = _names({"name": name, "vhost": vhost, "exchange": exchange})
    return change(broker, "delete topic-permissions", done, as_json, **given)


@click.command()
@user_argument
@click.argument("limit", metavar="LIMIT", type=click.Choice(USER_LIMITS))
@_of_broker
def delete_user_limit(broker: Broker, as_json: bool, **given: object) -> int:
    """Delete a limit of a user."""
    return change(broker, "delete user-limit", "limit deleted", as_json, **given)


@click.command()
@vhost_argument
@_of_broker
def delete_vhost(broker: Broker, name: str, as_json: bool) -> int:
    """Delete a virtual host with everything in it, and close its connections."""
    done = f"virtual host {quoted(name)} deleted"
    return change(broker, "delete vhost", done, as_json, name=name)


@click.command()
@vhost_argument
@click.argument("limit", metavar="LIMIT", type=click.Choice(VHOST_LIMITS))
@_of_broker
def delete_vhost_limit(broker: Broker, as_json: bool, **given: object) -> int:
    """Delete a limit of a virtual host."""
    return change(broker, "delete vhost-limit", "limit deleted", as_json, **given)


@click.command()
@click.argument("name", metavar="NAME")
@operator_option
@on_vhost
def delete_policy(broker: Broker, name: str, operator: bool, vhost: str, as_json: bool) -> int:
    """Delete a policy."""
    noun = "operator-policy" if operator else "policy"
    done = f"policy {quoted(name)} deleted"
    return change(broker, f"delete {noun}", done, as_json, vhost=vhost, name=name)


@click.command()
@click.argument("component", metavar="COMPONENT")
@click.argument("name", metavar="NAME")
@on_vhost
def delete_parameter(broker: Broker, as_json: bool, **given: object) -> int:
    """Delete a parameter of a virtual host."""
    return change(broker, "delete parameter", "parameter deleted", as_json, **given)


@click.command()
@click.argument("name", metavar="NAME")
@_of_broker
def delete_global_parameter(broker: Broker, as_json: bool, **given: object) -> int:
    """Delete a parameter of the whole broker."""
    return change(broker, "delete global-parameter", "parameter deleted", as_json, **given)
