"""Health checks: 200 with `ok`, or 503 with what is wrong.

Spec: HTTP-30, HTTP-31
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vouchmq.management.api.call import Answer
from vouchmq.management.api.errors import bad_request
from vouchmq.management.resources.overview import listeners_of

if TYPE_CHECKING:
    from vouchmq.management.api.call import Call

OK: Final = {"status": "ok"}
UNAVAILABLE: Final = 503
# Names of a protocol, and how the listeners are called.
PROTOCOLS: Final = {
    **dict.fromkeys(("amqp", "amqp091", "amqp10", "amqp0.9.1"), "amqp"),
    **dict.fromkeys(("amqps", "amqp/ssl"), "amqp/ssl"),
}


async def alarms(call: Call) -> object:
    """Whether no alarm is raised."""
    rows = await call.broker.rows("alarms")
    raised = [row for row in rows if row["raised"]]
    if not raised:
        return OK
    node = (await call.broker.ask("status"))["node"]
    details = [{"node": node, "resource": row["name"]} for row in raised]
    return _failed("There are alarms in effect", alarms=details)


async def virtual_hosts(call: Call) -> object:
    """Whether all virtual hosts are up: they are as long as the broker answers."""
    await call.broker.rows("vhosts")
    return OK


async def port_listener(call: Call) -> object:
    """Whether the broker listens on a port."""
    text = call.names["port"]
    if not text.isascii() or not text.isdigit():
        raise bad_request("Invalid port")
    ports = sorted({each["port"] for each in listeners_of(await call.broker.ask("status"))})
    if int(text) in ports:
        return {"status": "ok", "port": int(text)}
    return _failed("No active listener", missing=int(text), ports=ports)


async def protocol_listener(call: Call) -> object:
    """Whether the broker listens for a protocol; for HTTP it does, or who would answer."""
    asked = call.names["protocol"]
    wanted = PROTOCOLS.get(asked, asked)
    active = {each["protocol"] for each in listeners_of(await call.broker.ask("status"))}
    active.add("http")
    if wanted in active:
        return {"status": "ok", "protocol": wanted}
    return _failed("No active listener", missing=asked, protocols=sorted(active))


async def answering(call: Call) -> object:
    """Whether the broker answers."""
    await call.broker.ask("status")
    return OK


async def single_node(call: Call) -> object:
    """Whether others could do without this node: there are no others."""
    await call.broker.ask("status")
    return {"status": "ok", "reason": "single node cluster"}


def _failed(reason: str, **details: Any) -> Answer:
    return Answer(UNAVAILABLE, {"status": "failed", "reason": reason, **details})
