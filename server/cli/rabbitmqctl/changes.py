"""Commands of rabbitmqctl that change something: what is asked of the broker, and what is printed.

Must not know how the broker is asked.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from vouchmq.server.cli.client import Refused
from vouchmq.server.cli.rabbitmqctl.words import EXIT_USAGE, Mistake

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vouchmq.server.cli.client import Broker
    from vouchmq.server.cli.rabbitmqctl.output import Output
    from vouchmq.server.cli.rabbitmqctl.words import Words

EXIT_DATA: Final = 65
EXIT_NO_USER: Final = 67
EXIT_UNAVAILABLE: Final = 69
EXIT_SOFTWARE: Final = 70
NOT_FOUND: Final = 404
UNLIMITED: Final = -1
GRANT: Final = (
    "Done. Don't forget to grant the user permissions to some virtual hosts! "
    "See 'rabbitmqctl help set_permissions' to learn more."
)


def has(broker: Broker, listing: str, **selected: object) -> bool:
    """Whether there is an object."""
    return any(True for _ in broker.rows(f"list {listing}", **selected))


def require_user(broker: Broker, name: str) -> None:
    """Raises:
    Mistake: there is no user of this name
    """
    if not has(broker, "users", name=name):
        raise Mistake(f'User "{name}" does not exist', EXIT_NO_USER)


def require_vhost(broker: Broker, name: str) -> None:
    """Raises:
    Mistake: there is no virtual host of this name
    """
    if not has(broker, "vhosts", name=name):
        raise Mistake(f"Virtual host '{name}' does not exist", EXIT_DATA)


# Users


def add_user(broker: Broker, words: Words, output: Output) -> None:
    """add_user <username> <password>"""
    words.allow()
    name, password = words.take("username", "password")
    output.banner(f'Adding user "{name}" ...')
    if has(broker, "users", name=name):
        raise Mistake(f'User "{name}" already exists', EXIT_SOFTWARE)
    broker.ask("put user", name=name, password=password)
    output.banner(GRANT)


def change_password(broker: Broker, words: Words, output: Output) -> None:
    """change_password <username> <password>"""
    words.allow()
    name, password = words.take("username", "password")
    output.banner(f'Changing password for user "{name}" ...')
    require_user(broker, name)
    broker.ask("put user", name=name, password=password)


def clear_password(broker: Broker, words: Words, output: Output) -> None:
    """clear_password <username>"""
    words.allow()
    (name,) = words.take("username")
    output.banner(f'Clearing password for user "{name}" ...')
    require_user(broker, name)
    broker.ask("put user", name=name, password_hash="")


def set_user_tags(broker: Broker, words: Words, output: Output) -> None:
    """set_user_tags <username> <tag> …"""
    words.allow()
    if not words.arguments:
        raise Mistake("set_user_tags takes <username> and tags")
    name, *tags = words.arguments
    output.banner(f'Setting tags for user "{name}" to [{", ".join(tags)}] ...')
    require_user(broker, name)
    broker.ask("put user", name=name, tags=tags)


def delete_user(broker: Broker, words: Words, output: Output) -> None:
    """delete_user <username>"""
    words.allow()
    (name,) = words.take("username")
    output.banner(f'Deleting user "{name}" ...')
    require_user(broker, name)
    broker.ask("delete user", name=name)


def authenticate_user(broker: Broker, words: Words, output: Output) -> None:
    """authenticate_user <username> <password>"""
    words.allow()
    name, password = words.take("username", "password")
    output.banner(f'Authenticating user "{name}" ...')
    try:
        broker.ask("authenticate", user=name, password=password)
    except Refused:
        text = f'failed to authenticate user "{name}"'
        raise Mistake(text, EXIT_DATA) from None
    output.line("Success")


# Virtual hosts and permissions


def add_vhost(broker: Broker, words: Words, output: Output) -> None:
    """add_vhost <vhost> [--description <text>] [--tags <tags>] [--default-queue-type <type>]"""
    words.allow("description", "tags", "default_queue_type")
    (name,) = words.take("vhost")
    output.banner(f'Adding vhost "{name}" ...')
    given: dict[str, object] = {
        key: words.values[key]
        for key in ("description", "default_queue_type")
        if key in words.values
    }
    if "tags" in words.values:
        given["tags"] = [each.strip() for each in words.values["tags"].split(",") if each.strip()]
    broker.ask("put vhost", name=name, **given)


def delete_vhost(broker: Broker, words: Words, output: Output) -> None:
    """delete_vhost <vhost>"""
    words.allow()
    (name,) = words.take("vhost")
    output.banner(f'Deleting vhost "{name}" ...')
    require_vhost(broker, name)
    broker.ask("delete vhost", name=name)


def set_permissions(broker: Broker, words: Words, output: Output) -> None:
    """set_permissions [-p <vhost>] <username> <conf> <write> <read>"""
    words.allow("vhost")
    name, configure, write, read = words.take("username", "conf", "write", "read")
    output.banner(f'Setting permissions for user "{name}" in vhost "{words.vhost}" ...')
    require_user(broker, name)
    require_vhost(broker, words.vhost)
    broker.ask(
        "put permissions",
        name=name,
        vhost=words.vhost,
        configure=configure,
        write=write,
        read=read,
    )


def clear_permissions(broker: Broker, words: Words, output: Output) -> None:
    """clear_permissions [-p <vhost>] <username>"""
    words.allow("vhost")
    (name,) = words.take("username")
    output.banner(f'Clearing permissions for user "{name}" in vhost "{words.vhost}" ...')
    require_user(broker, name)
    require_vhost(broker, words.vhost)
    # It is no mistake if there are none.
    _unless_missing(broker, "delete permissions", name=name, vhost=words.vhost)


def set_topic_permissions(broker: Broker, words: Words, output: Output) -> None:
    """set_topic_permissions [-p <vhost>] <username> <exchange> <write> <read>"""
    words.allow("vhost")
    name, exchange, write, read = words.take("username", "exchange", "write", "read")
    output.banner(
        f'Setting topic permissions on "{exchange}" for user "{name}" in vhost "{words.vhost}" ...'
    )
    require_user(broker, name)
    require_vhost(broker, words.vhost)
    broker.ask(
        "put topic-permissions",
        name=name,
        vhost=words.vhost,
        exchange=exchange,
        write=write,
        read=read,
    )


def clear_topic_permissions(broker: Broker, words: Words, output: Output) -> None:
    """clear_topic_permissions [-p <vhost>] <username> [<exchange>]"""
    words.allow("vhost")
    if len(words.arguments) not in {1, 2}:
        raise Mistake("clear_topic_permissions takes <username> [<exchange>]")
    name, *exchanges = words.arguments
    where = f'on "{exchanges[0]}" ' if exchanges else ""
    output.banner(
        f'Clearing topic permissions {where}for user "{name}" in vhost "{words.vhost}" ...'
    )
    require_user(broker, name)
    require_vhost(broker, words.vhost)
    exchange = exchanges[0] if exchanges else None
    _unless_missing(
        broker, "delete topic-permissions", name=name, vhost=words.vhost, exchange=exchange
    )


def _unless_missing(broker: Broker, command: str, **arguments: object) -> None:
    try:
        broker.ask(command, **arguments)
    except Refused as error:
        if error.code != NOT_FOUND:
            raise


# Policies and limits


def set_policy(broker: Broker, words: Words, output: Output) -> None:
    """set_policy [-p <vhost>] [--priority <n>] [--apply-to <what>] <name> <pattern> <definition>"""
    _set_policy("policy", "policy", broker, words, output)


def set_operator_policy(broker: Broker, words: Words, output: Output) -> None:
    """set_operator_policy, with what set_policy takes"""
    _set_policy("operator-policy", "operator policy override", broker, words, output)


def _set_policy(noun: str, shown: str, broker: Broker, words: Words, output: Output) -> None:
    words.allow("vhost", "priority", "apply_to")
    name, pattern, text = words.take("name", "pattern", "definition")
    priority = words.values.get("priority", "0")
    output.banner(
        f'Setting {shown} "{name}" for pattern "{pattern}" to "{text}" with priority "{priority}" '
        f'for vhost "{words.vhost}" ...'
    )
    try:
        number = int(priority)
    except ValueError:
        raise Mistake(f"--priority: expected a number, not {priority!r}") from None
    arguments: dict[str, object] = {
        "vhost": words.vhost,
        "name": name,
        "pattern": pattern,
        "priority": number,
        "definition": json_of(text),
    }
    if "apply_to" in words.values:
        arguments["apply_to"] = words.values["apply_to"]
    broker.ask(f"put {noun}", **arguments)


def json_of(text: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        Mistake: it is none
    """
    try:
        found = json.loads(text)
    except ValueError:
        raise Mistake(f"JSON decoding error in {text!r}", EXIT_UNAVAILABLE) from None
    if not isinstance(found, dict):
        raise Mistake(f"expected a JSON object, not {text!r}", EXIT_UNAVAILABLE)
    return found


def clear_policy(broker: Broker, words: Words, output: Output) -> None:
    """clear_policy [-p <vhost>] <name>"""
    _clear_policy("policy", "policy", broker, words, output)


def clear_operator_policy(broker: Broker, words: Words, output: Output) -> None:
    """clear_operator_policy [-p <vhost>] <name>"""
    _clear_policy("operator-policy", "operator policy", broker, words, output)


def _clear_policy(noun: str, shown: str, broker: Broker, words: Words, output: Output) -> None:
    words.allow("vhost")
    (name,) = words.take("name")
    output.banner(f'Clearing {shown} "{name}" on vhost "{words.vhost}" ...')
    try:
        broker.ask(f"delete {noun}", vhost=words.vhost, name=name)
    except Refused as error:
        if error.code == NOT_FOUND:
            raise Mistake("Parameter does not exist", EXIT_UNAVAILABLE) from None
        raise


def set_vhost_limits(broker: Broker, words: Words, output: Output) -> None:
    """set_vhost_limits [-p <vhost>] <definition>"""
    words.allow("vhost")
    (text,) = words.take("definition")
    output.banner(f'Setting vhost limits to "{text}" for vhost "{words.vhost}" ...')
    require_vhost(broker, words.vhost)
    _set_limits(broker, "vhost", words.vhost, json_of(text))


def set_user_limits(broker: Broker, words: Words, output: Output) -> None:
    """set_user_limits <username> <definition>"""
    words.allow()
    name, text = words.take("username", "definition")
    output.banner(f'Setting user limits to "{text}" for user "{name}" ...')
    require_user(broker, name)
    _set_limits(broker, "user", name, json_of(text))


def _set_limits(broker: Broker, noun: str, name: str, limits: Mapping[str, Any]) -> None:
    for limit, value in limits.items():
        if value is None or value == UNLIMITED:
            broker.ask(f"delete {noun}-limit", name=name, limit=limit)
        else:
            broker.ask(f"put {noun}-limit", name=name, limit=limit, value=value)


# Queues and connections


def purge_queue(broker: Broker, words: Words, output: Output) -> None:
    """purge_queue [-p <vhost>] <queue>"""
    words.allow("vhost")
    (name,) = words.take("queue")
    output.banner(f"Purging queue '{name}' in vhost '{words.vhost}' ...")
    if not has(broker, "queues", vhost=words.vhost, name=name):
        raise Mistake("not_found", EXIT_UNAVAILABLE)
    broker.ask("purge queue", vhost=words.vhost, name=name)


def delete_queue(broker: Broker, words: Words, output: Output) -> None:
    """delete_queue [-p <vhost>] <queue> [--if-empty] [--if-unused]"""
    words.allow("vhost", "if_empty", "if_unused")
    (name,) = words.take("queue")
    conditions = [each for each in ("if_empty", "if_unused") if each in words.switches]
    shown = " and ".join(f"if queue is {each.removeprefix('if_')}" for each in conditions)
    output.banner(
        f"Deleting queue '{name}' on vhost '{words.vhost}' {f'{shown} ' * bool(shown)}..."
    )
    if not has(broker, "queues", vhost=words.vhost, name=name):
        raise Mistake("Queue not found", EXIT_USAGE)
    answer = broker.ask(
        "delete queue", vhost=words.vhost, name=name, **dict.fromkeys(conditions, True)
    )
    count = answer["messages"]
    output.banner(f"Queue was successfully deleted with {count} ready messages")


def close_connection(broker: Broker, words: Words, output: Output) -> None:
    """close_connection <connection> <reason>, where the connection is the `pid` or `name` of it"""
    words.allow()
    name, reason = words.take("connection", "reason")
    output.banner(f"Closing connection {name}, reason: {reason}...")
    try:
        broker.ask("close connection", name=name, reason=reason)
    except Refused as error:
        # As for a process that has gone.
        if error.code != NOT_FOUND:
            raise


def close_all_connections(broker: Broker, words: Words, output: Output) -> None:
    """close_all_connections [-p <vhost>] <reason>"""
    words.allow("vhost")
    (reason,) = words.take("reason")
    output.banner(f"Closing all connections in vhost {words.vhost}, reason: {reason}...")
    names = [row["name"] for row in broker.rows("list connections", vhost=words.vhost)]
    for name in names:
        _unless_missing(broker, "close connection", name=name, reason=reason)
    output.banner(f"Closed {len(names)} connections")
