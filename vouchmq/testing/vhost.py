"""A virtual host of a broker for tests, and its queues: what a test asks, and waits for."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from vouchmq.testing.errors import BrokerError, BrokerNotRunning, WaitTimeout
from vouchmq.testing.in_thread import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from types import TracebackType

WAIT_LIMIT_S: Final = 10.0
PEEKED: Final = 1000
State = Literal["ready", "unacknowledged", "waiting"]


def new_name(prefix: str) -> str:
    """A name for a virtual host that nobody has."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it lies in a queue.

    Args:
        body: its body
        exchange: where it was published; empty: the default exchange
        routing_key: with what key
        properties: those that it has, by AMQP's names: `message_id`, `delivery_mode`…
        headers: its headers
        redelivered: whether it has been delivered before
    """

    body: bytes
    exchange: str
    routing_key: str
    properties: Mapping[str, Any]
    headers: Mapping[str, Any]
    redelivered: bool

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode()

    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)


class BrokerPort(Protocol):
    """The broker, as a virtual host needs it; see `Broker`."""

    def url_of(self, vhost: str) -> str:
        """The URL of a virtual host."""

    def listing(
        self, what: str, *, vhost: str | None = None, name: str | None = None
    ) -> list[dict[str, Any]]:
        """The rows of a listing."""

    def rows(self, command: str, **arguments: object) -> list[dict[str, Any]]:
        """Give the broker a control command that answers with rows."""

    def command(self, command: str, **arguments: object) -> dict[str, Any]:
        """Give the broker a control command; returns its answer."""

    def try_command(self, command: str, **arguments: object) -> dict[str, Any]:
        """The same; a refusal is an answer with `ok` False."""

    def drop_vhost(self, name: str) -> None:
        """Remove a virtual host."""


class VHost:
    """A virtual host. With `with`, it is gone at the end.

    Args:
        broker: whose it is
        name: its name
    """

    def __init__(self, broker: BrokerPort, name: str) -> None:
        self._broker = broker
        self.name = name

    def __enter__(self) -> VHost:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<VHost {self.name!r}>"

    def close(self) -> None:
        """Cut its connections and remove it with everything in it; not the default one."""
        self._broker.drop_vhost(self.name)

    @property
    def aio(self) -> AsyncVHost:
        """The same virtual host with coroutines."""
        return AsyncVHost(self)

    @property
    def url(self) -> str:
        """Its AMQP URL, with user and password."""
        return self._broker.url_of(self.name)

    def queue(self, name: str) -> Queue:
        """A queue of it, which need not exist yet."""
        return Queue(self._broker, self.name, name)

    def listing(self, what: str, *, name: str | None = None) -> list[dict[str, Any]]:
        """The rows of `vouchmq list` that are of this virtual host; see `Broker.listing`."""
        return self._broker.listing(what, vhost=self.name, name=name)

    @contextmanager
    def capture(
        self,
        exchange: str,
        routing_key: str = "",
        arguments: Mapping[str, object] | None = None,
    ) -> Iterator[Queue]:
        """While inside, a queue of its own gets what is published to an exchange.

            with vhost.capture("events", "order.#") as captured:
                place_order(vhost.url)
                captured.wait(messages=1)
                assert captured.peek()[0].json() == {"item": "book"}

        Args:
            exchange: which must exist; to the default exchange nothing can be bound
            routing_key: of the binding: for a topic exchange a pattern, ignored by fanout and
                headers exchanges
            arguments: of the binding, for a headers exchange

        Raises:
            BrokerError: there is no such exchange
        """
        captured = self.queue(new_name("captured"))
        named = {"vhost": self.name, "name": captured.name}
        self._broker.command("put queue", **named, durable=True)
        try:
            self._broker.command(
                "put binding",
                vhost=self.name,
                source=exchange,
                destination=captured.name,
                destination_type="queue",
                routing_key=routing_key,
                arguments=dict(arguments or {}),
            )
            yield captured
        finally:
            with suppress(BrokerNotRunning):
                self._broker.command("delete queue", **named)

    def cut_connections(self) -> int:
        """Break its connections, as a network does: no client is told. Returns how many.

        With its return the broker has noticed, and unacknowledged messages are in their queues.
        """
        answer = self._broker.command(
            "test cut connections", vhost=self.name, timeout_s=WAIT_LIMIT_S
        )
        return int(answer["count"])

    def wait_for_connections(
        self,
        count: int | None = None,
        *,
        blocked: int | None = None,
        timeout_s: float = WAIT_LIMIT_S,
    ) -> None:
        """Wait until it has so many connections, or so many that an alarm has blocked.

        Raises:
            WaitTimeout: it has not within the time
        """
        __tracebackhide__ = True  # pytest shows the line of the test instead
        answer = self._broker.try_command(
            "test await connections",
            vhost=self.name,
            count=count,
            blocked=blocked,
            timeout_s=timeout_s,
        )
        if "count" not in answer:
            raise BrokerError(f"the broker refuses: {answer['error']}")
        if not answer["ok"]:
            raise WaitTimeout(
                f"virtual host {self.name!r} has {answer['count']} connections, "
                f"{answer['blocked']} of them blocked, after {timeout_s:g} s"
            )


class Queue:
    """A queue, by its name; it need not exist yet.

    Args:
        broker: whose it is
        vhost: the name of its virtual host
        name: its name
    """

    def __init__(self, broker: BrokerPort, vhost: str, name: str) -> None:
        self._broker = broker
        self.vhost = vhost
        self.name = name

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} in {self.vhost!r}>"

    @property
    def aio(self) -> AsyncQueue:
        """The same queue with coroutines."""
        return AsyncQueue(self)

    def info(self) -> dict[str, Any]:
        """Its row in `vouchmq list queues`, true at this moment.

        Raises:
            BrokerError: it does not exist
        """
        rows = self._broker.listing("queues", vhost=self.vhost, name=self.name)
        if not rows:
            raise BrokerError(f"no queue {self.name!r} in virtual host {self.vhost!r}")
        return rows[0]

    def peek(self, count: int = PEEKED, *, first: int = 0, state: State = "ready") -> list[Message]:
        """Its messages, in the order of delivery, which stay where they are.

        Args:
            count: at most so many
            first: the place of the first, from 0; an offset of a stream
            state: `ready`; `unacknowledged` are those that consumers have; `waiting` those that
                wait for a delayed retry

        Raises:
            BrokerError: it does not exist
        """
        rows = self._broker.rows(
            "peek",
            vhost=self.vhost,
            name=self.name,
            count=count,
            first=first,
            state=state,
            body_bytes=None,
        )
        return [_message(row) for row in rows]

    def wait(
        self, *, at_least: bool = False, timeout_s: float = WAIT_LIMIT_S, **counts: int
    ) -> dict[str, Any]:
        """Wait until it exists and has these counts; returns its row.

            queue.wait(messages_ready=3, consumers=1)
            queue.wait(acked=10, at_least=True)

        The broker answers in the moment in which it is so.

        Args:
            at_least: or more of each
            timeout_s: longest time to wait
            counts: columns of `vouchmq list queues` with numbers: `messages`, `messages_ready`,
                `messages_unacknowledged`, `consumers`; and since the broker started: `published`,
                `delivered`, `redelivered`, `acked`, `rejected`, `dead_lettered`, `expired`, …

        Raises:
            WaitTimeout: it has not within the time; with what it has
            BrokerError: there is no such count
        """
        __tracebackhide__ = True  # pytest shows the line of the test instead
        answer = self._broker.try_command(
            "wait queue",
            vhost=self.vhost,
            name=self.name,
            counts=counts,
            at_least=at_least,
            limit_ms=max(1, round(timeout_s * 1000)),
        )
        if "queue" not in answer:
            raise BrokerError(f"the broker refuses: {answer['error']}")
        found: dict[str, Any] | None = answer["queue"]
        if not answer["ok"] or found is None:
            raise WaitTimeout(_difference(self.name, found, counts, at_least, timeout_s))
        return found

    @contextmanager
    def refused_publishes(self, count: int | None = None) -> Iterator[None]:
        """While inside, the queue refuses publishes: they are nacked, and it gets none of them.

        Without confirms a publisher hears nothing.

        Args:
            count: only the next so many

        Raises:
            BrokerError: the queue does not exist
        """
        named = {"vhost": self.vhost, "name": self.name}
        self._broker.command("test refuse publishes", **named, count=count)
        try:
            yield
        finally:
            with suppress(BrokerNotRunning):
                self._broker.command("test accept publishes", **named)


def _message(row: dict[str, Any]) -> Message:
    properties = dict(row["properties"])
    headers = properties.pop("headers", None) or {}
    return Message(
        body=row["body"],
        exchange=row["exchange"],
        routing_key=row["routing_key"],
        properties=properties,
        headers=headers,
        redelivered=row["redelivered"],
    )


def _difference(
    name: str,
    found: Mapping[str, Any] | None,
    counts: Mapping[str, int],
    at_least: bool,
    timeout_s: float,
) -> str:
    if found is None:
        return f"queue {name!r} does not exist after {timeout_s:g} s"
    least = "at least " if at_least else ""
    wrong = [
        f"{count} is {found[count]}, not {least}{expected}"
        for count, expected in counts.items()
        if not (found[count] == expected or (at_least and found[count] > expected))
    ]
    return f"queue {name!r} after {timeout_s:g} s: {', '.join(wrong)}"


class AsyncVHost:
    """A `VHost` with coroutines. With `async with`, it is gone at the end.

    Args:
        vhost: the same
    """

    def __init__(self, vhost: VHost) -> None:
        self.blocking = vhost

    async def __aenter__(self) -> AsyncVHost:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncVHost {self.name!r}>"

    @property
    def name(self) -> str:
        """See `VHost`."""
        return self.blocking.name

    @property
    def url(self) -> str:
        """See `VHost`."""
        return self.blocking.url

    async def close(self) -> None:
        """See `VHost`."""
        await asyncio.to_thread(self.blocking.close)

    def queue(self, name: str) -> AsyncQueue:
        """See `VHost`."""
        return self.blocking.queue(name).aio

    async def listing(self, what: str, *, name: str | None = None) -> list[dict[str, Any]]:
        """See `VHost`."""
        return await asyncio.to_thread(self.blocking.listing, what, name=name)

    @asynccontextmanager
    async def capture(
        self,
        exchange: str,
        routing_key: str = "",
        arguments: Mapping[str, object] | None = None,
    ) -> AsyncIterator[AsyncQueue]:
        """See `VHost`."""
        async with in_thread(self.blocking.capture(exchange, routing_key, arguments)) as captured:
            yield captured.aio

    async def cut_connections(self) -> int:
        """See `VHost`."""
        return await asyncio.to_thread(self.blocking.cut_connections)

    async def wait_for_connections(
        self,
        count: int | None = None,
        *,
        blocked: int | None = None,
        timeout_s: float = WAIT_LIMIT_S,
    ) -> None:
        """See `VHost`."""
        await asyncio.to_thread(
            self.blocking.wait_for_connections, count, blocked=blocked, timeout_s=timeout_s
        )


class AsyncQueue:
    """A `Queue` with coroutines.

    Args:
        queue: the same
    """

    def __init__(self, queue: Queue) -> None:
        self.blocking = queue

    def __repr__(self) -> str:
        return f"<AsyncQueue {self.name!r} in {self.blocking.vhost!r}>"

    @property
    def name(self) -> str:
        """See `Queue`."""
        return self.blocking.name

    async def info(self) -> dict[str, Any]:
        """See `Queue`."""
        return await asyncio.to_thread(self.blocking.info)

    async def peek(
        self, count: int = PEEKED, *, first: int = 0, state: State = "ready"
    ) -> list[Message]:
        """See `Queue`."""
        return await asyncio.to_thread(self.blocking.peek, count, first=first, state=state)

    async def wait(
        self, *, at_least: bool = False, timeout_s: float = WAIT_LIMIT_S, **counts: int
    ) -> dict[str, Any]:
        """See `Queue`."""
        return await asyncio.to_thread(
            self.blocking.wait, at_least=at_least, timeout_s=timeout_s, **counts
        )

    @asynccontextmanager
    async def refused_publishes(self, count: int | None = None) -> AsyncIterator[None]:
        """See `Queue`."""
        async with in_thread(self.blocking.refused_publishes(count)):
            yield
