"""What a client saw of its messages, written down as it happens, to be judged afterwards.

A broker cannot be the only witness of its own word. A witness writes one line for each thing that
a client did or was told: `sent` before the bytes leave, `confirmed` when the broker has said so,
`received` at once. The lines say nothing of AMQP and fit any client and any broker; `vouchmq audit
--witness` judges them.

Lines are handed to the operating system before the call returns, so a client that is killed leaves
every line that it has written. What it had not yet written did not count yet: an unwritten
`confirmed` makes no promise, an unwritten `received` was not acknowledged.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from vouchmq.kit.bulk.confirms import Row
    from vouchmq.kit.bulk.frames import Delivery, Returned

EVENTS: Final = (
    *("sent", "confirmed", "nacked", "returned"),
    *("received", "acked", "rejected", "drained"),
)
FILE_BYTES: Final = 64 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._]{0,63}")
_PLAIN: Final = re.compile(r"[ !#-\[\]-~]*")
# What aio-pika, aiormq and pika raise when a mandatory message comes back, or is refused. By name:
# neither of them need be installed.
_RETURNED: Final = frozenset({"PublishError", "UnroutableError"})
_NACKED: Final = frozenset({"DeliveryError", "NackError"})


class Received(Protocol):
    """A message of aio-pika's, or of the kit's."""

    @property
    def message_id(self) -> str | None:
        """The id its publisher gave it."""


class Witness:
    """Writes what one client sees; a context manager that closes its file.

    Messages are told apart by their ids, which the publisher has to make unique; `k` is the route
    (`exchange/key`, or the key alone for the default exchange) or the queue. Threads may share it.

    Args:
        directory: of all witnesses that are to be judged together
        name: of this one, unique among those that write at the same time
        file_bytes: a new file is begun beyond this size
        clock: nanoseconds since 1970
    """

    def __init__(
        self,
        directory: str | Path,
        name: str,
        *,
        file_bytes: int = FILE_BYTES,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r}: expected a witness name of letters, digits, dots, underscores"
            )
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._file_bytes = file_bytes
        self._clock = clock
        self._lock = threading.Lock()
        # Of this life: a witness that comes back under its name begins to count anew.
        self._run = clock() // 1000
        self._last_us = self._run
        self._head = f'{{"w":"{name}","o":{self._run},"n":'
        self._name = name
        self._number = 0
        self._files = 0
        self._size = 0
        self._file = self._next_file()

    def __enter__(self) -> Witness:
        """Return the witness; the end of `with` closes its file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file, as `close` does."""
        self.close()

    # As publisher.

    def sent(self, ids: Iterable[str], route: str) -> None:
        """These messages are about to be sent; call it before their bytes leave."""
        self._note("sent", ids, route)

    def confirmed(self, ids: Iterable[str], route: str) -> None:
        """The broker has confirmed these messages."""
        self._note("confirmed", ids, route)

    def nacked(self, ids: Iterable[str], route: str) -> None:
        """The broker has refused these messages."""
        self._note("nacked", ids, route)

    def returned(self, ids: Iterable[str], route: str) -> None:
        """These messages came back: no queue took them."""
        self._note("returned", ids, route)

    @contextmanager
    def publishing(self, message_id: str, route: str) -> Iterator[None]:
        """Around one publish that returns when the broker has confirmed it.

        Works around an `await`, with aio-pika, pika and the kit, whose errors tell what the broker
        said. Any other error leaves the message as sent: nobody knows. A channel of aio-pika needs
        `on_return_raises=True`, or it takes a mandatory message that came back for confirmed.
        """
        self.sent([message_id], route)
        try:
            yield
        except Exception as error:
            kinds = {each.__name__ for each in type(error).__mro__}
            if kinds & _RETURNED:
                self.returned([message_id], route)
            elif kinds & _NACKED:
                self.nacked([message_id], route)
            raise
        self.confirmed([message_id], route)

    # As consumer.

    def received(self, ids: Iterable[str], queue: str, *, redelivered: bool = False) -> None:
        """These messages have come; call it at once, before anything is done with them."""
        self._note("received", ids, queue, redelivered=redelivered)

    def seen(self, message: Received, queue: str) -> None:
        """A message of aio-pika's, or of the kit's, has come."""
        is_again = bool(getattr(message, "redelivered", False))
        self.received([message.message_id or ""], queue, redelivered=is_again)

    def acked(self, ids: Iterable[str], queue: str) -> None:
        """The ack of these messages was sent."""
        self._note("acked", ids, queue)

    def rejected(self, ids: Iterable[str], queue: str) -> None:
        """These messages were given back or dropped by the client."""
        self._note("rejected", ids, queue)

    def drained(self, ids: Iterable[str], queue: str, *, redelivered: bool = False) -> None:
        """These messages were still in the queue when it was emptied at the end."""
        self._note("drained", ids, queue, redelivered=redelivered)

    def emptied(self, queue: str) -> None:
        """The queue was found empty: whatever was confirmed before must have been received."""
        self._note("drained", [""], queue)

    # For the bulk client.

    def watch(self, id_of: Callable[[bytes], str] | None = None) -> BulkWatch:
        """A watch for one `publish_many`; `id_of` takes the properties of a row."""
        return BulkWatch(self, id_of or id_in)

    def took(
        self,
        deliveries: Sequence[Delivery],
        queue: str,
        *,
        drained: bool = False,
        id_of: Callable[[bytes], str] | None = None,
    ) -> list[str]:
        """Deliveries that the bulk client has handed out; their ids, for `acked`."""
        find = id_of or id_in
        ids = [find(each[4]) for each in deliveries]
        event = "drained" if drained else "received"
        flags = [each[1] for each in deliveries]
        self._write(event, queue, zip(ids, flags, strict=True))
        return ids

    def close(self) -> None:
        """Close the file; nothing can be written any more."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _note(
        self, event: str, ids: Iterable[str], where: str, *, redelivered: bool = False
    ) -> None:
        self._write(event, where, ((each, redelivered) for each in ids))

    def _write(self, event: str, where: str, messages: Iterable[tuple[str, bool]]) -> None:
        """One write for all of them."""
        with self._lock:
            if self._file < 0:
                raise ValueError(f"witness {self._name} is closed")
            # The clock of a machine may be set back; what a witness saw comes in its order.
            self._last_us = max(self._last_us, self._clock() // 1000)
            middle = f',"e":"{event}","k":{_quoted(where)},"t":{self._last_us},"m":'
            head = self._head
            number = self._number
            lines: list[str] = []
            for message_id, redelivered in messages:
                lines.append(
                    f'{head}{number}{middle}{_quoted(message_id)},"r":{int(redelivered)}}}\n'
                )
                number += 1
            if not lines:
                return
            data = "".join(lines).encode()
            try:
                _write_all(self._file, data)
            except OSError:
                # Half a line would spoil the next one.
                os.ftruncate(self._file, self._size)
                raise
            self._number = number
            self._size += len(data)
            if self._size >= self._file_bytes:
                os.close(self._file)
                self._file = -1
                self._file = self._next_file()

    def _next_file(self) -> int:
        path = self._directory / f"{self._name}-{self._run}-{self._files:08d}.jsonl"
        self._files += 1
        self._size = 0
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o640)


class BulkWatch:
    """Notes each step of one `publish_many` of the bulk client; see `Witness.watch`."""

    def __init__(self, witness: Witness, id_of: Callable[[bytes], str]) -> None:
        self._witness = witness
        self._id_of = id_of
        # Of the rows without an outcome: a window of them.
        self._open: dict[int, tuple[str, str]] = {}

    def sending(self, first: int, rows: Sequence[Row]) -> None:
        """Rows are about to be sent."""
        told: dict[str, list[str]] = {}
        for number, (exchange, routing_key, properties, _) in enumerate(rows, first):
            message_id = self._id_of(properties)
            route = route_of(exchange, routing_key)
            self._open[number] = message_id, route
            told.setdefault(route, []).append(message_id)
        for route, ids in told.items():
            self._witness.sent(ids, route)

    def settled(self, rows: Sequence[int], *, confirmed: bool) -> None:
        """The broker has confirmed or refused rows."""
        told: dict[str, list[str]] = {}
        for number in rows:
            message_id, route = self._open.pop(number)
            told.setdefault(route, []).append(message_id)
        note = self._witness.confirmed if confirmed else self._witness.nacked
        for route, ids in told.items():
            note(ids, route)

    def returned(self, row: int, message: Returned) -> None:
        """The broker has returned a row."""
        route = route_of(message.exchange, message.routing_key)
        self._witness.returned([self._id_of(message.properties)], route)


def route_of(exchange: str, routing_key: str) -> str:
    """How a route is written down."""
    return f"{exchange}/{routing_key}" if exchange else routing_key


def id_in(properties: bytes) -> str:
    """The message id in properties as on the wire, "" when there is none."""
    # Only programs with the bulk client come here; the others need no pamqp.
    from vouchmq.kit.bulk.properties import decode_properties

    return decode_properties(properties).message_id or ""


def _quoted(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return f'"{text}"'
    # As the broker's ledger writes an id of bytes that are no UTF-8: the two are compared.
    with suppress(UnicodeEncodeError):
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return json.dumps(text)


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
