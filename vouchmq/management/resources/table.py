"""All routes of the HTTP API.

Spec: HTTP-10 … HTTP-32
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.management.api import commands
from vouchmq.management.api.call import ADMINISTRATORS, ANY_TAG, MONITORS, POLICYMAKERS, Route
from vouchmq.management.resources import (
    account,
    accounts,
    connections,
    definitions,
    events,
    exchanges,
    health,
    ledger,
    messages,
    overview,
    policies,
    queues,
    topology,
    vhosts,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vouchmq.management.api.call import Handler


def _list(path: str, get: Handler, summary: str, tags: frozenset[str] = ANY_TAG) -> Route:
    return Route(path, {"GET": get}, summary, tags, is_list=True)


def _one(path: str, get: Handler, summary: str, tags: frozenset[str] = ANY_TAG) -> Route:
    return Route(path, {"GET": get}, summary, tags)


def _limits(
    path: str, names: str, listing: frozenset[str], get: Handler, put: Handler, delete: Handler
) -> list[Route]:
    """The routes of limits of one kind of owner, all of which need one of the tags `listing`."""
    tags = ADMINISTRATORS
    return [
        _list(path, get, "limits", listing),
        _list(f"{path}/{names}", get, "limits of one"),
        Route(
            f"{path}/{names}/{{name}}",
            {"PUT": put, "DELETE": delete},
            "a limit",
            tags,
            bodies={"PUT": accounts.LimitBody},
        ),
    ]


def _policies(path: str, handlers: Sequence[Handler], changing: frozenset[str]) -> list[Route]:
    """The routes of policies of one kind."""
    every, one, put, delete = handlers
    return [
        _list(path, every, "policies"),
        _list(f"{path}/{{vhost}}", every, "policies of a virtual host"),
        Route(
            f"{path}/{{vhost}}/{{policy}}",
            {"GET": one, "PUT": put, "DELETE": delete},
            "a policy",
            bodies={"PUT": policies.PolicyBody},
            changing=changing,
        ),
    ]


QUEUE: Final = "/queues/{vhost}/{queue}"
BINDINGS: Final = "/bindings/{vhost}/e/{exchange}"
CHECKS: Final = "/health/checks"

GENERAL: Final = (
    _one("/overview", overview.overview, "totals of the broker"),
    _one("/whoami", account.whoami, "the user who asks"),
    _one("/auth", account.auth_settings, "how to log in"),
    _one("/extensions", account.extensions, "extensions of the page"),
    _one("/cluster-name", overview.cluster_name, "the name of the broker"),
    _list("/feature-flags", overview.feature_flags, "features that clients may ask for"),
    _list("/deprecated-features", overview.deprecated_features, "features that are to go"),
    _list("/deprecated-features/used", overview.deprecated_features, "those in use"),
    _list("/nodes", overview.nodes, "the node", MONITORS),
    _one("/nodes/{node}", overview.node, "the node by its name", MONITORS),
)
CLIENTS: Final = (
    _list("/connections", connections.connections, "connections"),
    Route(
        "/connections/{connection}",
        {"GET": connections.connection, "DELETE": connections.close_connection},
        "a connection",
    ),
    Route(
        "/connections/username/{user}",
        {"GET": connections.connections, "DELETE": connections.close_connections_of_user},
        "connections of a user",
        is_list=True,
    ),
    _list("/connections/{connection}/channels", connections.channels, "its channels"),
    _list("/vhosts/{vhost}/connections", connections.connections, "connections to a virtual host"),
    _list("/channels", connections.channels, "channels"),
    Route(
        "/channels/{channel}",
        {"GET": connections.channel, "DELETE": connections.close_channel},
        "a channel",
    ),
    Route(
        "/channels/{channel}/consumers/{consumer}/prefetch",
        {"PUT": connections.put_prefetch},
        "the prefetch limit of a consumer",
        bodies={"PUT": connections.PrefetchBody},
    ),
    _list("/vhosts/{vhost}/channels", connections.channels, "channels in a virtual host"),
    _list("/consumers", connections.consumers, "consumers"),
    _list("/consumers/{vhost}", connections.consumers, "consumers in a virtual host"),
)
OBJECTS: Final = (
    _list("/exchanges", exchanges.exchanges, "exchanges"),
    _list("/exchanges/{vhost}", exchanges.exchanges, "exchanges of a virtual host"),
    Route(
        "/exchanges/{vhost}/{exchange}",
        {
            "GET": exchanges.exchange,
            "PUT": topology.put_exchange,
            "DELETE": topology.delete_exchange,
        },
        "an exchange",
        bodies={"PUT": topology.ExchangeBody},
    ),
    Route(
        "/exchanges/{vhost}/{exchange}/publish",
        {"POST": topology.publish},
        "publish a message",
        bodies={"POST": topology.PublishBody},
    ),
    _list(
        "/exchanges/{vhost}/{exchange}/bindings/source",
        exchanges.of_source,
        "bindings from an exchange",
    ),
    _list(
        "/exchanges/{vhost}/{exchange}/bindings/destination",
        exchanges.of_destination,
        "bindings to an exchange",
    ),
    _list("/queues", queues.queues, "queues"),
    _list("/queues/{vhost}", queues.queues, "queues of a virtual host"),
    Route(
        QUEUE,
        {"GET": queues.queue, "PUT": topology.put_queue, "DELETE": topology.delete_queue},
        "a queue",
        bodies={"PUT": topology.QueueBody},
    ),
    Route(f"{QUEUE}/contents", {"DELETE": topology.purge_queue}, "its ready messages"),
    Route(f"{QUEUE}/pause", {"PUT": topology.pause_queue}, "have nobody get its messages"),
    Route(f"{QUEUE}/resume", {"PUT": topology.resume_queue}, "have it go on"),
    Route(
        f"{QUEUE}/get",
        {"POST": topology.get_messages},
        "get messages",
        bodies={"POST": topology.GetBody},
    ),
    Route(
        f"{QUEUE}/messages",
        {"GET": messages.messages},
        "messages of a queue, without consuming them",
        parameters=messages.PARAMETERS,
    ),
    Route(
        f"{QUEUE}/move",
        {"POST": messages.move},
        "move or copy messages to a queue or an exchange",
        bodies={"POST": messages.MoveBody},
    ),
    Route(
        f"{QUEUE}/return-dead-letters",
        {"POST": messages.return_dead_letters},
        "move dead letters back to where they died",
        bodies={"POST": messages.ReturnBody},
    ),
    _list(f"{QUEUE}/bindings", exchanges.of_queue, "bindings of a queue"),
    _list("/bindings", exchanges.bindings, "bindings"),
    _list("/bindings/{vhost}", exchanges.bindings, "bindings of a virtual host"),
    *(
        route
        for path in (f"{BINDINGS}/q/{{queue}}", f"{BINDINGS}/e/{{destination}}")
        for route in (
            Route(
                path,
                {"GET": exchanges.between, "POST": topology.post_binding},
                "bindings to an exchange",
                is_list=True,
                bodies={"POST": topology.BindingBody},
            ),
            Route(
                f"{path}/{{properties_key}}",
                {"GET": exchanges.binding, "DELETE": topology.delete_binding},
                "one of them",
            ),
        )
    ),
    _list("/vhosts", vhosts.vhosts, "virtual hosts"),
    Route(
        "/vhosts/{name}",
        {"GET": vhosts.vhost, "PUT": vhosts.put_vhost, "DELETE": vhosts.delete_vhost},
        "a virtual host",
        bodies={"PUT": vhosts.VHostBody},
        changing=ADMINISTRATORS,
    ),
)
USER: Final = "/users/{user}"
PERMISSION: Final = "/permissions/{vhost}/{user}"
TOPICS: Final = "/topic-permissions"
ACCOUNTS: Final = (
    _list("/users", accounts.users, "users", ADMINISTRATORS),
    _list(
        "/users/without-permissions",
        accounts.users_without_permissions,
        "users who may not enter any virtual host",
        ADMINISTRATORS,
    ),
    Route(
        "/users/bulk-delete",
        {"POST": accounts.delete_users},
        "delete users",
        ADMINISTRATORS,
        bodies={"POST": accounts.UsersBody},
    ),
    Route(
        USER,
        {"GET": accounts.user, "PUT": accounts.put_user, "DELETE": accounts.delete_user},
        "a user",
        ADMINISTRATORS,
        bodies={"PUT": accounts.UserBody},
    ),
    _list(f"{USER}/permissions", accounts.permissions, "their permissions", ADMINISTRATORS),
    _list(f"{USER}/topic-permissions", accounts.topic_permissions, "their topics", ADMINISTRATORS),
    _list("/permissions", accounts.permissions, "permissions", ADMINISTRATORS),
    Route(
        PERMISSION,
        {
            "GET": accounts.permission,
            "PUT": accounts.put_permissions,
            "DELETE": accounts.delete_permissions,
        },
        "permissions of a user",
        ADMINISTRATORS,
        bodies={"PUT": accounts.PermissionsBody},
    ),
    _list(TOPICS, accounts.topic_permissions, "topic permissions", ADMINISTRATORS),
    Route(
        f"{TOPICS}/{{vhost}}/{{user}}",
        {
            "GET": accounts.topic_permission,
            "PUT": accounts.put_topic_permissions,
            "DELETE": accounts.delete_topic_permissions,
        },
        "topic permissions of a user",
        ADMINISTRATORS,
        bodies={"PUT": accounts.TopicPermissionsBody},
    ),
    Route(
        "/vhosts/{name}/deletion/protection",
        {"POST": vhosts.protect_vhost, "DELETE": vhosts.unprotect_vhost},
        "whether it may be deleted",
        ADMINISTRATORS,
    ),
    _list(
        "/vhosts/{vhost}/permissions",
        accounts.permissions,
        "permissions in a virtual host",
        ADMINISTRATORS,
    ),
    _list(
        "/vhosts/{vhost}/topic-permissions",
        accounts.topic_permissions,
        "topic permissions in a virtual host",
        ADMINISTRATORS,
    ),
    *_limits(
        "/user-limits",
        "{user}",
        ADMINISTRATORS,
        accounts.user_limits,
        accounts.put_user_limit,
        accounts.delete_user_limit,
    ),
    *_limits(
        "/vhost-limits",
        "{vhost}",
        ANY_TAG,
        accounts.vhost_limits,
        accounts.put_vhost_limit,
        accounts.delete_vhost_limit,
    ),
    Route(
        "/auth/attempts/{node}",
        {"GET": account.login_attempts, "DELETE": account.reset_login_attempts},
        "logins so far, by protocol",
        MONITORS,
        is_list=True,
        changing=ADMINISTRATORS,
    ),
    Route(
        "/auth/attempts/{node}/source",
        {"GET": account.login_sources, "DELETE": account.reset_login_attempts},
        "logins by address, which are not counted",
        MONITORS,
        is_list=True,
        changing=ADMINISTRATORS,
    ),
    _one("/auth/hash_password/{password}", accounts.hash_password, "a hash for definitions"),
)
POLICIES: Final = (
    *_policies("/policies", policies.OF_USERS, POLICYMAKERS),
    *_policies("/operator-policies", policies.OF_OPERATORS, ADMINISTRATORS),
    _list("/parameters", policies.parameters, "parameters", POLICYMAKERS),
    _list("/parameters/{component}", policies.parameters, "of a component", POLICYMAKERS),
    _list("/parameters/{component}/{vhost}", policies.parameters, "in a vhost", POLICYMAKERS),
    Route(
        "/parameters/{component}/{vhost}/{name}",
        {
            "GET": policies.parameter,
            "PUT": policies.put_parameter,
            "DELETE": policies.delete_parameter,
        },
        "a parameter",
        POLICYMAKERS,
        bodies={"PUT": policies.ParameterBody},
    ),
    _list("/global-parameters", policies.global_parameters, "global parameters", POLICYMAKERS),
    Route(
        "/global-parameters/{name}",
        {
            "GET": policies.global_parameter,
            "PUT": policies.put_global_parameter,
            "DELETE": policies.delete_global_parameter,
        },
        "a global parameter",
        POLICYMAKERS,
        bodies={"PUT": policies.ParameterBody},
        changing=ADMINISTRATORS,
    ),
    *(
        Route(
            path,
            {
                "GET": definitions.export_definitions,
                "POST": definitions.import_definitions,
            },
            "everything that is declared",
            ADMINISTRATORS,
        )
        for path in ("/definitions", "/definitions/{vhost}")
    ),
)
EVENTS: Final = (
    _one("/events", events.events, "what happens, as server-sent events"),
    _one("/events/{vhost}", events.events, "what happens in a virtual host, as server-sent events"),
)
COMMANDS: Final = (
    Route("/commands", {"POST": commands.run}, "what the command line asks with `--url`"),
)
HEALTH: Final = (
    _one(f"{CHECKS}/alarms", health.alarms, "no alarm is raised"),
    _one(f"{CHECKS}/local-alarms", health.alarms, "no alarm is raised"),
    _one(f"{CHECKS}/virtual-hosts", health.virtual_hosts, "all virtual hosts are up"),
    _one(f"{CHECKS}/port-listener/{{port}}", health.port_listener, "the broker listens there"),
    _one(
        f"{CHECKS}/protocol-listener/{{protocol}}",
        health.protocol_listener,
        "the broker speaks the protocol",
    ),
    _one(f"{CHECKS}/node-is-quorum-critical", health.single_node, "this node can be stopped"),
    _one(f"{CHECKS}/node-is-mirror-sync-critical", health.single_node, "this node can be stopped"),
    _one(f"{CHECKS}/ready-to-serve-clients", health.answering, "the broker answers"),
    _one(f"{CHECKS}/is-in-service", health.answering, "the broker answers"),
    _one("/aliveness-test/{vhost}", topology.aliveness, "a message comes and goes"),
    _one("/healthchecks/node", health.alarms, "no alarm is raised"),
    _one("/healthchecks/node/{node}", health.node_alarms, "no alarm is raised"),
    _one(
        f"{CHECKS}/certificate-expiration/{{count}}/{{unit}}",
        health.certificate_expiration,
        "the certificates that clients are shown are valid for so long",
    ),
)
LEDGER: Final = (
    Route(
        "/ledger",
        {"GET": ledger.status, "PUT": ledger.switch},
        "the ledger of messages; only administrators switch it",
        MONITORS,
        bodies={"PUT": ledger.Switch},
        changing=ADMINISTRATORS,
    ),
    Route(
        "/ledger/audit",
        {"PUT": ledger.put_audit},
        "what an audit has found, which `/ledger` shows",
        ADMINISTRATORS,
        bodies={"PUT": ledger.AuditBody},
    ),
)
ROUTES: Final[tuple[Route, ...]] = (
    *GENERAL,
    *CLIENTS,
    *OBJECTS,
    *ACCOUNTS,
    *POLICIES,
    *EVENTS,
    *COMMANDS,
    *HEALTH,
    *LEDGER,
)
