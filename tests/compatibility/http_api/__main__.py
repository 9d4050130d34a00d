"""Plays the log against a running broker: records its answers, or compares them.

    python -m tests.compatibility.http_api --record --http 15672 --url amqp://guest:guest@…
    python -m tests.compatibility.http_api --http 15672 --url amqp://guest:guest@…

The broker must be new: nothing declared, only the user guest. A recording is of RabbitMQ 3.10.8
with the management plugin and `collect_statistics_interval = 1000`.
"""

from __future__ import annotations

import argparse
import sys

from tests.compatibility.http_api import compare
from tests.compatibility.http_api.log import FILE, steps_of
from tests.compatibility.http_api.recording import read, write
from tests.compatibility.http_api.replay import Player


def main() -> int:
    """Play, then write or compare; 1 when there are differences without a reason."""
    parser = argparse.ArgumentParser(prog="python -m tests.compatibility.http_api")
    parser.add_argument("--http", type=int, required=True, help="port of the HTTP API")
    parser.add_argument("--url", required=True, help="the broker, as an amqp:// URL")
    parser.add_argument("--record", action="store_true", help="keep the answers as RabbitMQ's")
    parser.add_argument("--all", action="store_true", help="show explained differences, too")
    given = parser.parse_args()
    with Player(given.http, given.url) as player:
        answers = player.play(steps_of(FILE.read_text()))
    if given.record:
        write(answers)
        return 0
    found = list(compare.differences(read(), answers))
    known = compare.reasons()
    shown = found if given.all else compare.unexplained(found, known)
    for each in shown:
        print(each)  # noqa: T201 - what the program is for
    for reason in compare.unused(found, known):
        print(f"not needed: {reason}")  # noqa: T201 - the same
    return 1 if shown else 0


sys.exit(main())
