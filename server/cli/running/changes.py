"""`vouchmq declare`, `delete`, `purge`, `close`, `publish` and `get`: what the broker answers.

Must not know how the broker is asked.
"""

from __future__ import annotations

import base64
import codecs
import json
import re
import sys
from typing import TYPE_CHECKING, Any, TextIO

from vouchmq.server.cli.client import Refused
from vouchmq.server.cli.running.listing import cell
from vouchmq.server.cli.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vouchmq.server.cli.client import Broker

EXIT_NOT_ROUTED = 1
# What `vouchmq declare` has the broker do.
DECLARED = frozenset({"put queue", "put exchange", "put binding"})
# How RabbitMQ begins a refusal of a policy or parameter, and how it shows text and pairs there.
INVALID = re.compile(r"Validation failed\s+")
BINARY = re.compile(r'<<"((?:[^"\\]|\\.)*)">>')
PAIR = re.compile(r"\{('(?:[^'\\]|\\.)*'),([^{}]*)\}")
# Of a body that is no text, so much is shown in each line.
HEX_BYTES = 16


def change(
    broker: Broker,
    command: str,
    arguments: Mapping[str, object],
    done: str,
    *,
    as_json: bool,
    out: TextIO | None = None,
) -> int:
    """Have something done and say so; returns the exit code.

    Args:
        broker: does it
        command: what
        arguments: of the command
        done: what to say, with `{messages}` and other values of the answer
        as_json: print the answer instead
        out: where to

    Raises:
        CommandFailed: the broker refuses, or there is none
    """
    out = sys.stdout if out is None else out
    try:
        answer = broker.ask(command, **arguments)
    except Refused as error:
        raise Refused(_in_words(error.text, command), error.code) from None
    del answer["ok"]
    if as_json:
        out.write(json.dumps(answer) + "\n")
        return 0
    if "messages" in answer:
        answer["messages"] = plural(answer["messages"], "message")
    if answer.get("created") is False:
        is_changed = done.endswith(" set")
        done = done.removesuffix(" set").removesuffix(" declared")
        done += " changed" if is_changed else " exists already"
    out.write(cell(done.format_map(answer)) + "\n")
    return 0


def _in_words(text: str, command: str) -> str:
    """A refusal in the words of the command line: those of the broker are RabbitMQ's.

    `[{<<"key">>,<<"value">>}]` becomes `'key': 'value'`.
    """
    if command in DECLARED:
        text = f"declare{text.removeprefix('put')}"
    text = INVALID.sub("", text)
    if BINARY.search(text):
        text = PAIR.sub(r"\1: \2", BINARY.sub(r"'\1'", text))
        text = re.sub(r"\[(.*)\] are not", r"\1 are not", text)
    return text


def publish(
    broker: Broker, arguments: Mapping[str, object], *, as_json: bool, out: TextIO | None = None
) -> int:
    """Publish a message; returns the exit code, which is 1 if it reached no queue.

    Raises:
        CommandFailed: the broker refuses it, or there is none
    """
    out = sys.stdout if out is None else out
    answer = broker.ask("publish", **arguments)
    is_routed = bool(answer["routed"])
    if as_json:
        out.write(json.dumps({"routed": is_routed}) + "\n")
    else:
        out.write("published and confirmed\n" if is_routed else "no queue got the message\n")
    return 0 if is_routed else EXIT_NOT_ROUTED


def get(
    broker: Broker, arguments: Mapping[str, object], *, as_json: bool, out: TextIO | None = None
) -> int:
    """Print messages of a queue; returns the exit code.

    Raises:
        CommandFailed: the broker refuses, or there is none
    """
    out = sys.stdout if out is None else out
    for at, message in enumerate(broker.rows("get", **arguments), 1):
        if as_json:
            out.write(json.dumps(plain(message)) + "\n")
        else:
            out.write(f"{at}  {' '.join(words(message))}\n")
            out.writelines(f"{line}\n" for line in body_lines(message))
    return 0


def plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message for JSON: its body as text, or in base64 where it is none."""
    text = text_of(message)
    if text is not None:
        return {**message, "body": text, "body_encoding": "utf-8"}
    body = base64.b64encode(message["body"]).decode("ascii")
    return {**message, "body": body, "body_encoding": "base64"}


def text_of(message: Mapping[str, Any]) -> str | None:
    """A body as text; None where it is none. What is cut off may cut a character."""
    body = message["body"]
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return decoder.decode(body, final=len(body) == message["size"])
    except UnicodeDecodeError:
        return None


def body_lines(message: Mapping[str, Any]) -> Iterator[str]:
    """A body as it can be shown on any terminal: text, or the numbers of its bytes."""
    text = text_of(message)
    if text is not None:
        lines = text.splitlines()
        if all(line.replace("\t", " ").isprintable() for line in lines):
            yield from (f"   {line}" for line in lines)
            return
    body = message["body"]
    for at in range(0, len(body), HEX_BYTES):
        piece = body[at : at + HEX_BYTES]
        shown = "".join(chr(each) if 32 <= each < 127 else "." for each in piece)
        yield f"   {at:08x}  {piece.hex(' ').ljust(HEX_BYTES * 3)} {shown}"


def words(message: Mapping[str, Any]) -> Iterator[str]:
    """What is said of a message in the line above its body."""
    yield f"exchange={cell(message['exchange'])!r}"
    yield f"routing_key={cell(message['routing_key'])!r}"
    if message["redelivered"]:
        yield "redelivered"
    for name, value in message["properties"].items():
        yield f"{name}={cell(value)}"
    size, shown = message["size"], len(message["body"])
    yield plural(size, "byte") if size == shown else f"{plural(size, 'byte')}, the first {shown}:"
