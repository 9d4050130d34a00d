"""Exchanges and bindings.

A binding is named by its properties key: the routing key, and a hash of its arguments if there are
any. The bindings of queues to the default exchange are in no listing of the broker; they are made
from its queues here.

Spec: HTTP-16, HTTP-17, HTTP-20, HTTP-21, HTTP-22
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus, unquote, unquote_plus

from msgspec import json

from vouchmq.management.api.errors import not_found
from vouchmq.management.api.listed import in_vhosts, only
from vouchmq.management.api.paging import Page, projected
from vouchmq.management.api.stats import EXCHANGE, message_stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vouchmq.management.api.call import Call
    from vouchmq.management.broker import Row

EXCHANGES: Final = "exchange-details"
DEFAULT: Final = "amq.default"
NO_KEY: Final = "~"
HASH_BYTES: Final = 4
# Characters that a routing key may have in a properties key as they are.
PLAIN: Final = "-_."


async def exchanges(call: Call) -> object:
    """All exchanges, or those of a virtual host."""
    page = Page(call.query)
    rows = await in_vhosts(call, EXCHANGES, "name")
    return page.of(rows, lambda shown: [_exchange(row) for row in shown])


async def exchange(call: Call) -> object:
    """One exchange."""
    row = await only(call, EXCHANGES, exchange_name(call.names["exchange"]))
    return projected({**_exchange(row), "incoming": [], "outgoing": []}, call.query)


async def bindings(call: Call) -> object:
    """All bindings, or those of a virtual host."""
    page = Page(call.query)
    rows = await in_vhosts(call, "bindings", "source", "destination", "routing_key")
    queues = await in_vhosts(call, "queues", "name")
    return page.of([*map(_default_binding, queues), *map(binding_item, rows)])


async def of_source(call: Call) -> object:
    """The bindings from an exchange."""
    row = await only(call, "exchanges", exchange_name(call.names["exchange"]))
    return await _found(call, lambda each: bool(each["source"] == row["name"]))


async def of_destination(call: Call) -> object:
    """The bindings to an exchange."""
    row = await only(call, "exchanges", exchange_name(call.names["exchange"]))
    wanted = ("exchange", row["name"])
    return await _found(
        call, lambda each: (each["destination_type"], each["destination"]) == wanted
    )


async def of_queue(call: Call) -> object:
    """The bindings of a queue."""
    row = await only(call, "queues", call.names["queue"])
    wanted = ("queue", row["name"])
    return await _found(
        call, lambda each: (each["destination_type"], each["destination"]) == wanted
    )


async def between(call: Call) -> object:
    """The bindings between an exchange and a queue or another exchange."""
    return Page(call.query).of(await bindings_between(call))


async def binding(call: Call) -> object:
    """One binding, by its properties key."""
    return projected(await binding_of(call), call.query)


async def bindings_between(call: Call) -> list[Row]:
    """The bindings between the two of the path.

    Raises:
        ApiError: 404, one of them is not there
    """
    source = await only(call, "exchanges", exchange_name(call.names["exchange"]))
    kind = "queue" if "queue" in call.names else "exchange"
    wanted = call.names["queue"] if kind == "queue" else exchange_name(call.names["destination"])
    destination = await only(call, f"{kind}s", wanted)
    ends = (source["name"], kind, destination["name"])
    return [
        each
        for each in await _all(call)
        if (each["source"], each["destination_type"], each["destination"]) == ends
    ]


def exchange_name(text: str) -> str:
    """The exchange that a path means: the default one has a name there."""
    return "" if text == DEFAULT else text


def properties_key(routing_key: str, arguments: dict[str, Any]) -> str:
    """The name of a binding among those between two objects."""
    key = quote_plus(routing_key, safe=PLAIN).replace(NO_KEY, "%7E")
    if not arguments:
        return key or NO_KEY
    digest = hashlib.blake2s(json.encode(arguments, order="sorted"), digest_size=HASH_BYTES)
    return f"{key}{NO_KEY}{base64.urlsafe_b64encode(digest.digest()).decode().rstrip('=')}"


async def binding_of(call: Call) -> Row:
    """The binding that the properties key of the path means; RabbitMQ takes it unquoted, too.

    Raises:
        ApiError: 404, there is none
    """
    wanted = call.names["properties_key"]
    found = await bindings_between(call)
    for each in found:
        if each["properties_key"] == wanted:
            return each
    for each in found:
        if unquote_plus(each["properties_key"]) in {wanted, unquote(wanted)}:
            return each
    raise not_found()


def binding_item(row: Row) -> Row:
    """A binding as the HTTP API shows it."""
    return {
        "source": row["source"],
        "vhost": row["vhost"],
        "destination": row["destination"],
        "destination_type": row["destination_type"],
        "routing_key": row["routing_key"],
        "arguments": row["arguments"],
        "properties_key": properties_key(row["routing_key"], row["arguments"]),
    }


async def _found(call: Call, is_wanted: Callable[[Row], bool]) -> object:
    return Page(call.query).of(filter(is_wanted, await _all(call)))


async def _all(call: Call) -> Iterable[Row]:
    """The bindings of the virtual host in the path."""
    rows = await in_vhosts(call, "bindings", "source", "destination", "routing_key")
    queues = await in_vhosts(call, "queues", "name")
    return [*map(_default_binding, queues), *map(binding_item, rows)]


def _default_binding(queue: Row) -> Row:
    return binding_item(
        {
            "source": "",
            "vhost": queue["vhost"],
            "destination": queue["name"],
            "destination_type": "queue",
            "routing_key": queue["name"],
            "arguments": {},
        }
    )


def _exchange(row: Row) -> Row:
    item = {
        "arguments": row["arguments"],
        "auto_delete": row["auto_delete"],
        "durable": row["durable"],
        "internal": row["internal"],
        "name": row["name"],
        **({"policy": row["policy"]} if row["policy"] else {}),
        "type": row["type"],
        "vhost": row["vhost"],
    }
    stats = message_stats(EXCHANGE, row)
    return {**item, "message_stats": stats} if stats else item
