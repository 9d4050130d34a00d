"""The cold verbs of a channel: declare, delete, bind, unbind, purge.

A verb cleans the names, checks permissions in the order of the rules, lets the vhost do the work
and hands the reply to the channel with the LSN that must be on disk before it leaves. Errors are
raised; whoever handles the channel turns them into a close.
Must not know how a vhost keeps things, nor what a record looks like.

Spec: EXCH, QUEUE, PERM-03, PERM-04, PERM-06, CONS-61, CONS-64, DURABLE-02
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, Protocol

from pamqp import base, commands

from vouchmq.protocol.codec import (
    Command,
    exchange_bind_ok,
    exchange_declare_ok,
    exchange_delete_ok,
    exchange_unbind_ok,
    queue_bind_ok,
    queue_declare_ok,
    queue_delete_ok,
    queue_purge_ok,
    queue_unbind_ok,
)
from vouchmq.protocol.constants import DIRECT_REPLY_TO
from vouchmq.protocol.errors import AccessRefused, NotFound, PreconditionFailed
from vouchmq.protocol.fields import Table, as_integer, as_text
from vouchmq.server.broker.data_directory import DataDirectory
from vouchmq.server.broker.exchanges.bindings import DestinationKind
from vouchmq.server.broker.exchanges.exchange import check_type
from vouchmq.server.broker.names import (
    RESERVED_PREFIX,
    check_not_default,
    check_queue_name,
    exchange_text,
    queue_text,
    strip_cr_lf,
)
from vouchmq.server.broker.queues.spec import QueueLike
from vouchmq.server.broker.queues.types import is_stream, refuse_server_named
from vouchmq.server.broker.vhost import VHost
from vouchmq.server.channel.handler import handler

Permission = Literal["configure", "write", "read"]
TopicPermission = Literal["write", "read"]
# A purge drops so many messages between two looks at the clock (LIMIT-23).
PURGE_MESSAGES: Final = 8192
# What permissions call the exchange without a name (PERM-01).
DEFAULT_EXCHANGE_RESOURCE: Final = "amq.default"
REPLY_NAME_PREFIX: Final = DIRECT_REPLY_TO + "."
# Declared passively it says, and checks, how far somebody has looked (DURABLE-28).
POSITION_NAME: Final = "amq.vouchmq.position"
_SEEN: Final = ("data-directory", "start", "lsn")


class User(Protocol):
    """Who may do what, each check raising AccessRefused (403) with the text of PERM-02."""

    def require(self, permission: Permission, kind: DestinationKind, name: str, vhost: str) -> None:
        """Need this permission on a queue or exchange."""

    def require_topic(self, permission: TopicPermission, key: str, name: str, vhost: str) -> None:
        """Need this permission on a key of a topic exchange (PERM-10)."""

    def require_any(self, kind: DestinationKind, name: str, vhost: str) -> None:
        """Need any of the three permissions, as a passive declare does."""


class ReplyNames(Protocol):
    """The generated names of direct reply-to."""

    def is_live(self, name: str) -> bool:
        """Whether a reply consumer stands behind the name (CONS-64)."""


class Scope(Protocol):
    """What a verb needs of the channel it came on.

    `owner` is the connection, to which exclusive queues belong; `last_queue` is the name of the
    last queue declared here.
    """

    last_queue: str | None

    @property
    def number(self) -> int:
        """The number of the channel in its connection."""

    @property
    def vhost(self) -> VHost[QueueLike]:
        """The virtual host that the connection has opened."""

    @property
    def user(self) -> User:
        """The authenticated user."""

    @property
    def owner(self) -> object:
        """The connection, which owns exclusive queues."""

    @property
    def reply_names(self) -> ReplyNames:
        """The live reply names of the broker."""

    @property
    def data_directory(self) -> DataDirectory:
        """Where the broker keeps everything."""

    def barrier(self) -> int:
        """An LSN that is on disk once everything decided so far is."""

    def serve_first(self, queue_name: str) -> bool:
        """Let consumers have what is theirs before a command looks at their queue (CONS-52).

        False when that was the end of the channel: then there is nothing to say.
        """

    def in_slices(self, step: Callable[[], bool]) -> None:
        """Take steps until one is the last, before the next method (LIMIT-23)."""

    def reply(self, frame: bytes, lsn: int = 0) -> None:
        """Send `frame` once everything up to `lsn` is on disk; b"" for a method with nowait."""


Handler = Callable[[Scope, Command], None]


def declare_exchange(scope: Scope, method: commands.Exchange.Declare, arguments: Table) -> None:
    """exchange.declare.

    Spec: EXCH-01 … EXCH-09, PERM-03
    """
    name, vhost, lsn = strip_cr_lf(method.exchange), scope.vhost, 0
    if method.passive:
        check_not_default(name)
        scope.user.require_any("exchange", name, vhost.name)
        vhost.find_exchange(name)
    else:
        # The type before anything else (EXCH-01), permissions before existence (PERM-06).
        check_type(method.exchange_type)
        check_not_default(name)
        _require(scope, "configure", "exchange", name)
        lsn = vhost.declare_exchange(
            name,
            method.exchange_type,
            durable=method.durable,
            auto_delete=method.auto_delete,
            internal=method.internal,
            arguments=arguments,
            permit_target=_target_permit(scope, "exchange", name),
        )
    scope.reply(b"" if method.nowait else exchange_declare_ok(scope.number), lsn)


def delete_exchange(scope: Scope, method: commands.Exchange.Delete, _: Table) -> None:
    """exchange.delete.

    Spec: EXCH-05, EXCH-12, EXCH-13
    """
    name = strip_cr_lf(method.exchange)
    check_not_default(name)
    if name.startswith(RESERVED_PREFIX):
        text = exchange_text(name, scope.vhost.name)
        raise AccessRefused(f"deletion of system {text} not allowed")
    _require(scope, "configure", "exchange", name)
    lsn = scope.vhost.delete_exchange(name, if_unused=method.if_unused)
    scope.reply(b"" if method.nowait else exchange_delete_ok(scope.number), lsn)


def bind_exchange(scope: Scope, method: commands.Exchange.Bind, arguments: Table) -> None:
    """exchange.bind.

    Spec: EXCH-20, EXCH-21
    """
    source, destination = _permitted_ends(
        scope, method.source, "exchange", method.destination, method.routing_key
    )
    lsn = scope.vhost.bind(
        source, "exchange", destination, method.routing_key, arguments, scope.owner
    )
    scope.reply(b"" if method.nowait else exchange_bind_ok(scope.number), lsn)


def unbind_exchange(scope: Scope, method: commands.Exchange.Unbind, arguments: Table) -> None:
    """exchange.unbind.

    Spec: EXCH-20, EXCH-21
    """
    source, destination = _permitted_ends(
        scope, method.source, "exchange", method.destination, method.routing_key
    )
    lsn = scope.vhost.unbind(
        source, "exchange", destination, method.routing_key, arguments, scope.owner
    )
    scope.reply(b"" if method.nowait else exchange_unbind_ok(scope.number), lsn)


def declare_queue(scope: Scope, method: commands.Queue.Declare, arguments: Table) -> None:
    """queue.declare.

    Spec: QUEUE-01 … QUEUE-10, QUEUE-14, CONS-61, CONS-64, PERM-04, QUORUM-07, DURABLE-28
    """
    if _is_reply_name(method.queue):
        _declare_reply_name(scope, method)
        return
    if method.passive and method.queue == POSITION_NAME:
        _declare_position(scope, method, arguments)
        return
    name, lsn = strip_cr_lf(method.queue), 0
    if method.passive:
        scope.user.require_any("queue", name, scope.vhost.name)
        queue = scope.vhost.find_queue(name, scope.owner)
    else:
        arguments = scope.vhost.typed(
            arguments,
            durable=method.durable,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
        )
        if name:
            check_queue_name(name)
        else:
            refuse_server_named(arguments)
            name = scope.vhost.server_named()
        _require(scope, "configure", "queue", name)
        queue, lsn = scope.vhost.declare_queue(
            name,
            durable=method.durable,
            exclusive_owner=scope.owner if method.exclusive else None,
            auto_delete=method.auto_delete,
            arguments=arguments,
            permit_target=_target_permit(scope, "queue", name),
        )
    if not scope.serve_first(name):
        return
    queue.used()
    _declared(scope, method, name, (queue.ready_count, queue.consumer_count), lsn)


def bind_queue(scope: Scope, method: commands.Queue.Bind, arguments: Table) -> None:
    """queue.bind.

    Spec: EXCH-20 … EXCH-25
    """
    queue, routing_key = _shorthand(scope, method.queue, method.routing_key)
    source, destination = _permitted_ends(scope, method.exchange, "queue", queue, routing_key)
    lsn = scope.vhost.bind(source, "queue", destination, routing_key, arguments, scope.owner)
    scope.reply(b"" if method.nowait else queue_bind_ok(scope.number), lsn)


def unbind_queue(scope: Scope, method: commands.Queue.Unbind, arguments: Table) -> None:
    """queue.unbind; it has no nowait.

    Spec: EXCH-20 … EXCH-25
    """
    queue, routing_key = _shorthand(scope, method.queue, method.routing_key)
    source, destination = _permitted_ends(scope, method.exchange, "queue", queue, routing_key)
    lsn = scope.vhost.unbind(source, "queue", destination, routing_key, arguments, scope.owner)
    scope.reply(queue_unbind_ok(scope.number), lsn)


def purge_queue(scope: Scope, method: commands.Queue.Purge, _: Table) -> None:
    """queue.purge.

    Spec: QUEUE-60
    """
    name = strip_cr_lf(_shorthand(scope, method.queue)[0])
    _require(scope, "read", "queue", name)
    queue = scope.vhost.find_queue(name, scope.owner)
    if not scope.serve_first(name):
        return
    count = 0

    def step() -> bool:
        nonlocal count
        # Whoever deletes the queue meanwhile has done so after this purge.
        is_there = scope.vhost.queues.get(name) is queue
        some = queue.purge_some(PURGE_MESSAGES) if is_there else 0
        count += some
        if some:
            return False
        if is_there:
            count += queue.purge()
        scope.reply(b"" if method.nowait else queue_purge_ok(scope.number, count))
        return True

    scope.in_slices(step)


def delete_queue(scope: Scope, method: commands.Queue.Delete, _: Table) -> None:
    """queue.delete.

    Spec: QUEUE-61, QUEUE-62
    """
    name = strip_cr_lf(_shorthand(scope, method.queue)[0])
    _require(scope, "configure", "queue", name)
    if not scope.serve_first(name):
        return

    def answer(count: int, lsn: int) -> None:
        scope.reply(b"" if method.nowait else queue_delete_ok(scope.number, count), lsn)

    scope.vhost.delete_queue(
        name,
        scope.owner,
        if_unused=method.if_unused,
        if_empty=method.if_empty and not is_stream(scope.vhost.queues.get(name)),
        before_cancel=answer,
    )


def _declare_reply_name(scope: Scope, method: commands.Queue.Declare) -> None:
    """Answer for the pseudo-queues of direct reply-to: no permission, no flags, no queue."""
    name = method.queue
    if name != DIRECT_REPLY_TO and not scope.reply_names.is_live(name):
        raise NotFound(f"no {queue_text(name, scope.vhost.name)}")
    _declared(scope, method, name, (0, 1), 0)


def _declare_position(scope: Scope, method: commands.Queue.Declare, arguments: Table) -> None:
    """Answer with an LSN once it is on disk; no permission, as nothing of anybody's is told.

    Raises:
        PreconditionFailed: 406, this data directory does not hold what was seen
    """
    barrier_lsn = scope.barrier()
    if arguments:
        seen = [as_text(arguments.get(name)) for name in _SEEN[:2]]
        lsn = as_integer(arguments.get(_SEEN[2]))
        if set(arguments) != set(_SEEN) or lsn is None or None in seen:
            raise PreconditionFailed(f"'{POSITION_NAME}' takes all of {', '.join(_SEEN)} or none")
        why = scope.data_directory.mismatch(seen[0] or "", seen[1] or "", lsn, barrier_lsn)
        if why:
            raise PreconditionFailed(why)
    counts = (barrier_lsn & 0xFFFFFFFF, barrier_lsn >> 32)
    _declared(scope, method, POSITION_NAME, counts, barrier_lsn)


def _declared(
    scope: Scope, method: commands.Queue.Declare, name: str, counts: tuple[int, int], lsn: int
) -> None:
    scope.last_queue = name
    scope.reply(b"" if method.nowait else queue_declare_ok(scope.number, name, *counts), lsn)


def _shorthand(scope: Scope, queue: str, routing_key: str = "") -> tuple[str, str]:
    """Queue and routing key with the last declared queue put in where they are empty.

    Raises:
        NotFound: 404, nothing was declared on this channel yet.

    Spec: QUEUE-14, EXCH-22
    """
    if queue:
        return queue, routing_key
    if scope.last_queue is None:
        raise NotFound("no previously declared queue")
    return scope.last_queue, routing_key or scope.last_queue


def _permitted_ends(
    scope: Scope, source: str, kind: DestinationKind, destination: str, routing_key: str
) -> tuple[str, str]:
    """Source and destination of a binding, cleaned, after all checks that ask no existence.

    Raises:
        AccessRefused: 403, no permission, the default exchange, or a reply name.

    Spec: PERM-06, PERM-10, EXCH-03, EXCH-06, EXCH-25
    """
    source, destination = strip_cr_lf(source), strip_cr_lf(destination)
    _require(scope, "write", kind, destination)
    if kind == "exchange":
        check_not_default(destination)
    elif _is_reply_name(destination):
        raise AccessRefused("cannot bind or unbind to a volatile (direct reply-to) queue")
    check_not_default(source)
    _require(scope, "read", "exchange", source)
    exchange = scope.vhost.exchanges.get(source)
    if exchange is not None and exchange.type == "topic":
        scope.user.require_topic("read", routing_key, source, scope.vhost.name)
    return source, destination


def _target_permit(scope: Scope, kind: DestinationKind, name: str) -> Callable[[str], None]:
    """The check for an entity that will send messages on to another exchange (PERM-03, 04)."""

    def permit(target: str) -> None:
        _require(scope, "read", kind, name)
        _require(scope, "write", "exchange", target)

    return permit


def _require(scope: Scope, permission: Permission, kind: DestinationKind, name: str) -> None:
    if kind == "exchange" and not name:
        name = DEFAULT_EXCHANGE_RESOURCE
    scope.user.require(permission, kind, name, scope.vhost.name)


def _is_reply_name(queue: str) -> bool:
    return queue == DIRECT_REPLY_TO or queue.startswith(REPLY_NAME_PREFIX)


HANDLERS: Final[dict[type[base.Frame], Handler]] = dict(
    (
        handler(commands.Exchange.Declare, declare_exchange),
        handler(commands.Exchange.Delete, delete_exchange),
        handler(commands.Exchange.Bind, bind_exchange),
        handler(commands.Exchange.Unbind, unbind_exchange),
        handler(commands.Queue.Declare, declare_queue),
        handler(commands.Queue.Bind, bind_queue),
        handler(commands.Queue.Purge, purge_queue),
        handler(commands.Queue.Delete, delete_queue),
        handler(commands.Queue.Unbind, unbind_queue),
    )
)
