"""Definitions in the form in which RabbitMQ 4.3.6 exports them: all that it has and we have not."""

from __future__ import annotations

from typing import Any


def exchange(vhost: str, name: str, kind: str, **arguments: object) -> dict[str, object]:
    """An entry of `exchanges`."""
    flags = {"durable": True, "auto_delete": False}
    return {"vhost": vhost, "name": name, "type": kind, "arguments": arguments, **flags}


def queue(vhost: str, name: str, kind: str, **arguments: object) -> dict[str, object]:
    """An entry of `queues`, which says its type in two places."""
    flags = {"durable": True, "auto_delete": False}
    return {
        "vhost": vhost,
        "name": name,
        "type": kind,
        "arguments": {"x-queue-type": kind, **arguments},
        **flags,
    }


def binding(vhost: str, source: str, kind: str, destination: str, key: str) -> dict[str, object]:
    """An entry of `bindings`."""
    ends = {"source": source, "destination_type": kind, "destination": destination}
    return {"vhost": vhost, "routing_key": key, "arguments": {}, **ends}


def vhost(name: str, queue_type: str, description: str = "") -> dict[str, object]:
    """An entry of `vhosts`."""
    metadata = {"description": description, "tags": [], "default_queue_type": queue_type}
    return {"name": name, "metadata": metadata, "limits": {}}


FRESH: dict[str, Any] = {
    "rabbit_version": "4.3.6",
    "rabbitmq_version": "4.3.6",
    "product_name": "RabbitMQ",
    "product_version": "4.3.6",
    "rabbitmq_definition_format": "cluster",
    "original_cluster_name": "rabbit@example",
    "explanation": "Definitions of cluster 'rabbit@example'",
    "users": [
        {
            "name": "web",
            "password_hash": "",
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": ["monitoring"],
            "limits": {"max-channels": 50},
        }
    ],
    "vhosts": [vhost("/", "classic", "Default virtual host")],
    "permissions": [
        {"user": "web", "vhost": "/", "configure": "", "write": "^orders$", "read": ".*"}
    ],
    "topic_permissions": [],
    "parameters": [],
    "global_parameters": [{"name": "cluster_tags", "value": []}],
    "policies": [],
    "exchanges": [exchange("/", "amq.rabbitmq.log", "topic")],
    "queues": [],
    "bindings": [],
}
FULL: dict[str, Any] = FRESH | {
    "vhosts": [*FRESH["vhosts"], vhost("shop", "quorum", "the shop"), vhost("logs", "stream")],
    "global_parameters": [
        {"name": "cluster_tags", "value": []},
        {"name": "cluster_name", "value": "example"},
        {"name": "kept", "value": {"n": [1, 2.5, None]}},
    ],
    "parameters": [
        {
            "vhost": "shop",
            "component": "operator_policy",
            "name": "ceiling",
            "value": {
                "pattern": "",
                "apply-to": "quorum_queues",
                "definition": {"max-length": 1_000_000, "delayed-retry-max": 5_000},
                "priority": 0,
            },
        },
        {
            "vhost": "shop",
            "component": "vhost-limits",
            "name": "limits",
            "value": {"max-connections": -1, "max-queues": 100},
        },
        {
            "vhost": "shop",
            "component": "shovel",
            "name": "away",
            "value": {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://peer.example"},
        },
        {
            "vhost": "shop",
            "component": "federation-upstream",
            "name": "up",
            "value": {"uri": "amqp://peer.example"},
        },
    ],
    "policies": [
        {
            "vhost": "shop",
            "name": "federated",
            "pattern": "^fed",
            "apply-to": "all",
            "definition": {"federation-upstream-set": "all"},
            "priority": 0,
        },
        {
            "vhost": "shop",
            "name": "shards",
            "pattern": "^hash",
            "apply-to": "exchanges",
            "definition": {"shards-per-node": 2, "routing-key": "1"},
            "priority": 0,
        },
    ],
    "exchanges": [
        *FRESH["exchanges"],
        exchange("shop", "orders", "topic", **{"alternate-exchange": "rest"}),
        exchange("shop", "near", "x-local-random"),
        exchange("shop", "hash", "x-modulus-hash"),
        exchange("shop", "ring", "x-consistent-hash"),
        exchange("shop", "last", "x-recent-history", **{"x-recent-history-length": 5}),
    ],
    "queues": [
        queue(
            "shop", "paid", "quorum", **{"x-delivery-limit": 10, "x-single-active-consumer": True}
        ),
        queue("shop", "plain", "classic", **{"x-max-priority": 5, "x-queue-version": 2}),
        queue("logs", "all", "stream", **{"x-max-age": "1D", "x-initial-cluster-size": 1}),
    ],
    "bindings": [
        binding("shop", "orders", "queue", "paid", "paid.#"),
        binding("shop", "orders", "exchange", "near", ""),
        binding("shop", "hash", "queue", "plain", "1"),
        binding("shop", "ring", "queue", "plain", "1"),
        binding("shop", "internal", "queue", "plain", ""),
        binding("/", "amq.rabbitmq.log", "exchange", "amq.fanout", "error"),
    ],
}
# What must be told of FULL, wherever it is imported from.
SKIPPED_OF_FULL = [
    "exchanges[0] 'amq.rabbitmq.log'",
    "exchanges[2] 'near' of type 'x-local-random'",
    "exchanges[3] 'hash' of type 'x-modulus-hash'",
    "exchanges[5] 'last' of type 'x-recent-history'",
    "parameters[2] of component 'shovel'",
    "parameters[3] of component 'federation-upstream'",
    "policies[1].definition.routing-key",
    "policies[1].definition.shards-per-node",
    "bindings[1] of exchange 'near'",
    "bindings[2] of exchange 'hash'",
    "bindings[4] of exchange 'internal'",
    "bindings[5] of exchange 'amq.rabbitmq.log'",
]
