"""`vouchmq definitions export` and `import` of a running broker.

Must not know how the broker is asked.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

from vouchmq.protocol.text import quoted
from vouchmq.server.cli.client import Refused
from vouchmq.server.cli.program import CommandFailed
from vouchmq.server.cli.running.listing import cell

if TYPE_CHECKING:
    from vouchmq.server.cli.client import Broker

GLOBAL: Final = ("users", "vhosts", "permissions", "topic_permissions", "global_parameters")
IN_VHOST: Final = ("parameters", "policies", "queues", "exchanges", "bindings")
EXIT_MISTAKE: Final = 2
BAD_REQUEST: Final = 400


def export(broker: Broker, vhost: str | None, out: TextIO | None = None) -> int:
    """Print the definitions of a broker, or of one virtual host; returns the exit code.

    Raises:
        CommandFailed: the broker refuses, or there is none
    """
    out = sys.stdout if out is None else out
    kinds = IN_VHOST if vhost is not None else (*GLOBAL, *IN_VHOST)
    found: dict[str, list[Any]] = {kind: [] for kind in kinds}
    for row in broker.rows("export definitions", vhost=vhost):
        try:
            json.dumps(row["entry"], allow_nan=False)
        except (TypeError, ValueError):
            entry = f"{row['kind']}: {quoted(row['entry'])}"
            complaint = f"omitted, because JSON cannot represent it: {entry}"
            sys.stderr.write(f"vouchmq: {cell(complaint)}\n")
        else:
            found[row["kind"]].append(row["entry"])
    out.write(json.dumps({"product_name": "VouchMQ", **found}, indent=1) + "\n")
    return 0


def import_text(
    broker: Broker,
    content: bytes,
    vhost: str | None,
    *,
    source: str,
    as_json: bool,
    out: TextIO | None = None,
) -> int:
    """Have a broker declare what a document has; returns the exit code.

    `source` is what messages call the document.

    Raises:
        CommandFailed: it is no text, the broker refuses it, or there is none
    """
    out = sys.stdout if out is None else out
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise CommandFailed(f"{source}: not UTF-8", EXIT_MISTAKE) from None
    try:
        answer = broker.ask("import definitions", text=text, vhost=vhost)
    except Refused as error:
        if error.code != BAD_REQUEST:
            raise
        raise CommandFailed(f"{source}: {error.text}", error.exit_code) from None
    skipped = answer.get("skipped") or []
    if as_json:
        out.write(json.dumps({"skipped": skipped}) + "\n")
        return 0
    out.write("definitions imported\n")
    for each in skipped:
        out.write(f"skipped: {cell(each)}\n")
    return 0
