"""Health checks: 200 with `ok`, or 503 with what is wrong.

Spec: HTTP-30, HTTP-31
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from vouchmq.management.api.call import Answer
from vouchmq.management.api.errors import bad_request, not_found
from vouchmq.management.certificates import expires_at
from vouchmq.management.resources.connections import node_of
from vouchmq.management.resources.overview import listeners_of

if TYPE_CHECKING:
    from vouchmq.management.api.call import Call
    from vouchmq.management.broker import Row

OK: Final = {"status": "ok"}
UNAVAILABLE: Final = 503
DAYS: Final = {"days": 1, "weeks": 7, "months": 30, "years": 365}
LONGEST: Final = 9  # digits of a number of those
ENCRYPTED: Final = frozenset({"amqp/ssl", "https"})
# Names of a protocol, and how the listeners are called.
PROTOCOLS: Final = {
    **dict.fromkeys(("amqp", "amqp091", "amqp10", "amqp0.9.1"), "amqp"),
    **dict.fromkeys(("amqps", "amqp/ssl"), "amqp/ssl"),
    **dict.fromkeys(("http/ssl", "https"), "https"),
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


async def node_alarms(call: Call) -> object:
    """The same, of the node by its name."""
    if call.names["node"] != await node_of(call):
        raise not_found()
    return await alarms(call)


async def certificate_expiration(call: Call) -> object:
    """Whether the certificates that listeners show are valid for so long from now on."""
    text, unit = call.names["count"], call.names["unit"]
    if not text.isascii() or not text.isdigit() or len(text) > LONGEST:
        raise bad_request("Invalid expiration value.")
    if unit not in DAYS:
        raise bad_request("Time unit not recognised. Supported units: days, weeks, months, years.")
    try:
        latest = datetime.now(UTC) + timedelta(days=int(text) * DAYS[unit])
    except OverflowError:
        raise bad_request("Invalid expiration value.") from None
    expired = []
    for each in await _listeners(call):
        if each["protocol"] not in ENCRYPTED:
            continue
        ends_at = await expires_at(each["ip_address"], each["port"])
        if ends_at is None or ends_at <= latest:
            told = None if ends_at is None else f"{ends_at:%Y-%m-%d %H:%M:%S}"
            expired.append({**each, "cert_expires_on": told})
    if not expired:
        return OK
    return _failed("Certificates expiring", expired=expired)


async def virtual_hosts(call: Call) -> object:
    """Whether all virtual hosts are up: they are as long as the broker answers."""
    await call.broker.rows("vhosts")
    return OK


async def port_listener(call: Call) -> object:
    """Whether the broker listens on a port."""
    text = call.names["port"]
    if not text.isascii() or not text.isdigit():
        raise bad_request("Invalid port")
    ports = sorted({each["port"] for each in await _listeners(call)})
    if int(text) in ports:
        return {"status": "ok", "port": int(text)}
    return _failed("No active listener", missing=int(text), ports=ports)


async def protocol_listener(call: Call) -> object:
    """Whether the broker listens for a protocol."""
    asked = call.names["protocol"]
    wanted = PROTOCOLS.get(asked, asked)
    active = {each["protocol"] for each in await _listeners(call)}
    if wanted in active:
        return {"status": "ok", "protocol": wanted}
    return _failed("No active listener", missing=wanted, protocols=sorted(active))


async def _listeners(call: Call) -> list[Row]:
    """Where the broker listens, and this process."""
    facts = await call.broker.ask("status")
    return [*listeners_of(facts), call.listener(facts["node"])]


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
