"""What a crash leaves: copies of disks, recoveries that are cut short themselves, the verdict."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.simulation.ledger import Found, Item, State, Violation
from tests.simulation.sim_disk import Inode, PowerCut, SimDisk
from vouchmq.server.broker.queues.classic import ClassicQueue
from vouchmq.store.errors import StoreError
from vouchmq.store.sync.worker import SyncInline

if TYPE_CHECKING:
    from tests.simulation.world import World
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.runtime.runtime import BrokerRuntime

BINDABLE = ("amq.direct", "amq.fanout", "amq.topic")


def fork(disk: SimDisk) -> SimDisk:
    """A copy of a disk, with everything that is pending on it."""
    twin = SimDisk(is_strict=disk.is_strict)
    twins: dict[int, Inode] = {}

    def copy(inode: Inode) -> Inode:
        known = twins.get(id(inode))
        if known is None:
            known = twins[id(inode)] = Inode()
            known.visible = bytearray(inode.visible)
            known.durable = bytearray(inode.durable)
            known.pending = list(inode.pending)
        return known

    twin.visible = {name: copy(inode) for name, inode in disk.visible.items()}
    twin.durable = {name: copy(inode) for name, inode in disk.durable.items()}
    twin._pending = [
        (verb, name, copy(what) if isinstance(what, Inode) else what)
        for verb, name, what in disk._pending
    ]
    return twin


def judge(world: World, disk: SimDisk, *, is_kill: bool) -> tuple[State, Found]:
    """Crash this disk, recover it once or several times, and compare with what may be there.

    Raises:
        Violation: it may not
    """
    draw = world.draw
    if is_kill:
        disk.kill()
    else:
        disk.crash(draw.getrandbits(32))
    if draw.random() < 0.2:
        interrupt(world, disk, draw, is_kill=is_kill)
    found = recover(world, disk)
    world.model.check_order(found)
    state = world.model.ledger.state_of(found, is_killed=is_kill)
    world.states += 1
    if draw.random() < 0.3:
        if draw.random() < 0.5:
            disk.kill()
        else:
            disk.crash(draw.getrandbits(32))
        again = recover(world, disk)
        world.states += 1
        if again != found:
            raise Violation(f"recovered twice, to different states: {found} and {again}")
    return state, found


def interrupt(world: World, disk: SimDisk, draw: random.Random, *, is_kill: bool) -> None:
    """A recovery that comes to nothing: cut short, or the disk refuses something."""
    if draw.random() < 0.7:
        disk.crash_after = draw.randrange(14)
    else:
        disk.fail_next(draw.choice(("write", "sync", "create", "unlink", "truncate", "read")))
    with suppress(PowerCut, OSError, StoreError):
        world.assemble(disk, SyncInline(), world.new_loop())
    if is_kill:
        disk.kill()
    else:
        disk.crash(draw.getrandbits(32))


def recover(world: World, disk: SimDisk) -> Found:
    """Start a broker on this disk and see what it has; nothing is written by looking."""
    runtime = world.assemble(disk, SyncInline(), world.new_loop())
    report = runtime.report
    if report.damaged or report.unroutable_messages:
        raise Violation(f"a crash was taken for damage: {report}")
    found = look_at(runtime)
    world.check_bugs()
    return found


def look_at(runtime: BrokerRuntime) -> Found:
    """Everything that a client could find out. The assembly is of no use after that."""
    vhost = runtime.broker.vhosts["/"]
    items: set[Item] = set()
    queues: dict[str, list[tuple[int, bool]]] = {}
    for queue in vhost.every_queue():
        if not queue.spec.durable:
            raise Violation(f"{queue.spec.name} was not durable, but is back")
        if isinstance(queue, ClassicQueue) and queue.ready.mark >> 1 >= runtime.journal.next_lsn:
            raise Violation(f"what is next published to {queue.spec.name} is born redelivered")
        items.add(("queue", queue.spec.name, queue.spec.auto_delete))
        queues[queue.spec.name] = drain(queue)
    for exchange in vhost.exchanges.values():
        if not exchange.is_predeclared:
            items.add(("exchange", exchange.name, exchange.type))
    for binding in vhost.bindings:
        items.add(("binding", binding.source, binding.destination, binding.routing_key))
    return Found(queues, items)


class Probe:
    """A consumer that takes everything; an `Outlet`."""

    priority = 0
    no_ack = False
    shares_room = False
    judges_size = False

    def __init__(self) -> None:
        self.taken: list[tuple[int, bool]] = []

    has_outstanding = False

    def capacity(self, head: bytes) -> int:
        del head
        return 1 << 30

    def deliver(
        self, messages: list[Message], mark: int, shown: list[Message] | None = None
    ) -> None:
        self.taken += [(number_in(message[0]), message[2] <= mark) for message in messages]

    def queue_deleted(self) -> None:
        pass


def number_in(raw: bytes) -> int:
    """The message in content frames: it stands at the head of the first body frame."""
    start = int.from_bytes(raw[3:7], "big") + 8 + 7
    return int(raw[start : start + 10])


def drain(queue: Queue) -> list[tuple[int, bool]]:
    probe = Probe()
    queue.add_consumer(probe, exclusive=False)
    while queue.ready_count:
        before = queue.ready_count
        queue.dispatch()
        if queue.ready_count == before:
            raise Violation(f"{queue.spec.name} does not give what it has")
    return probe.taken
