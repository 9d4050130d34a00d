"""The ledger: the journal of every message's life, as evidence for whoever audits the broker.

    queues, channels, consumers ──recorders──▶ writer ──▶ file
                                            ▲
    inventories, syncs, epochs ─────────────┘

While it is off nobody has a recorder, which is all that the broker pays for it. Switching it on
gives a recorder to everybody and begins a new epoch, from inventories on. What the lines mean is in
`docs/operate/ledger.md`. Must not know files, sockets or threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from vouchmq.server.ledger.channel_recorder import ChannelEventRecorder
from vouchmq.server.ledger.inventory import InventoryJob, LedgerConnection
from vouchmq.server.ledger.names import Names
from vouchmq.server.ledger.publish_numbers import PublishNumbers
from vouchmq.server.ledger.writer import LedgerWriter, Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.channel.channel import Channel
    from vouchmq.server.runtime.context import BrokerContext

# Of the format; the first line of an epoch says it.
FORMAT: Final = 1
# Numbers of queues that the journal does not keep: no epoch gives one that another has given.
UNSTORED_IDS: Final = 1 << 61
EPOCH_BITS: Final = 32

log = structlog.get_logger(__name__)


@dataclass(slots=True, frozen=True)
class Before:
    """What is known of the ledger's earlier epochs.

    `epoch` is 0 if there was none; `lsn` is the highest that its lines named; `is_dark`: the
    broker has lived without a ledger since.
    """

    epoch: int = 0
    number: int = -1
    lsn: int = 0
    is_clean: bool = True
    is_dark: bool = False


class Files(Sink, Protocol):
    """Where lines are kept, file after file."""

    before: Before

    def begin(self, epoch: int) -> None:
        """Open the first file of an epoch.

        Raises:
            OSError: that cannot be done
        """

    def rotate(self, lsn: int, done: Callable[[str], None] | None = None) -> None:
        """Give the file up for reading and begin another one, if it has any line.

        `lsn` is the highest that was named; `done` is told the path of the newest file.
        """

    def end(self, lsn: int, done: Callable[[str], None] | None = None, *, goes_dark: bool) -> None:
        """Give the last file of the epoch up for reading; `goes_dark`: the broker lives on."""

    @property
    def octets(self) -> int:
        """The size of the open file."""

    @property
    def seal(self) -> str:
        """The seal of the last lines that were written."""


@dataclass(slots=True, frozen=True)
class LedgerConfig:
    """The settings of the ledger, in the units of their names."""

    broker: str
    version: str = ""
    is_synced: bool = False
    tells_ids: bool = False
    buffer_octets: int = 8 * 1024 * 1024
    file_octets: int = 64 * 1024 * 1024
    rotate_s: float = 60.0
    inventory_s: float = 3600.0


class Ledger:
    """The ledger of one broker, on or off.

    Args:
        ledger_config: settings
        files: keeps the lines
        context: whose queues
        connections: all there are
        clock_us: microseconds since 1970, never going back
        kept: dead letters of a queue that a full disk has sent back, by LSN
    """

    def __init__(
        self,
        ledger_config: LedgerConfig,
        files: Files,
        context: BrokerContext,
        connections: Collection[LedgerConnection],
        clock_us: Callable[[], int],
        kept: Callable[[Queue], list[int]],
    ) -> None:
        self._config = ledger_config
        self._files = files
        self._context = context
        self._connections = connections
        self._clock_us = clock_us
        self._inventory_job = InventoryJob(context, connections, kept)
        self._epoch = files.before.epoch
        self._before = files.before
        self._connection_count = self._unstored_count = 0
        self._opened_at = self._counted_at = 0.0
        self._writer: LedgerWriter | None = None
        self._names: Names
        self._lost_count = 0
        self._is_broken_off = False

    @property
    def is_on(self) -> bool:
        """Whether events are written down."""
        return self._writer is not None

    def status(self) -> dict[str, object]:
        """What there is to say of it."""
        writer = self._writer
        found: dict[str, object] = {"on": writer is not None, "broker": self._config.broker}
        if writer is not None:
            found |= {"epoch": writer.epoch, "lines": writer.number, "lost": writer.lost_count}
        if self._files.seal:
            # Whoever notes it elsewhere can tell later that nothing before it was rewritten.
            found["seal"] = self._files.seal
        return found

    # On and off

    def switch_on(
        self,
        *,
        at_start: bool = False,
        message_lsn: int | None = None,
        others_have_led: bool = False,
    ) -> None:
        """Begin an epoch.

        Args:
            at_start: of the broker; else something may have ended unseen
            message_lsn: the highest LSN of a message that was recovered
            others_have_led: of a shared log: what has become of messages is in their ledgers

        Raises:
            OSError: its first file cannot be made; nothing has changed
        """
        if self._writer is not None:
            return
        ledger_config, before, context = self._config, self._before, self._context
        self._files.begin(self._epoch + 1)
        self._epoch += 1
        writer = LedgerWriter(
            ledger_config.broker,
            self._epoch,
            self._files,
            self._clock_us,
            ledger_config.buffer_octets,
            lambda: context.turn.later(self._after_gap),
        )
        self._writer = writer
        self._names = Names(writer, self._queue_id, self, tells_ids=ledger_config.tells_ids)
        writer.highest_lsn = before.lsn
        is_first = not before.epoch
        how = ("clean" if before.is_clean else "crash") if at_start else "on"
        sync = "group" if ledger_config.is_synced else "off"
        is_dark = not is_first and (before.is_dark or others_have_led or not at_start)
        previous = ("null",) * 3 if is_first else (before.epoch, before.number, before.lsn)
        writer.name(
            f'boot","fmt":{FORMAT},"ver":"{ledger_config.version}","w":"{how}",'
            f'"wm":{context.watermark},'
            f'"msg":{context.watermark if message_lsn is None else message_lsn},'
            f'"prev_o":{previous[0]},"prev_n":{previous[1]},'
            f'"prev_lsn":{previous[2]},"sync":"{sync}","dark":{is_dark:d}'
        )
        self._opened_at = self._counted_at = context.clock()
        context.active_ledger.ledger = self
        context.turn.ledger = writer
        for vhost in context.broker.vhosts.values():
            for queue in vhost.every_queue():
                queue.recorder = self._names.queue(queue, "recovered" if at_start else "known")
        for connection in self._connections:
            for channel in connection.channels.values():
                self._add_recorders(connection, channel)
        self._inventory_job.begin_at_once(writer, "boot" if at_start else "on", self._nothing)
        self.flush()
        log.info("ledger.enabled", epoch=writer.epoch)

    def switch_off(self, why: str = "off", done: Callable[[str], None] | None = None) -> None:
        """End the epoch, with inventories; `done` is told the path of its last file."""
        writer, context = self._writer, self._context
        if writer is None:
            return
        self._inventory_job.finish()
        self._inventory_job.begin(writer, "stop", self._nothing)
        self._inventory_job.finish()
        writer.name(f'end","w":"{why}"')
        writer.close()
        self._writer = context.active_ledger.ledger = context.turn.ledger = None
        for vhost in context.broker.vhosts.values():
            for queue in vhost.every_queue():
                queue.recorder = None
        for connection in self._connections:
            connection.publish_numbers.begin(0, 0)
            for channel in connection.channels.values():
                channel.recorder = None
                if channel.confirms is not None:
                    channel.confirms.recorder = None
                for consumer in channel.consumers.values():
                    consumer.recorder = None
        self._before = Before(writer.epoch, writer.number - 1, writer.highest_lsn, is_dark=True)
        self._files.end(writer.highest_lsn, done, goes_dark=why != "stop")
        log.info("ledger.disabled", epoch=writer.epoch)

    def break_off(self) -> None:
        """Another broker leads: nobody can say what of the last lines the shared log has."""
        self._is_broken_off = True

    def close(self) -> None:
        """The broker ends; after a failure of the store nobody can say what it holds."""
        if self._writer is not None and (self._context.has_failed or self._is_broken_off):
            self._writer.close()
        else:
            self.switch_off("stop")

    def _nothing(self) -> None:
        """An inventory that nobody waits for is done."""

    # What passes by

    def flush(self) -> None:
        """Hand what was written down to the operating system."""
        if self._writer is not None:
            self._writer.flush()

    def synced(self, watermark: int, duration_ms: float) -> None:
        """Everything up to this LSN is on disk."""
        if self._writer is not None:
            self._writer.put(f'syn","wm":{watermark},"us":{int(duration_ms * 1000)}')

    def look(self) -> None:
        """About once a second: is it time for another file, or for inventories?"""
        writer, now, ledger_config = self._writer, self._context.clock(), self._config
        if writer is None:
            return
        writer.flush()
        is_old = now - self._opened_at >= ledger_config.rotate_s
        if is_old or self._files.octets >= ledger_config.file_octets:
            self._opened_at = now
            self._files.rotate(writer.highest_lsn)
        if ledger_config.inventory_s and now - self._counted_at >= ledger_config.inventory_s:
            self._take_inventory("periodic", self._nothing)

    def rotate(self, done: Callable[[str], None]) -> None:
        """Give what was written until now up for reading."""
        if self._writer is not None:
            self._writer.flush()
            self._opened_at = self._context.clock()
            self._files.rotate(self._writer.highest_lsn, done)

    def take_inventory(self, done: Callable[[str], None]) -> None:
        """Take inventories of all queues; `done` is told the path of the file they end in."""
        self._take_inventory("request", lambda: self.rotate(done))

    def _take_inventory(self, why: str, done: Callable[[], None]) -> None:
        writer = self._writer
        if writer is None:
            return
        self._counted_at = self._context.clock()
        names = self._names
        # Earlier files may be gone by their age, so what lines refer to is said again.
        names.routes_again()
        for connection in self._connections:
            for channel in connection.channels.values():
                for consumer in channel.consumers.values():
                    if consumer.recorder is not None:
                        consumer.recorder.introduce("known")
        self._inventory_job.begin(
            writer, why, done, lambda queue: names.queue_again(queue, "known")
        )

    def _after_gap(self) -> None:
        """Names may have been dropped, too, and only an inventory tells what is there now."""
        self._take_inventory("periodic", self._nothing)

    # Pens

    def declared(self, queue: Queue) -> None:
        """There is a new queue."""
        if self._writer is not None:
            queue.recorder = self._names.queue(queue, "declared")

    def changed(self, queue: Queue) -> None:
        """A queue has other features."""
        if self._writer is not None:
            self._names.queue_changed(queue)

    def purged(self, queue: Queue) -> None:
        """See `Watch`."""
        writer, recorder = self._writer, queue.recorder
        if writer is not None and recorder is not None:
            recorder.lost_ranges(self._inventory_job.ready(queue, writer.number).ranges(), "purged")
            self._names.queue_again(queue, "purged")

    def deleted(self, queue: Queue) -> None:
        """See `Watch`."""
        writer, recorder = self._writer, queue.recorder
        if writer is not None and recorder is not None:
            holding = self._inventory_job.holding(queue, writer.number)
            recorder.lost_ranges(holding.ranges(), "deleted")
            self._names.queue_again(queue, "deleted")

    def opened(
        self, numbers: PublishNumbers, vhost: str, channel: int
    ) -> ChannelEventRecorder | None:
        """A recorder for a new channel of the connection that has these numbers."""
        if self._writer is None:
            return None
        if numbers.epoch != self._epoch:
            self._connection_count += 1
            numbers.begin(self._epoch, self._connection_count)
        return ChannelEventRecorder(self._writer, self._names, vhost, channel, numbers)

    def _add_recorders(self, connection: LedgerConnection, channel: Channel) -> None:
        """Give recorders to a channel that was there before."""
        numbers, vhost = connection.publish_numbers, channel.vhost.name
        recorder = channel.recorder = self.opened(numbers, vhost, channel.number)
        if recorder is None:
            return
        if channel.confirms is not None:
            recorder.last = channel.confirms.last
            recorder.confirms_from = 0
            recorder.tells_answers("confirm")
            channel.confirms.recorder = recorder
        elif channel.transaction is not None:
            recorder.tells_answers("tx")
        for consumer in channel.consumers.values():
            recorder.consumes(consumer, "known")

    def _queue_id(self, queue: Queue) -> int:
        if queue.stored:
            return queue.spec.queue_id
        if not queue.unstored_id:
            self._unstored_count += 1
            queue.unstored_id = UNSTORED_IDS + (self._epoch << EPOCH_BITS) + self._unstored_count
        return queue.unstored_id
