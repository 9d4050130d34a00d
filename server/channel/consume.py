"""The verbs of consuming on a channel: qos, consume, cancel, get, recover."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pamqp import commands

from vouchmq.protocol.codec import cancel_ok, consume_ok, get_empty, get_ok, qos_ok, recover_ok
from vouchmq.protocol.constants import DIRECT_REPLY_TO
from vouchmq.protocol.errors import (
    NotAllowed,
    NotFound,
    NotImplementedByBroker,
    PreconditionFailed,
    ResourceLocked,
)
from vouchmq.protocol.fields import INTEGER_KINDS, as_integer, decode_shortstr, type_name
from vouchmq.protocol.runs import body_size, content_pieces
from vouchmq.server.broker.features.options import QUORUM, not_negative
from vouchmq.server.broker.queues.settlement import Outcome
from vouchmq.server.channel.consumer import Consumer, Credit
from vouchmq.server.channel.handler import handler
from vouchmq.server.channel.queue_seq import NumberedConsumer, asks_for_places
from vouchmq.server.channel.reply_to import PREFIX
from vouchmq.server.channel.stream_settlement import refuse_recover, start_for

if TYPE_CHECKING:
    from vouchmq.protocol.fields import Table
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.channel.channel import Channel


# Deliveries that basic.recover sends again between two looks at the clock: 3 us each (LIMIT-23).
TURN_REDELIVERIES: Final = 1024


def qos(channel: Channel, method: commands.Basic.Qos, _arguments: Table) -> None:
    """basic.qos (QOS-01…07, QOS-20)."""
    count, octets = method.prefetch_count, method.prefetch_size
    if octets and channel.context.limits.reject_prefetch_size:
        raise NotImplementedByBroker(f"prefetch_size!=0 ({octets})")
    if method.global_:
        set_limits(channel, channel.credit, count, octets, None)
    else:
        channel.consumer_credit = (count, octets)
        if channel.context.limits.qos_apply_to_existing_consumers:
            for consumer in channel.consumers.values():
                set_limits(channel, consumer.credit, count, octets, consumer)
    channel.reply(qos_ok(channel.number))
    channel.wake_consumers()


def set_limits(
    channel: Channel, credit: Credit, count: int, octets: int, consumer: Consumer | None
) -> None:
    """Change a running limit; octets outstanding are counted only from a size limit on."""
    credit.limit, credit.limit_octets = count, octets
    if consumer is not None and consumer.recorder is not None and not consumer.no_ack:
        consumer.recorder.limit = count
        consumer.recorder.introduce("limit")
    if octets:
        held = [held for held in (channel.transaction,) if held is not None]
        entries = channel.unacked.live() + [
            entry for one in held for settlement in one.settlements for entry in settlement.entries
        ]
        credit.outstanding_octets = sum(
            body_size(message[0])
            for entry in entries
            if entry.consumer is not None and consumer in {None, entry.consumer}
            for message in entry.messages
        )


def consume(channel: Channel, method: commands.Basic.Consume, arguments: Table) -> None:
    """basic.consume (CONS-01…07, CONS-60)."""
    tag = method.consumer_tag or "amq.ctag-" + channel.context.random_token()
    reply_tag = channel.reply_consumer.tag if channel.reply_consumer is not None else None
    if tag in channel.consumers or tag == reply_tag:
        raise NotAllowed(f"attempt to reuse consumer tag '{tag}'")
    limit = channel.context.limits.consumer_max_per_channel
    if limit and len(channel.consumers) + (reply_tag is not None) >= limit:
        raise NotAllowed(f"reached maximum ({limit}) of consumers per channel")
    if method.queue == DIRECT_REPLY_TO:
        consume_replies(channel, tag, no_ack=bool(method.no_ack))
    else:
        queue = wanted_queue(channel, method.queue)
        priority = consumer_priority(queue, arguments)
        count, octets = channel.consumer_credit
        start = start_for(queue, arguments, count, no_ack=bool(method.no_ack))
        is_numbered = asks_for_places(queue.spec.text, arguments)
        consumer = (NumberedConsumer if is_numbered else Consumer)(
            channel,
            queue,
            tag,
            no_ack=bool(method.no_ack),
            priority=priority,
            credit=Credit(count, octets),
            timeout_ms=consumer_timeout(queue, arguments),
        )
        if isinstance(consumer, NumberedConsumer):
            consumer.number_by(queue.numbering())
        # The queue asks for its dispatch in the turn, so consume-ok leaves before deliveries.
        exclusive = bool(method.exclusive) and queue.features.type != QUORUM
        queue.add_consumer(consumer, exclusive=exclusive, start=start)
        channel.consumers[tag] = consumer
        channel.tell_consumer("consumer.created", consumer)
        if channel.recorder is not None:
            channel.recorder.consumes(consumer)
    if not method.nowait:
        channel.reply(consume_ok(channel.number, tag))


def consume_replies(channel: Channel, tag: str, *, no_ack: bool) -> None:
    """Consume from the reply pseudo-queue (CONS-60)."""
    if not no_ack:
        raise PreconditionFailed("reply consumer cannot acknowledge")
    if channel.reply_consumer is not None:
        raise PreconditionFailed("reply consumer already set")
    channel.reply_consumer = channel.context.replies.open(channel, tag)


def wanted_queue(channel: Channel, name: str) -> Queue:
    """Find the queue of a consume or get: shorthand, permission, existence, lock.

    Spec: QUEUE-14, PERM-05, PERM-06, QUEUE-30
    """
    if not name:
        if channel.last_queue is None:
            raise NotFound("no previously declared queue")
        name = channel.last_queue
    channel.user.require("read", "queue", name, channel.vhost.name)
    if name == DIRECT_REPLY_TO or name.startswith(PREFIX):
        raise NotFound(f"no queue '{name}' in vhost '{channel.vhost.name}'")
    return channel.vhost.find_queue(name, channel.owner)


def consumer_priority(queue: Queue, arguments: Table) -> int:
    """The value of `x-priority`, 0 without it (CONS-20, CONS-21)."""
    where = f"queue '{queue.spec.name}' in vhost '{queue.spec.vhost}'"
    field = arguments.get("x-priority")
    if field is None:
        return 0
    if field.kind not in INTEGER_KINDS or not isinstance(field.value, int):
        raise PreconditionFailed(
            f"invalid arg 'x-priority' for {where}: \"expected integer, got {type_name(field)}\""
        )
    return field.value


def consumer_timeout(queue: Queue, arguments: Table) -> int | None:
    """The consumer's own timeout in milliseconds (CONS-06, CONS-70)."""
    field = arguments.get("x-consumer-timeout")
    if field is None:
        return None
    why = not_negative(field, arguments)
    if why is not None:
        raise PreconditionFailed(f"invalid arg 'x-consumer-timeout' for {queue.spec.text}: {why}")
    return as_integer(field)


def cancel_consumer(channel: Channel, method: commands.Basic.Cancel, _arguments: Table) -> None:
    """basic.cancel: no delivery after cancel-ok, outstanding ones stay (CONS-08, ACK-41)."""
    tag = method.consumer_tag or ""
    leaving = channel.consumers.get(tag)
    if leaving is not None and not channel.serve_first(leaving.queue.spec.name):
        return
    reply_consumer = channel.reply_consumer
    if reply_consumer is not None and reply_consumer.tag == tag:
        channel.context.replies.close(reply_consumer)
        channel.reply_consumer = None
    consumer = channel.consumers.pop(tag, None)
    if consumer is not None:
        consumer.is_active = False
        channel.tell_consumer("consumer.deleted", consumer)
        if consumer.recorder is not None:
            consumer.recorder.introduce("stop")
        consumer.queue.remove_consumer(consumer)
    if not method.nowait:
        channel.reply(cancel_ok(channel.number, tag))


def cancelled(_channel: Channel, _method: commands.Basic.CancelOk, _arguments: Table) -> None:
    """The client's cancel-ok to the broker's basic.cancel: nothing is left to do (CONS-41)."""


def get(channel: Channel, method: commands.Basic.Get, _arguments: Table) -> None:
    """basic.get (CONS-50, CONS-51)."""
    no_ack = bool(method.no_ack)
    queue = wanted_queue(channel, method.queue)
    if queue.features.type == QUORUM and queue.features.is_set("single-active-consumer"):
        raise ResourceLocked(
            f"cannot obtain access to locked {queue.spec.text}. basic.get operations are not "
            "supported by quorum queues with single active consumer"
        )
    if not channel.serve_first(queue.spec.name):
        return

    def may_leave(lsn: int) -> bool:
        # A message that the disk refuses must have gone to nobody (CONF-12). By that refusal
        # whoever asks may not be there any more, or nothing be handed out any more.
        channel.context.turn.write_through(lsn)
        return not channel.is_closing and not channel.context.has_failed

    found = None if queue.is_paused else queue.get(no_ack=no_ack, may_leave=may_leave)
    if found is None:
        if not channel.is_closing and not channel.context.has_failed:
            queue.counters.get_empty += 1
            channel.counters.get_empty += 1
            channel.reply(get_empty(channel.number))
        return
    message, shown, redelivered = found
    if redelivered:
        channel.counters.redelivered += 1
        queue.counters.redelivered += 1
    else:
        # That it was delivered is known to the system before the client knows (DURABLE-12).
        channel.context.turn.write_first()
    tag = channel.next_tag
    channel.next_tag = tag + 1
    exchange, at = decode_shortstr(shown[1], 0)
    routing_key, _ = decode_shortstr(shown[1], at)
    head = get_ok(channel.number, tag, redelivered, exchange, routing_key, queue.ready_count)
    content = content_pieces(shown[0], channel.octets, channel.frame_max)
    if channel.is_barred:
        channel.reply(b"".join((head, *content)))
    else:
        channel.outbox.add_content([head, *content])
    if channel.recorder is not None:
        channel.recorder.got(queue, message, tag, is_again=redelivered, no_ack=no_ack)
    if no_ack:
        queue.counters.got_no_ack += 1
        channel.counters.got_no_ack += 1
        queue.settle([message])
    else:
        queue.counters.got += 1
        channel.counters.got += 1
        since_ms = channel.timeouts.watch(None, queue)
        channel.unacked.add(tag, [message], None, queue, since_ms)


def recover(channel: Channel, method: commands.Basic.Recover, _arguments: Table) -> None:
    """basic.recover (ACK-20, ACK-22, ACK-23, TX-13)."""
    refuse_recover_if_configured(channel, requeue=bool(method.requeue))
    refuse_recover(channel.unacked)
    channel.reply(recover_ok(channel.number))
    give_again(channel, requeue=bool(method.requeue))


def recover_async(channel: Channel, method: commands.Basic.RecoverAsync, _arguments: Table) -> None:
    """basic.recover-async: the same without reply (ACK-21)."""
    refuse_recover_if_configured(channel, requeue=bool(method.requeue))
    refuse_recover(channel.unacked)
    give_again(channel, requeue=bool(method.requeue))


def refuse_recover_if_configured(channel: Channel, *, requeue: bool) -> None:
    """540 for recover without requeue, if `compat_reject_recover` is on."""
    if channel.context.limits.reject_recover and not requeue:
        raise NotImplementedByBroker("requeue=false")


def give_again(channel: Channel, *, requeue: bool) -> None:
    """Requeue what is outstanding, or send it again under its old tags (ACK-22)."""
    if requeue:
        channel.requeue_all()
        return
    # Deliveries that come meanwhile are not sent again.
    unacked, last = channel.unacked, channel.unacked.last_tag
    done = 0

    def step() -> bool:
        nonlocal done
        taken = unacked.take_next(done, last, TURN_REDELIVERIES)
        for entry in taken:
            done = entry.tags[-1]
            again, later = entry.split_behind(last)
            consumer = entry.consumer
            if consumer is None or not consumer.is_active:
                channel.settle([again], Outcome.RECOVERED)
            elif again.messages:
                consumer.deliver_again(again.tags, again.messages)
                again.since_ms = channel.timeouts.watch(consumer, entry.queue)
                unacked.restore([again])
            if later.messages:
                unacked.restore([later])
        return not taken

    channel.in_slices(step)


HANDLERS: Final = dict(
    (
        handler(commands.Basic.Qos, qos),
        handler(commands.Basic.Consume, consume),
        handler(commands.Basic.Cancel, cancel_consumer),
        handler(commands.Basic.CancelOk, cancelled),
        handler(commands.Basic.Get, get),
        handler(commands.Basic.RecoverAsync, recover_async),
        handler(commands.Basic.Recover, recover),
    )
)
