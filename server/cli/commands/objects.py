"""`vouchmq declare`, `delete`, `purge` and `close`: objects of virtual hosts, and connections."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

from vouchmq.server.cli.options import broker_options, json_option, vhost_option
from vouchmq.server.cli.program import Entry, Group
from vouchmq.server.cli.values import Assignment

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.cli.client import Broker

Assignments = tuple[tuple[str, object], ...]


def change(broker: Broker, command: str, done: str, as_json: bool, **arguments: object) -> int:
    """Have the broker do something, and print `done` or its answer; returns the exit code."""
    module = import_module("vouchmq.server.cli.running.changes")
    code: int = module.change(broker, command, arguments, done, as_json=as_json)
    return code


def quoted(name: str) -> str:
    """A name in a text with fields to be filled in."""
    return f"'{name}'".replace("{", "{{").replace("}", "}}")


def on_vhost(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of everything that is in a virtual host."""
    return vhost_option(json_option(broker_options(command)))


argument_option = click.option(
    "--argument",
    "arguments",
    metavar="NAME=VALUE",
    type=Assignment(),
    multiple=True,
    help="An argument such as x-max-length=1000; numbers, true, false, lists and objects are JSON, "
    "anything else is text.",
)
transient_option = click.option(
    "--transient", is_flag=True, help="It does not survive a restart of the broker."
)
auto_delete_option = click.option(
    "--auto-delete", is_flag=True, help="It is deleted when the last that uses it has gone."
)
if_unused_option = click.option("--if-unused", is_flag=True, help="Only if nobody uses it.")


@click.group(cls=Group)
def declare() -> None:
    """Declare a queue, an exchange or a binding, as a client does.

    It is no mistake if it is there already with the same properties.
    """


@declare.command("queue")
@click.argument("name", metavar="NAME")
@click.option("--type", "kind", metavar="TYPE", help="classic, quorum or stream.")
@transient_option
@auto_delete_option
@argument_option
@on_vhost
def declare_queue(
    broker: Broker,
    name: str,
    vhost: str,
    kind: str | None,
    transient: bool,
    auto_delete: bool,
    arguments: Assignments,
    as_json: bool,
) -> int:
    """Declare a queue, a durable one unless --transient is given."""
    table = dict(arguments)
    if kind is not None:
        table["x-queue-type"] = kind
    return change(
        broker,
        "put queue",
        f"queue {quoted(name)} declared",
        as_json,
        vhost=vhost,
        name=name,
        durable=not transient,
        auto_delete=auto_delete,
        arguments=table,
    )


@declare.command("exchange")
@click.argument("name", metavar="NAME")
@click.option(
    "--type",
    "kind",
    metavar="TYPE",
    default="direct",
    help="direct, fanout, topic… Default: direct",
)
@transient_option
@auto_delete_option
@click.option("--internal", is_flag=True, help="Only other exchanges may publish to it.")
@argument_option
@on_vhost
def declare_exchange(
    broker: Broker,
    name: str,
    vhost: str,
    kind: str,
    transient: bool,
    auto_delete: bool,
    internal: bool,
    arguments: Assignments,
    as_json: bool,
) -> int:
    """Declare an exchange, a durable one unless --transient is given."""
    return change(
        broker,
        "put exchange",
        f"exchange {quoted(name)} declared",
        as_json,
        vhost=vhost,
        name=name,
        type=kind,
        durable=not transient,
        auto_delete=auto_delete,
        internal=internal,
        arguments=dict(arguments),
    )


def _binding_options(command: Callable[..., int]) -> Callable[..., int]:
    options = (
        click.argument("source", metavar="EXCHANGE"),
        click.argument("destination", metavar="DESTINATION"),
        click.option("--routing-key", metavar="KEY", default="", help="Default: empty"),
        click.option(
            "--to-exchange", is_flag=True, help="The destination is an exchange, not a queue."
        ),
        argument_option,
        on_vhost,
    )
    for option in reversed(options):
        command = option(command)
    return command


def _binding(
    broker: Broker,
    command: str,
    done: str,
    source: str,
    destination: str,
    to_exchange: bool,
    as_json: bool,
    arguments: Assignments,
    **more: object,
) -> int:
    return change(
        broker,
        command,
        f"binding from {quoted(source)} to {quoted(destination)} {done}",
        as_json,
        source=source,
        destination=destination,
        destination_type="exchange" if to_exchange else "queue",
        arguments=dict(arguments),
        **more,
    )


@declare.command("binding")
@_binding_options
def declare_binding(broker: Broker, **given: object) -> int:
    """Bind a queue, or with --to-exchange an exchange, to an exchange."""
    return _binding(broker, "put binding", "declared", **given)  # type: ignore[arg-type]


ACCOUNTS = "vouchmq.server.cli.commands.accounts"


@click.group(
    cls=Group,
    entries={
        "user": Entry(f"{ACCOUNTS}:delete_user", "Delete a user."),
        "permissions": Entry(f"{ACCOUNTS}:delete_permissions", "Delete permissions of a user."),
        "topic-permissions": Entry(
            f"{ACCOUNTS}:delete_topic_permissions", "Delete topic permissions of a user."
        ),
        "user-limit": Entry(f"{ACCOUNTS}:delete_user_limit", "Delete a limit of a user."),
        "vhost": Entry(f"{ACCOUNTS}:delete_vhost", "Delete a virtual host."),
        "vhost-limit": Entry(f"{ACCOUNTS}:delete_vhost_limit", "Delete a limit of a virtual host."),
        "policy": Entry(f"{ACCOUNTS}:delete_policy", "Delete a policy."),
        "parameter": Entry(f"{ACCOUNTS}:delete_parameter", "Delete a parameter."),
        "global-parameter": Entry(
            f"{ACCOUNTS}:delete_global_parameter", "Delete a parameter of the broker."
        ),
    },
)
def delete() -> None:
    """Delete an object, a user, permissions, a virtual host, a policy, a limit or a parameter."""


@delete.command("queue")
@click.argument("name", metavar="NAME")
@if_unused_option
@click.option("--if-empty", is_flag=True, help="Only if it has no messages.")
@on_vhost
def delete_queue(
    broker: Broker, name: str, vhost: str, if_unused: bool, if_empty: bool, as_json: bool
) -> int:
    """Delete a queue with its messages."""
    return change(
        broker,
        "delete queue",
        f"queue {quoted(name)} deleted, with {{messages}}",
        as_json,
        vhost=vhost,
        name=name,
        if_unused=if_unused,
        if_empty=if_empty,
    )


@delete.command("exchange")
@click.argument("name", metavar="NAME")
@if_unused_option
@on_vhost
def delete_exchange(broker: Broker, name: str, vhost: str, if_unused: bool, as_json: bool) -> int:
    """Delete an exchange with its bindings."""
    done = f"exchange {quoted(name)} deleted"
    return change(
        broker, "delete exchange", done, as_json, vhost=vhost, name=name, if_unused=if_unused
    )


@delete.command("binding")
@_binding_options
def delete_binding(broker: Broker, **given: object) -> int:
    """Delete the binding with this routing key and these arguments."""
    return _binding(broker, "delete binding", "deleted", **given)  # type: ignore[arg-type]


@click.command()
@click.argument("name", metavar="QUEUE")
@on_vhost
def purge(broker: Broker, name: str, vhost: str, as_json: bool) -> int:
    """Delete the messages of a queue that are ready; those that consumers hold stay.

    Exit 0 on success, 1 with the reason if the broker refuses, 2 if no broker uses the directory.
    """
    return change(broker, "purge queue", "{messages} deleted", as_json, vhost=vhost, name=name)


@click.command()
@click.argument("name", metavar="QUEUE")
@on_vhost
def pause(broker: Broker, name: str, vhost: str, as_json: bool) -> int:
    """Have a queue deliver nothing until it is resumed; it goes on accepting messages."""
    done = f"queue {quoted(name)} paused"
    return change(broker, "pause queue", done, as_json, vhost=vhost, name=name)


@click.command()
@click.argument("name", metavar="QUEUE")
@on_vhost
def resume(broker: Broker, name: str, vhost: str, as_json: bool) -> int:
    """Have a paused queue deliver again."""
    done = f"queue {quoted(name)} resumed"
    return change(broker, "resume queue", done, as_json, vhost=vhost, name=name)


@click.group(cls=Group)
def close() -> None:
    """Close a connection or a channel."""


reason_option = click.option(
    "--reason",
    metavar="TEXT",
    default="closed by an operator",
    help="What the client is told. Default: closed by an operator",
)


@close.command("connection")
@click.argument("name", metavar="NAME")
@reason_option
@json_option
@broker_options
def close_connection(broker: Broker, name: str, reason: str, as_json: bool) -> int:
    """Close a connection by the name that `vouchmq list connections` shows."""
    done = f"connection {quoted(name)} closed"
    return change(broker, "close connection", done, as_json, name=name, reason=reason)


@close.command("channel")
@click.argument("name", metavar="CONNECTION")
@click.argument("number", metavar="NUMBER", type=click.IntRange(1, 65535))
@reason_option
@json_option
@broker_options
def close_channel(broker: Broker, name: str, number: int, reason: str, as_json: bool) -> int:
    """Close a channel of a connection by its number."""
    done = f"channel {number} of {quoted(name)} closed"
    return change(broker, "close channel", done, as_json, name=name, number=number, reason=reason)
