"""The recorder of a channel: what it publishes, is confirmed, and settles.

What is published to one route without anything between is one line, also when it came in pieces.
`docs/operate/ledger.md` says what the lines mean. Must not know files.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from vouchmq.protocol.contents import property_block
from vouchmq.protocol.errors import AmqpError
from vouchmq.protocol.properties import Properties
from vouchmq.protocol.runs import body_size
from vouchmq.server.broker.queues.settlement import Outcome
from vouchmq.server.ledger.recorder import ConsumerEventRecorder, in_lines, qids_text
from vouchmq.server.ledger.text import lsns_text, quoted, ranges_text

if TYPE_CHECKING:
    from vouchmq.protocol.runs import Message
    from vouchmq.server.broker.queues.api import Destination, Queue
    from vouchmq.server.channel.consumer import Consumer
    from vouchmq.server.channel.route import Route
    from vouchmq.server.channel.unacked import UnackedBatch
    from vouchmq.server.ledger.names import Names
    from vouchmq.server.ledger.publish_numbers import PublishNumbers
    from vouchmq.server.ledger.writer import LedgerWriter

    # The number of a route in the ledger, and the queues that it leads to, also as text.
    Known = tuple[int, tuple[Queue, ...], str]

# An enum's member is looked up slowly.
ACKED: Final = Outcome.ACKED
DISCARDED: Final = Outcome.DISCARDED
# Routes whose text a channel remembers.
ROUTES_KEPT: Final = 1024
RETURNED: Final = {
    Outcome.NACKED: "nack",
    Outcome.REJECTED: "reject",
    Outcome.RECOVERED: "recover",
    Outcome.TIMED_OUT: "timeout",
    Outcome.LOOKED_AT: "look",
    Outcome.LOST: "channel",
}


class Run:
    """Messages that one channel publishes to one route without anything between."""

    __slots__ = ("_route", "first", "first_lsn", "known", "next_lsn", "octets", "persistent")

    def __init__(
        self, route: Route | None, known: Known, first: int, first_lsn: int, *, persistent: bool
    ) -> None:
        self._route = route
        self.known = known
        self.first = first
        self.first_lsn = self.next_lsn = first_lsn
        self.octets = 0
        self.persistent = persistent

    def is_for(self, route: Route, queues: tuple[Queue, ...], *, persistent: bool) -> bool:
        """Whether a message like that can belong to it."""
        return route is self._route and queues is self.known[1] and persistent is self.persistent


NO_RUN: Final = Run(None, (0, (), ""), 0, 0, persistent=False)


class ChannelEventRecorder:
    """Writes what one channel publishes, is confirmed, and settles.

    Args:
        writer: where
        names: gives routes their numbers
        vhost: the name of its virtual host
        channel: the channel's number
        numbers: of its connection
    """

    __slots__ = (
        *("_writer", "_channel", "_is_refused", "_names", "_numbers", "_returns", "_routes"),
        *("_run", "_vhost", "_where", "committed", "confirms_from", "last", "route"),
    )

    def __init__(
        self,
        writer: LedgerWriter,
        names: Names,
        vhost: str,
        channel: int,
        numbers: PublishNumbers,
    ) -> None:
        self._writer = writer
        self._names = names
        self._vhost = vhost
        self._numbers = numbers.by_channel
        self._channel = channel
        self._where = f'"c":{numbers.connection},"h":{channel}'
        self._routes: dict[Route, Known] = {}
        self._returns: list[int] = []  # reply codes of what comes back of the next publishes
        self._is_refused = False
        self._run = NO_RUN
        self.last = self._numbers.get(channel, 0)
        self.confirms_from = self.last  # publish number of the confirm number 0
        self.committed = (0, 0)
        self.route: Route | None = None  # of what is published next

    # Publishing

    def stored(
        self,
        target: Destination,
        raws: list[bytes],
        first_lsn: int,
        octets: int,
        *,
        persistent: bool,
    ) -> None:
        """See `Author`."""
        route, writer = self.route, self._writer
        if route is None:
            return
        count, queues = len(raws), target.queues
        first = self.last + 1
        self.last += count
        # As if the properties of all were as long as those of the first.
        octets -= count * (len(raws[0]) - body_size(raws[0]))
        run, is_plain = self._run, not (self._is_refused or self._returns)
        if (
            writer.growing is self
            and first_lsn == run.next_lsn
            and run.is_for(route, queues, persistent=persistent)
            and is_plain
        ):
            run.next_lsn += count
            run.octets += octets
            writer.highest_lsn = run.next_lsn - 1
            return
        known = self._routes.get(route)
        if known is None or known[1] is not queues or known[0] < self._names.oldest_route:
            known = self._know(route, queues, mandatory=route.mandatory)
        if is_plain and queues and not self._names.tells_ids:
            # What comes next may be more of it.
            writer.begin(self)
            self._run = Run(route, known, first, first_lsn, persistent=persistent)
            self._run.next_lsn += count
            self._run.octets = octets
            writer.highest_lsn = first_lsn + count - 1
            return
        lsns = "null"
        if queues:
            writer.highest_lsn = last_lsn = first_lsn + count - 1
            lsns = f"[{first_lsn},{last_lsn}]"
        more = self._more(raws)
        writer.put(
            f'pub","rt":{known[0]},{self._where},"s":[{first},{self.last}],"p":{persistent:d},'
            f'"z":{octets},"lsn":{lsns},"to":{known[2]}{more}'
        )
        if self._returns:
            self._put_returns(first)

    def finish(self) -> str:
        """See `Growing`."""
        run = self._run
        number, _, to = run.known
        last = run.first + run.next_lsn - run.first_lsn - 1
        return (
            f'pub","rt":{number},{self._where},"s":[{run.first},{last}],"p":{run.persistent:d},'
            f'"z":{run.octets},"lsn":[{run.first_lsn},{run.next_lsn - 1}],"to":{to}'
        )

    def nowhere(self, route: Route, raw: bytes, *, persistent: bool, is_owed: bool = True) -> None:
        """A publish that no queue got; `is_owed`: the client is told so if it asked for that."""
        mandatory = route.mandatory and is_owed
        rt = self._route_number(route, mandatory=mandatory)
        self.last += 1
        more = self._more([raw])
        self._writer.put(
            f'pub","rt":{rt},{self._where},"s":[{self.last},{self.last}],"p":{persistent:d},'
            f'"z":{body_size(raw)},"lsn":null,"to":[]{more}'
        )
        if self._returns:
            self._put_returns(self.last)

    def judged(self, route: Route, *, is_refused: bool) -> None:
        """The next publish is for this route; some queue refuses it."""
        self.route = route
        self._is_refused = is_refused

    def returned(self, code: int) -> None:
        """One of the next publishes goes back to the client with this reply code."""
        self._returns.append(code)

    def _know(self, route: Route, queues: tuple[Queue, ...], *, mandatory: bool) -> Known:
        if len(self._routes) >= ROUTES_KEPT:
            self._routes.clear()
        number = self._route_number(route, mandatory=mandatory)
        known = self._routes[route] = (number, queues, qids_text(queues))
        return known

    def _route_number(self, route: Route, *, mandatory: bool) -> int:
        return self._names.route(
            self._vhost, route.exchange, route.routing_key, mandatory=mandatory
        )

    def _more(self, raws: list[bytes]) -> str:
        more = ""
        if self._names.tells_ids:
            more = ',"m":[' + ",".join(map(id_text, raws)) + "]"
        if self._is_refused:
            self._is_refused = False
            more += ',"rj":1'
        return more

    def _put_returns(self, first: int) -> None:
        codes, self._returns = self._returns, []
        for code, some in groupby(enumerate(codes, first), lambda pair: pair[1]):
            text = ranges_text([number for number, _ in some])
            self._writer.put(f'ret",{self._where},"i":{text},"w":{code}')

    # Confirms

    def selected(self) -> None:
        """Confirms begin with the next publish."""
        self.confirms_from = self.last
        self.tells_answers("confirm")

    def tells_answers(self, mode: str) -> None:
        """Write down that each publish from here on is owed an answer."""
        self._writer.put(f'sel",{self._where},"w":"{mode}"')

    def confirmed(self, ranges: list[tuple[int, int]], watermark: int, *, is_ok: bool) -> None:
        """Confirm numbers have been said to be safe, or refused."""
        start = self.confirms_from
        if len(ranges) == 1:
            first, last = ranges[0]
            self._writer.put(
                f'cnf",{self._where},"i":[[{first + start},{last + start}]],"ok":{is_ok:d},'
                f'"wm":{watermark}'
            )
            return
        pairs: list[tuple[int, int]] = []
        for first, last in ranges:
            if pairs and pairs[-1][1] + 1 == first + start:
                pairs[-1] = (pairs[-1][0], last + start)
            else:
                pairs.append((first + start, last + start))
        for text in in_lines(pairs):
            self._writer.put(f'cnf",{self._where},"i":{text},"ok":{is_ok:d},"wm":{watermark}')

    def commits(self, last_before: int) -> None:
        """What was published since is one transaction."""
        self.committed = (last_before + 1, self.last)

    def commit_answered(self, watermark: int, *, is_ok: bool) -> None:
        """A commit is safe, or was refused."""
        first, last = self.committed
        if first <= last:
            self._writer.put(
                f'cnf",{self._where},"i":[[{first},{last}]],"ok":{is_ok:d},"wm":{watermark}'
            )

    # Deliveries

    def consumes(self, consumer: Consumer, why: str = "start") -> None:
        """A consumer has come: say who it is, and give it a recorder."""
        queue_recorder = consumer.queue.recorder
        consumer.recorder = None
        if queue_recorder is not None:
            consumer.recorder = ConsumerEventRecorder(
                self._writer,
                queue_recorder.qid,
                self._names.new_consumer(),
                self._where,
                consumer.tag,
                limit=0 if consumer.no_ack else consumer.credit.limit,
                no_ack=consumer.no_ack,
            )
            consumer.recorder.introduce(why)

    def got(
        self, queue: Queue, message: Message, tag: int, *, is_again: bool, no_ack: bool
    ) -> None:
        """A delivery to basic.get: `dlv` without a consumer."""
        if queue.recorder is not None:
            lsn = message[2] >> 1
            self._writer.put(
                f'dlv","qid":{queue.recorder.qid},"cid":0,"i":[[{lsn},{lsn}]],"tag":{tag},'
                f'"r":{is_again:d},"na":{no_ack:d}'
            )

    def settled(self, entry: UnackedBatch, outcome: Outcome, why: str = "") -> None:
        """Deliveries are acked or go back; of what is refused its queue tells the end."""
        queue = entry.queue
        messages, queue_recorder, consumer = entry.messages, queue.recorder, entry.consumer
        if queue_recorder is None or outcome is DISCARDED or queue.is_deleted or not messages:
            return
        recorder = consumer.recorder if consumer is not None else None
        where = f'"qid":{queue_recorder.qid},"cid":{recorder.cid if recorder is not None else 0}'
        if entry.is_dense:
            text = f"[[{messages[0][2] >> 1},{messages[-1][2] >> 1}]]"
        else:
            text = lsns_text(messages)
        if outcome is ACKED:
            self._writer.put(f'ack",{where},"i":{text}')
        else:
            self._writer.put(f'req",{where},"i":{text},"w":"{why or RETURNED[outcome]}"')

    def close(self) -> None:
        """The channel is gone; one of its number goes on counting."""
        self._numbers[self._channel] = self.last


def id_text(raw: bytes) -> str:
    """The message-id of a content as JSON; properties that nobody can read have none."""
    try:
        message_id = Properties(property_block(raw)).message_id
    except AmqpError:
        return "null"
    return "null" if message_id is None else quoted(message_id)
