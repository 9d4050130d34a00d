"""`list vhost-totals`: what has been counted in each virtual host since the broker started.

Clients publish and get on channels, so these are the numbers of its channels, open and closed; what
became of messages without a client is counted by queues.

Must not know how views are shown, nor change anything.

Spec: HTTP-23, HTTP-33
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from msgspec import Struct

from vouchmq.server.admin.totals import message_count
from vouchmq.server.admin.views import Selection
from vouchmq.server.broker.counters import ChannelCounters, ConnectionCounters, QueueCounters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vouchmq.server.admin.views import Views
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.broker.vhost import VHost


class VHostTotals(Struct, frozen=True, array_like=True):
    """The totals of one virtual host; as `OverviewView` has them of the broker."""

    name: str
    messages: int
    messages_ready: int
    messages_unacknowledged: int
    published: int
    confirmed: int
    nacked: int
    returned: int
    unroutable: int
    delivered: int
    delivered_no_ack: int
    got: int
    got_no_ack: int
    get_empty: int
    redelivered: int
    acked: int
    rejected: int
    dead_lettered: int
    expired: int
    dropped: int
    received_bytes: int
    sent_bytes: int


class TotalsOfVHosts:
    """The listing.

    Args:
        views: the listings of what is added up
    """

    def __init__(self, views: Views) -> None:
        self._views = views

    def vhosts(self, wanted: Selection) -> Iterator[VHostTotals | None]:
        """A view for each virtual host; before it, None for each object that was added up."""
        for vhost in self._views.each_vhost(wanted):
            yield from self._of(vhost)

    def _of(self, vhost: VHost[Queue]) -> Iterator[VHostTotals | None]:
        here = Selection(vhost=vhost.name)
        # In one go, so that what closes meanwhile counts once.
        queues = QueueCounters()
        for counted_before in vhost.deleted_counters.by_type.values():
            queues.add(counted_before)
        channels, octets = ChannelCounters(), ConnectionCounters()
        channels.add(vhost.closed_channels)
        octets.add(vhost.closed_connections)
        open_channels = [each[1] for each in self._views.each_channel(here) if each is not None]
        octets_of = [
            each.counters for each in self._views.each_connection(here) if each is not None
        ]
        messages = ready = unacked = 0
        for queue in list(vhost.every_queue()):
            queues.add(queue.counters)
            messages += message_count(queue)
            ready += queue.ready_count
            unacked += queue.unacked_count
            yield None
        for channel in open_channels:
            if not channel.is_closing:
                channels.add(channel.counted)
            yield None
        for counters in octets_of:
            octets.add(counters)
            yield None
        counted = asdict(channels)
        for name in ("resent", "published_confirm"):
            del counted[name]
        yield VHostTotals(
            name=vhost.name,
            messages=messages,
            messages_ready=ready,
            messages_unacknowledged=unacked,
            dead_lettered=queues.dead_lettered,
            expired=queues.expired,
            dropped=queues.dropped,
            **counted,
            **asdict(octets),
        )
