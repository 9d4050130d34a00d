"""`vouchmq peek` and `move`: what the broker answers.

Must not know how the broker is asked.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, TextIO

from vouchmq.server.cli.running.changes import body_lines, plain, words
from vouchmq.server.cli.running.listing import cell
from vouchmq.server.cli.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vouchmq.server.cli.client import Broker

EXIT_STOPPED = 1


def peek(
    broker: Broker, arguments: Mapping[str, object], *, as_json: bool, out: TextIO | None = None
) -> int:
    """Print messages as they are in a queue; returns the exit code.

    Raises:
        CommandFailed: the broker refuses, or there is none
    """
    out = sys.stdout if out is None else out
    for message in broker.rows("peek", **arguments):
        if as_json:
            out.write(json.dumps(plain(message)) + "\n")
        else:
            said = " ".join((*_places(message), *words(message)))
            out.write(f"{message['place']}  {said}\n")
            out.writelines(f"{line}\n" for line in body_lines(message))
    return 0


def _places(message: Mapping[str, Any]) -> Iterator[str]:
    """Where a message is: its id, and who holds it."""
    yield f"id={message['id']}"
    if message["connection"]:
        yield f"held by {cell(message['connection'])} channel {message['channel']}"
        yield f"consumer={cell(message['consumer'])!r} tag={message['delivery_tag']}"


def move(
    broker: Broker,
    command: str,
    arguments: Mapping[str, object],
    *,
    as_json: bool,
    out: TextIO | None = None,
) -> int:
    """Have messages moved and say how many; returns the exit code, which is 1 if one could not go.

    Raises:
        CommandFailed: the broker refuses, or there is none
    """
    out = sys.stdout if out is None else out
    answer = broker.ask(command, **arguments)
    moved, stopped = answer["moved"], answer["stopped"]
    if as_json:
        out.write(json.dumps({"moved": moved, "stopped": stopped}) + "\n")
    else:
        word = "copied" if arguments.get("keep") else "moved"
        out.write(f"{plural(moved, 'message')} {word}\n")
        if stopped:
            out.write(f"then stopped: {cell(stopped)}\n")
    return EXIT_STOPPED if stopped else 0
