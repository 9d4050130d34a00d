"""De-duplication: keys that have been seen, in a queue or in front of an exchange.

A publisher that repeats an unconfirmed publish with the same key stores one copy. A *window*
remembers keys: as long as a message with the key is in the queue, or the last so many of them, or
for so long. What a window must know after a restart is noted in the block that holds the message.

Spec: DUP-01 … DUP-16
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.protocol.contents import DEATH, HAS_HEADERS, notes_of, property_block, remembered
from vouchmq.protocol.fields import Field, Table, as_integer, as_text, encode_shortstr
from vouchmq.protocol.properties import Properties, header_spot
from vouchmq.protocol.runs import PROPERTIES_AT
from vouchmq.protocol.text import encode_text
from vouchmq.server.broker.dead_letter.dead_letters import DeadLetters
from vouchmq.server.broker.features.feature import Feature
from vouchmq.server.broker.features.options import (
    MESSAGE_ID,
    X_CACHE_PERSISTENCE,
    X_CACHE_SIZE,
    X_CACHE_TTL,
    X_DEDUP_DEAD_LETTER,
    X_DEDUPLICATION,
    X_HEADER,
)
from vouchmq.server.broker.message import lsn_of
from vouchmq.server.broker.queues.api import TAKES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self

    from vouchmq.server.broker.features.effective import Features
    from vouchmq.server.broker.features.feature import FeatureContext
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.paging.paged_store import JournalClock
    from vouchmq.server.broker.queues.api import HostQueue, NoteLog, PublishFilter
    from vouchmq.server.broker.queues.spec import QueueSpec
    from vouchmq.server.broker.timers import Timers

# Longer texts are known by their hash (DUP-01).
LONGEST_KEY_OCTETS: Final = 1024
# So many keys, less one, are read the long way before it is looked anew where they stand.
LOOK_AGAIN: Final = 15
SWEEP_MS: Final = 1000
# The first octet of the keys of these notes (see `Feature`).
KEYS: Final = b"d"
_NOTE: Final = struct.Struct(">QQ")
_LOW: Final = (1 << 64) - 1


class Keys(NamedTuple):
    """What a queue or exchange remembers of keys.

    With neither `size` nor `ttl_ms` a key is known while its message is in the queue (DUP-04).
    """

    header: str = X_HEADER
    size: int | None = None
    ttl_ms: int | None = None
    persists: bool = True
    dead_letters_duplicates: bool = False

    @property
    def follows_messages(self) -> bool:
        """True when a key goes with its message."""
        return self.size is None and self.ttl_ms is None


def keys_of(arguments: Table) -> Keys | None:
    """What the arguments of a queue or an exchange ask for, None when they ask for nothing."""
    asked = arguments.get(X_DEDUPLICATION)
    if asked is None or asked.value is not True:
        return None
    dead_letters_duplicates = arguments.get(X_DEDUP_DEAD_LETTER)
    return Keys(
        as_text(arguments.get(X_HEADER)) or X_HEADER,
        as_integer(arguments.get(X_CACHE_SIZE)),
        as_integer(arguments.get(X_CACHE_TTL)),
        as_text(arguments.get(X_CACHE_PERSISTENCE)) != "memory",
        dead_letters_duplicates is not None and dead_letters_duplicates.value is True,
    )


class Key(NamedTuple):
    """The key of a message, and for how long it asks to be remembered (DUP-05)."""

    octets: bytes
    ttl_ms: int | None


@remembered
def key_in(block: bytes, header: str) -> Key | None:
    """The key in a property block, None when the message has none (DUP-01, DUP-14)."""
    properties = Properties(block)
    headers = properties.headers or {}
    if header == MESSAGE_ID:
        text = properties.message_id
        octets = None if text is None else b"s" + encode_text(text)
    else:
        octets = _octets(headers.get(header))
    if octets is None:
        return None
    if len(octets) > LONGEST_KEY_OCTETS:
        octets = b"h" + sha256(octets).digest()
    ttl_ms = as_integer(headers.get(X_CACHE_TTL))
    return Key(octets, ttl_ms if ttl_ms is not None and ttl_ms > 0 else None)


def _octets(field: Field | None) -> bytes | None:
    """A value by its class: equal values of a class are equal octets."""
    if field is None:
        return None
    value = field.value
    if field.kind == "S" and isinstance(value, bytes):
        return b"s" + value
    if field.kind == "T" and isinstance(value, int):
        return b"T%d" % value
    if isinstance(value, bool):
        return b"t%d" % value
    if isinstance(value, int):
        return b"i%d" % value
    if isinstance(value, float):
        return b"f" + struct.pack(">d", value)
    return None


class KeyReader:
    """Reads the keys of messages of which most look alike.

    Where the last key was found, between octets that are the same again, the next one is, too:
    properties are read from the front, and a text of the same length leads nowhere else.

    Args:
        header: which one holds keys, or MESSAGE_ID
    """

    __slots__ = ("_before", "_behind", "_end", "_header", "_miss_count", "_start", "_ttl_ms")

    def __init__(self, header: str) -> None:
        self._header = header
        self._before = self._behind = b""
        self._start = self._end = 0
        self._ttl_ms: int | None = None
        self._miss_count = 0

    def key_of(self, raw: bytes) -> Key | None:
        """The key of a content."""
        if self._before and raw.startswith(self._before, PROPERTIES_AT):
            if raw.startswith(self._behind, self._end):
                self._miss_count = 0
                return Key(b"s" + raw[self._start : self._end], self._ttl_ms)
        elif self._header != MESSAGE_ID and not raw[HAS_HEADERS[0]] & HAS_HEADERS[1]:
            return None
        block = property_block(raw)
        key = key_in(block, self._header)
        if key is not None and key.octets[:1] == b"s":
            self._miss_count += 1
            # To look where it is costs more than to read it: not for ever new shapes.
            if self._miss_count & LOOK_AGAIN == 1:
                self._look(block, key)
        return key

    def _look(self, block: bytes, key: Key) -> None:
        text = key.octets[1:]
        if self._header == MESSAGE_ID:
            lead, end = bytes((len(text),)), 0
        else:
            lead = encode_shortstr(self._header) + b"S" + struct.pack(">I", len(text))
            end = header_spot(block).end
        start = block.find(lead + text) + len(lead)
        if start < len(lead) or not text:
            return
        stop = start + len(text)
        other = bytes(octet ^ 1 for octet in text)
        found = key_in(block[:start] + other + block[stop:], self._header)
        if found != Key(b"s" + other, key.ttl_ms):
            return  # the same octets stand somewhere else, too
        self._before, self._behind = block[:start], block[stop:end]
        self._start, self._end = PROPERTIES_AT + start, PROPERTIES_AT + stop
        self._ttl_ms = key.ttl_ms


class KeyWindow:
    """Keys that have been seen.

    A key's entry is one number, its time and its message's seq together: millions of them must
    not cost much (DUP-15).

    Args:
        scope_id: under which keys are noted, 0: nowhere
        keys: what is remembered
        timers: for times to live
        log: the journal, for notes
        clock: tells the journal's clock from the loop's
    """

    __slots__ = (
        *("_clock", "_entries", "_is_ordered", "_is_sweeping", "_log", "_newest_ms"),
        *("_follows_messages", "_scope_id", "_timers", "key_of", "keys"),
    )

    def __init__(
        self,
        scope_id: int,
        keys: Keys,
        timers: Timers,
        log: NoteLog,
        clock: JournalClock,
    ) -> None:
        self.keys = keys
        self._follows_messages = keys.follows_messages
        self._scope_id = scope_id
        self._timers = timers
        self._log = log
        self._clock = clock
        self.key_of = KeyReader(keys.header).key_of
        self._entries: dict[bytes, int] = {}  # key: due << 64 | seq; due 0: for ever
        self._is_sweeping = False
        # Keys stand in the order in which they are due, the newest of them then.
        self._is_ordered, self._newest_ms = True, 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: Key) -> int | None:
        """The LSN that the message of this key is stored under, 0: it is not; None: not seen."""
        entry = self._entries.get(key.octets)
        if entry is None:
            return None
        due_ms = entry >> 64
        if due_ms and due_ms <= self._timers.now_ms():
            del self._entries[key.octets]
            return None
        seq = entry & _LOW
        return lsn_of(seq) if seq & 1 else 0

    def new_keys(self, raws: Sequence[bytes]) -> list[Key | None] | None:
        """The keys of these contents; None when one is known or there twice."""
        keys = list(map(self.key_of, raws))
        named = [key for key in keys if key is not None]
        if len({key.octets for key in named}) < len(named):
            return None
        if any(key.octets in self._entries and self.find(key) is not None for key in named):
            return None
        return keys

    def record(self, key: Key, seq: int, *, persistent: bool) -> None:
        """A message with this key is taken (DUP-08)."""
        if self._follows_messages:
            self._entries[key.octets] = seq
            return
        ttl_ms = self.keys.ttl_ms if key.ttl_ms is None else key.ttl_ms
        due_ms = self._timers.now_ms() + ttl_ms if ttl_ms is not None else 0
        self._enter(key.octets, due_ms, seq)
        if persistent and self._scope_id and self.keys.persists:
            self._log.note(self._scope_id, KEYS + key.octets, self._packed(due_ms, seq))

    def record_run(self, keys: list[Key | None], seq: int, *, persistent: bool) -> None:
        """The same for a run whose first message has this seq; 0: none is stored."""
        step = 2 if seq else 0
        for key in keys:
            if key is not None:
                self.record(key, seq, persistent=persistent)
            seq += step

    def free(self, key: Key, seq: int) -> None:
        """The message with this key has left its queue, if it was this one."""
        if self._entries.get(key.octets, 0) & _LOW == seq:
            del self._entries[key.octets]

    def clear(self) -> None:
        """Forget all keys, as a purge does."""
        self._entries.clear()

    def forget_refused(self, first_lsn: int) -> None:
        """The disk took nothing from this LSN on (CONF-12)."""
        refused = [
            key
            for key, entry in self._entries.items()
            if entry & 1 and (entry & _LOW) >= first_lsn * 2
        ]
        for key in refused:
            del self._entries[key]

    def _enter(self, octets: bytes, due_ms: int, seq: int) -> None:
        entries = self._entries
        entries.pop(octets, None)
        size = self.keys.size
        if size is not None and len(entries) >= size:
            del entries[next(iter(entries))]  # the oldest one (DUP-06)
        entries[octets] = due_ms << 64 | seq
        self._is_ordered &= due_ms >= self._newest_ms and bool(due_ms)
        self._newest_ms = due_ms
        if due_ms and not self._is_sweeping:
            self._is_sweeping = True
            self._timers.at(self._timers.now_ms() + SWEEP_MS, self._sweep)

    def _sweep(self) -> None:
        now_ms = self._timers.now_ms()
        entries, gone = self._entries, []
        for key, entry in entries.items():
            if 0 < entry >> 64 <= now_ms:
                gone.append(key)
            elif self._is_ordered:
                break  # all others are due later
        for key in gone:
            del entries[key]
        if not entries:
            self._is_ordered, self._newest_ms = True, 0
        self._is_sweeping = any(entry >> 64 for entry in entries.values())
        if self._is_sweeping:
            self._timers.at(now_ms + SWEEP_MS, self._sweep)

    # Restart

    def recall(self, key: bytes) -> bytes | None:
        """What the note of a key says by now."""
        entry = self._entries.get(key[1:])
        return None if entry is None else self._packed(entry >> 64, entry & _LOW)

    def restore(self, notes: dict[bytes, bytes]) -> None:
        """Keys as they had been noted, the oldest first; times to live have gone on (DUP-10)."""
        found = [(*_NOTE.unpack(value), key[1:]) for key, value in notes.items() if key[:1] == KEYS]
        now_ms = self._timers.now_ms()
        for due, seq, octets in sorted(found, key=lambda each: each[1]):
            due_ms = max(1, self._clock.to_come_ms(due)) if due else 0
            if not due_ms or due_ms > now_ms:
                self._enter(octets, due_ms, seq)

    def _packed(self, due_ms: int, seq: int) -> bytes:
        due = self._clock.now_ms() + due_ms - self._timers.now_ms() if due_ms else 0
        return _NOTE.pack(due, seq)


def window_of(spec: QueueSpec, keys: Keys, context: FeatureContext) -> KeyWindow:
    """A window whose keys the journal notes under the id of a queue, if that is stored."""
    scope_id = spec.queue_id if spec.stored else 0
    return KeyWindow(scope_id, keys, context.timers, context.log, context.clock)


class Dedup(Feature):
    """The window of one queue, which is also its publish filter.

    Args:
        queue: whose messages they are
        window: keys that have been seen
    """

    NOTES = KEYS

    __slots__ = ("_is_tidying", "_queue", "dropped_count", "window")

    def __init__(self, queue: HostQueue, window: KeyWindow) -> None:
        self._queue = queue
        self._is_tidying = False
        self.window = window
        self.dropped_count = 0

    @classmethod
    def configured(
        cls, now: Self | None, queue: HostQueue, features: Features, context: FeatureContext
    ) -> Self | None:
        """See `Feature`: keys stay what they are, as arguments do."""
        del features  # no policy holds these keys
        keys = keys_of(queue.spec.arguments) if now is None else None
        if keys is not None:
            return cls(queue, window_of(queue.spec, keys, context))
        return now

    @property
    def publish_filter(self) -> PublishFilter:
        return self

    @property
    def has_dead_letters(self) -> bool:
        """True when duplicates become dead letters (DUP-16)."""
        return self.window.keys.dead_letters_duplicates

    def check(self, raw: bytes) -> int:
        """See `PublishFilter`: a duplicate is dropped and confirmed (DUP-07)."""
        key = self.key_of(raw)
        if key is None or self._comes_back(raw):
            return TAKES
        lsn = self.window.find(key)
        if lsn is not None and self.window.keys.follows_messages and not self._is_tidying:
            # Its message may be one that is on its way out: too old, or too many.
            self._is_tidying = True
            self._queue.run_features()
            self._is_tidying = False
            lsn = self.window.find(key)
        if lsn is None:
            return TAKES
        self.dropped_count += 1
        return lsn

    def call_when_room(self, call: Callable[[], None]) -> None:
        """See `PublishFilter`; it refuses nothing."""

    def takes_all(self, raws: Sequence[bytes]) -> bool:
        """See `PublishFilter`."""
        return self.window.new_keys(raws) is not None

    def has_room(self, count: int, octets: int) -> bool:
        """See `PublishFilter`; keys need no room."""
        del count, octets
        return True

    def on_duplicate(self, message: Message) -> None:
        dead_letters = self._queue.feature(DeadLetters)
        if self.has_dead_letters and dead_letters is not None:
            dead_letters.send_duplicate(message)

    def on_enqueue(self, messages: Iterable[Message]) -> None:
        """Record the keys of messages that the queue has accepted."""
        for message in messages:
            key = self.key_of(message[0])
            if key is not None:
                self.window.record(key, message[2], persistent=bool(message[2] & 1))

    def on_removed(self, messages: Iterable[Message]) -> None:
        """These have left the queue for good."""
        if self.window.keys.follows_messages:
            for message in messages:
                key = self.key_of(message[0])
                if key is not None:
                    self.window.free(key, message[2])

    def on_removal_undone(self, messages: Iterable[Message]) -> None:
        """These had gone, which was refused (TX-09)."""
        if self.window.keys.follows_messages:
            for message in messages:
                key = self.key_of(message[0])
                if key is not None and self.window.find(key) is None:
                    self.on_enqueue([message])

    def on_write_refused(self, first_lsn: int) -> None:
        self.window.forget_refused(first_lsn)

    def on_deleted(self) -> None:
        self.window.clear()

    def recall(self, key: bytes) -> bytes | None:
        return self.window.recall(key)

    def on_purged(self) -> None:
        """Nothing is ready any more (DUP-13)."""
        if self.window.keys.follows_messages:
            self.window.clear()

    def restore(self, notes: dict[bytes, bytes]) -> None:
        """Keys as they were before a restart; those that go with messages are read from them."""
        self.window.restore(notes)
        if self.window.keys.follows_messages:
            for line in self._queue.lines:
                self.on_enqueue(line.restored())

    def key_of(self, raw: bytes) -> Key | None:
        """The key of a content."""
        return self.window.key_of(raw)

    def _comes_back(self, raw: bytes) -> bool:
        """A dead letter of this very queue is no duplicate here (DUP-12)."""
        newest = next((octets for kind, octets in notes_of(raw) if kind == DEATH), None)
        return newest is not None and newest[1:] == encode_text(self._queue.spec.name)


class ExchangeDedup:
    """One message on its way through de-duplicating exchanges.

    Args:
        block: its properties
    """

    __slots__ = ("_block", "_passed", "is_duplicate", "lsn")

    def __init__(self, block: bytes) -> None:
        self._block = block
        self._passed: list[tuple[KeyWindow, Key]] = []
        self.is_duplicate = False
        self.lsn = 0  # what the confirm of a duplicate waits for

    def stops_at(self, window: KeyWindow) -> bool:
        """Whether the message goes no further here."""
        key = key_in(self._block, window.keys.header)
        if key is None:
            return False
        lsn = window.find(key)
        if lsn is None:
            self._passed.append((window, key))
            return False
        self.is_duplicate = True
        self.lsn = max(self.lsn, lsn)
        return True

    def record(self, lsn: int, *, persistent: bool) -> None:
        """It led somewhere, and was stored under this LSN, 0 if nowhere (DUP-08, DUP-11)."""
        seq = lsn * 2 + 1 if lsn else 0
        for window, key in self._passed:
            window.record(key, seq, persistent=persistent)
