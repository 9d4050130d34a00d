"""What queues of a type may not be, and what they may not be asked: quorum type and streams.

Must not know how queues of a type work.

Spec: STREAM-01, STREAM-12, STREAM-24, QUORUM-02
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.protocol.fields import as_text
from vouchmq.server.broker.features.options import (
    CLASSIC,
    STREAM,
    TYPE_NAMES,
    X_QUEUE_TYPE,
    queue_type_of,
    require_equivalent_arguments,
)

if TYPE_CHECKING:
    from vouchmq.protocol.fields import Table
    from vouchmq.server.broker.queues.spec import QueueLike, QueueSpec

log = structlog.get_logger(__name__)


def check_properties(
    queue: str, arguments: Table, *, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    """Check the flags of a queue to be created; `queue` is the {Q} of the text.

    Raises:
        PreconditionFailed: 406, naming the first flag at fault.

    Spec: STREAM-01, QUORUM-02
    """
    if queue_type_of(arguments) == CLASSIC:
        return
    # In the order in which RabbitMQ looks at them.
    faults = (
        ("auto-delete", auto_delete),
        ("exclusive-owner", exclusive),
        ("non-durable", not durable),
    )
    for word, is_at_fault in faults:
        if is_at_fault:
            raise PreconditionFailed(f"invalid property '{word}' for {queue}")


def require_same_queue(
    spec: QueueSpec,
    durable: bool,
    exclusive_owner: object | None,
    auto_delete: bool,
    arguments: Table,
    *,
    relaxed: bool,
) -> None:
    """Compare a later declaration with the queue; `relaxed`: other arguments are only logged.

    Raises:
        ResourceLocked: 405, its exclusive owner differs
        PreconditionFailed: 406, another flag or an argument does

    Spec: QUEUE-20, QUEUE-21, QUEUE-24, QUEUE-25
    """
    spec.require_equivalent(durable, exclusive_owner, auto_delete)
    try:
        require_equivalent_arguments(spec.text, arguments, spec.arguments)
    except PreconditionFailed as error:
        if not relaxed:
            raise
        log.warning("queue.declare_mismatch", vhost=spec.vhost, queue=spec.name, why=error.text)


def refuse_server_named(arguments: Table) -> None:
    """Refuse a queue without a name if its type must have one.

    Raises:
        PreconditionFailed: 406

    Spec: STREAM-01, QUORUM-02
    """
    name = TYPE_NAMES.get(as_text(arguments.get(X_QUEUE_TYPE)) or CLASSIC)
    if name is not None and name != TYPE_NAMES[CLASSIC]:
        raise PreconditionFailed(f"Cannot declare a server-named queue for type {name}")


def not_for_type(argument: str, queue: str, queue_type: str) -> PreconditionFailed:
    """An argument that queues of this type do not have; `queue` is the {Q} of the text."""
    return PreconditionFailed(
        f"invalid arg '{argument}' for {queue} of queue type {TYPE_NAMES[queue_type]}"
    )


def is_stream(queue: QueueLike | None) -> bool:
    """Whether a queue is there and a stream."""
    return queue is not None and queue_type_of(queue.spec.arguments) == STREAM
