"""Definitions: everything that is declared, in one document.

Spec: HTTP-29, HTTP-40, HTTP-41
"""

from __future__ import annotations

from email.parser import BytesParser
from email.policy import HTTP
from typing import Any, Final

from vouchmq.management.api.call import NO_CONTENT, Answer, Call
from vouchmq.management.api.errors import bad_request

# In the order in which RabbitMQ has them.
GLOBAL: Final = ("users", "vhosts", "permissions", "topic_permissions", "global_parameters")
IN_VHOST: Final = ("parameters", "policies", "queues", "exchanges", "bindings")
MULTIPART: Final = "multipart/form-data"


async def export_definitions(call: Call) -> object:
    """The whole broker, or one virtual host."""
    vhost = await call.vhost()
    rows, answer = await call.broker.both(
        "export definitions", user=call.visitor.user, origin=call.origin, vhost=vhost
    )
    version = answer["product_version"]
    found: dict[str, Any] = {
        "rabbit_version": version,
        "rabbitmq_version": version,
        "product_name": answer["product_name"],
        "product_version": version,
    }
    kinds = IN_VHOST if vhost is not None else (*GLOBAL, *IN_VHOST)
    found.update({kind: [] for kind in kinds})
    for row in rows:
        found[row["kind"]].append(row["entry"])
    return found


async def import_definitions(call: Call) -> object:
    """Have what a document holds; nothing that is there is deleted."""
    vhost = await call.vhost()
    try:
        text = _document(call).decode()
    except UnicodeDecodeError:
        raise bad_request("not_json") from None
    answer = await call.do("import definitions", text=text, vhost=vhost)
    skipped = answer.get("skipped")
    return Answer(200, {"skipped": skipped}) if skipped else NO_CONTENT


def _document(call: Call) -> bytes:
    """The body, or the part `file` of a form."""
    kind = call.headers.get("content-type", "")
    if not kind.startswith(MULTIPART):
        return call.body
    head = f"Content-Type: {kind}\r\n\r\n".encode()
    form = BytesParser(policy=HTTP).parsebytes(head + call.body)
    for part in form.iter_parts():
        if part.get_param("name", header="content-disposition") == "file":
            content = part.get_payload(decode=True)
            return content if isinstance(content, bytes) else b""
    raise bad_request("the form has no file")
