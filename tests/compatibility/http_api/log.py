"""The log of requests: one step a line.

    GET /queues?columns=name                            a request as administrator
    reader@PUT /queues/%2F/a {"durable": true}          … as another user; the password is the name
    ? GET /queues/%2F/a messages=3                      wait until the answer has these values
    ! c/1 basic_publish {"exchange": "", …}             a call of pika's channel 1 on connection c
    ! c close                                           … of the connection

`{c}` in a path is the quoted name of connection c, `{node}` that of the node. Empty lines and
lines that begin with `#` are comments. Steps are known by their text and how often it has occurred.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

FILE: Final = Path(__file__).with_name("requests.txt")
ADMINISTRATOR: Final = "guest"
REQUEST: Final = re.compile(
    r"(?:(?P<user>\w+)@)?(?P<method>[A-Z]+) (?P<path>/\S*)(?: (?P<body>.*))?"
)
CALL: Final = re.compile(
    r"! (?P<connection>\w+)(?:/(?P<channel>\d+))? (?P<method>\w+)(?: (?P<arguments>\{.*\}))?"
)
WAIT: Final = re.compile(r"\? GET (?P<path>/\S+) (?P<values>.+)")


class Request(NamedTuple):
    """A request, whose answers are compared."""

    key: str
    user: str
    method: str
    path: str
    body: bytes | None


class Wait(NamedTuple):
    """Ask until the answer has these values, by the paths of their fields."""

    path: str
    values: Mapping[str, Any]


class AmqpCall(NamedTuple):
    """Something that a client does; channel 0: with the connection itself."""

    connection: str
    channel: int
    method: str
    arguments: dict[str, Any]


Step = Request | Wait | AmqpCall


def steps_of(text: str) -> list[Step]:
    """The steps of a log.

    Raises:
        ValueError: a line is none
    """
    seen: Counter[str] = Counter()
    steps: list[Step] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        try:
            steps.append(_step(line, seen))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    return steps


def _step(line: str, seen: Counter[str]) -> Step:
    if found := CALL.fullmatch(line):
        arguments = json.loads(found["arguments"] or "{}")
        channel = int(found["channel"] or 0)
        return AmqpCall(found["connection"], channel, found["method"], arguments)
    if found := WAIT.fullmatch(line):
        pairs = (pair.partition("=") for pair in found["values"].split())
        return Wait(found["path"], {name: json.loads(value) for name, _, value in pairs})
    if found := REQUEST.fullmatch(line):
        seen[line] += 1
        key = line if seen[line] == 1 else f"{line} #{seen[line]}"
        body = found["body"].encode() if found["body"] is not None else None
        return Request(key, found["user"] or ADMINISTRATOR, found["method"], found["path"], body)
    raise ValueError(f"no step: {line}")
