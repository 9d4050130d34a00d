"""All routes of the HTTP API.

Spec: HTTP-10 … HTTP-32
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.management.api.call import MONITORS, Route
from vouchmq.management.resources import (
    account,
    connections,
    events,
    exchanges,
    health,
    ledger,
    messages,
    overview,
    queues,
    vhosts,
)

if TYPE_CHECKING:
    from vouchmq.management.api.call import Handler


def _list(path: str, get: Handler, summary: str) -> Route:
    return Route(path, {"GET": get}, summary, is_list=True)


def _one(path: str, get: Handler, summary: str) -> Route:
    return Route(path, {"GET": get}, summary)


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
    Route("/nodes", {"GET": overview.nodes}, "the node", MONITORS, is_list=True),
    Route("/nodes/{node}", {"GET": overview.node}, "the node by its name", MONITORS),
)
CLIENTS: Final = (
    _list("/connections", connections.connections, "connections"),
    _one("/connections/{connection}", connections.connection, "a connection"),
    _list("/connections/username/{user}", connections.connections, "connections of a user"),
    _list("/connections/{connection}/channels", connections.channels, "its channels"),
    _list("/vhosts/{vhost}/connections", connections.connections, "connections to a virtual host"),
    _list("/channels", connections.channels, "channels"),
    _one("/channels/{channel}", connections.channel, "a channel"),
    _list("/vhosts/{vhost}/channels", connections.channels, "channels in a virtual host"),
    _list("/consumers", connections.consumers, "consumers"),
    _list("/consumers/{vhost}", connections.consumers, "consumers in a virtual host"),
)
OBJECTS: Final = (
    _list("/exchanges", exchanges.exchanges, "exchanges"),
    _list("/exchanges/{vhost}", exchanges.exchanges, "exchanges of a virtual host"),
    _one("/exchanges/{vhost}/{exchange}", exchanges.exchange, "an exchange"),
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
    _one("/queues/{vhost}/{queue}", queues.queue, "a queue"),
    Route(
        "/queues/{vhost}/{queue}/messages",
        {"GET": messages.messages},
        "messages of a queue, without consuming them",
        parameters=messages.PARAMETERS,
    ),
    _list("/queues/{vhost}/{queue}/bindings", exchanges.of_queue, "bindings of a queue"),
    _list("/bindings", exchanges.bindings, "bindings"),
    _list("/bindings/{vhost}", exchanges.bindings, "bindings of a virtual host"),
    _list(f"{BINDINGS}/q/{{queue}}", exchanges.between, "bindings of a queue to an exchange"),
    _one(f"{BINDINGS}/q/{{queue}}/{{properties_key}}", exchanges.binding, "one of them"),
    _list(f"{BINDINGS}/e/{{destination}}", exchanges.between, "bindings between exchanges"),
    _one(f"{BINDINGS}/e/{{destination}}/{{properties_key}}", exchanges.binding, "one of them"),
    _list("/vhosts", vhosts.vhosts, "virtual hosts"),
    _one("/vhosts/{name}", vhosts.vhost, "a virtual host"),
)
EVENTS: Final = (
    _one("/events", events.events, "what happens, as server-sent events"),
    _one("/events/{vhost}", events.events, "what happens in a virtual host, as server-sent events"),
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
    _one("/healthchecks/node", health.alarms, "no alarm is raised"),
)
LEDGER: Final = (
    Route(
        "/ledger",
        {"GET": ledger.status, "PUT": ledger.switch},
        "the ledger of messages; only administrators switch it",
        MONITORS,
        bodies={"PUT": ledger.Switch},
    ),
)
ROUTES: Final[tuple[Route, ...]] = (*GENERAL, *CLIENTS, *OBJECTS, *EVENTS, *HEALTH, *LEDGER)
