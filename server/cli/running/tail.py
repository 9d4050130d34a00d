"""`vouchmq tail`: messages of a queue or stream as they come, without consuming any.

    stream: its offsets, one after the other
    queue:  how many have come, then those at its end, and those that consumers hold

A queue is looked at again and again, so a message that a consumer acknowledges between two looks is
never seen. The broker counts what comes in; who misses some is told how many. Must not know how the
broker is asked.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TextIO

from vouchmq.server.cli.program import CommandFailed, complain
from vouchmq.server.cli.running.changes import body_lines, plain, words
from vouchmq.server.cli.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from vouchmq.server.cli.client import Broker

STREAM: Final = "stream"
# In one look.
MOST: Final = 1000
# Places by which consumers may have shortened a queue between two questions.
SLACK: Final = 100

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to follow, and how.

    Args:
        vhost: virtual host
        name: of the queue or stream
        last: so many of those that are there already
        first: of a stream: from this offset on
        count: end after so many; None: never
        body_bytes: show so much of each body
        interval_s: between two looks
        as_json: an object for each message
    """

    vhost: str
    name: str
    last: int = 0
    first: int | None = None
    count: int | None = None
    body_bytes: int = 1024
    interval_s: float = 0.25
    as_json: bool = False


def run(
    broker: Broker,
    wanted: Wanted,
    sleep: Callable[[float], object],
    out: TextIO | None = None,
) -> int:
    """Print messages until there have been enough; returns the exit code.

    Raises:
        CommandFailed: there is no such queue, the broker refuses, or has gone
    """
    out = sys.stdout if out is None else out
    queue = Followed(broker, wanted)
    is_stream = queue.row()["type"] == STREAM
    if wanted.first is not None and not is_stream:
        raise CommandFailed(f"--first is for streams, and {wanted.name!r} is a queue; use --last")
    looks = queue.offsets() if is_stream else queue.arrivals()
    left = wanted.count
    for messages in looks:
        for message in messages if left is None else messages[:left]:
            _print(message, out, as_json=wanted.as_json)
        # Whoever reads wants to know it now.
        out.flush()
        if left is not None:
            left -= min(left, len(messages))
            if not left:
                return 0
        sleep(wanted.interval_s if len(messages) < MOST else 0)
    return 0


class Followed:
    """A queue or stream that is looked at again and again.

    Args:
        broker: is asked
        wanted: what for
    """

    def __init__(self, broker: Broker, wanted: Wanted) -> None:
        self._broker = broker
        self._wanted = wanted

    def row(self) -> Row:
        """The queue as it is now.

        Raises:
            CommandFailed: there is none
        """
        vhost, name = self._wanted.vhost, self._wanted.name
        for row in self._broker.rows("list queues", vhost=vhost, name=name):
            return row
        raise CommandFailed(f"there is no queue {name!r} in virtual host {vhost!r}")

    def offsets(self) -> Iterator[list[Row]]:
        """What has come to a stream since the last time."""
        at = self._wanted.first
        if at is None:
            there = int(self.row()["messages_ready"])
            begin = next((int(each["place"]) for each in self._peek("ready", 0, 1)), 0)
            at = begin + max(0, there - self._wanted.last)
        while True:
            found = self._peek("ready", at, MOST)
            if found:
                self._tell_missed(int(found[0]["place"]) - at)
                at = int(found[-1]["place"]) + 1
            yield found

    def arrivals(self) -> Iterator[list[Row]]:
        """What has come to a queue since the last time."""
        # How many have come in, and how many of them have been shown or missed.
        there, newest, came = self._begin()
        accounted = came
        if self._wanted.last:
            found = self._peek("ready", max(0, there - self._wanted.last), self._wanted.last)
            yield [each for each in found if each["id"] <= newest]
        while True:
            row = self.row()
            if int(row["published"]) < came:
                # It has been deleted and declared again.
                accounted = 0
            came = int(row["published"])
            if came <= accounted:
                yield []
                continue
            ready, held = self._at_end(int(row["messages_ready"]), came - accounted)
            # What has been handed out between the two looks is in both.
            fresh = {each["id"]: each for each in (*ready, *held) if each["id"] > newest}
            newest = _newest((list(fresh.values()),), newest)
            accounted += len(fresh)
            if came > accounted and len(ready) < MOST:
                self._tell_missed(came - accounted)
                accounted = came
            yield [fresh[key] for key in sorted(fresh)]

    def _begin(self) -> tuple[int, int, int]:
        """How many are ready; of one moment the greatest id and how many have come in."""
        wanted = self._wanted
        found = self._broker.rows(
            "peek", vhost=wanted.vhost, name=wanted.name, count=1, body_bytes=0
        )
        for _ in found:
            pass
        if "newest_id" not in found.facts:
            raise CommandFailed("this broker is too old for it")
        there = int(self.row()["messages_ready"])
        return there, int(found.facts["newest_id"]), int(found.facts["published"])

    def _at_end(self, ready_count: int, count: int) -> tuple[list[Row], list[Row]]:
        """Ready messages from so many before the end, and messages that consumers hold."""
        first = max(0, ready_count - count - SLACK)
        return self._peek("ready", first, MOST), self._peek("unacknowledged", 0, MOST)

    def _peek(self, state: str, first: int, count: int) -> list[Row]:
        wanted = self._wanted
        return list(
            self._broker.rows(
                "peek",
                vhost=wanted.vhost,
                name=wanted.name,
                state=state,
                first=first,
                count=count,
                body_bytes=wanted.body_bytes,
            )
        )

    def _tell_missed(self, count: int) -> None:
        if count > 0:
            complain(f"{plural(count, 'message')} came and went unseen, or stand before others")


def _newest(found: Iterable[list[Row]], before: int) -> int:
    """The greatest id; ids grow."""
    return max((int(each["id"]) for rows in found for each in rows), default=before)


def _print(message: Row, out: TextIO, *, as_json: bool) -> None:
    if as_json:
        out.write(json.dumps(plain(message)) + "\n")
        return
    out.write(f"{message['id']}  {' '.join(words(message))}\n")
    out.writelines(f"{line}\n" for line in body_lines(message))
