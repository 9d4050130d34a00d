"""The events of the broker's ledger: which keys each has, of which type, and what they mean.

One source for the documentation, the audit and the tests. A ledger is JSON Lines, one event a
line, one event for a *run* of messages; the schema is the union of the keys of all kinds, since
Spark must never guess it. Knows nothing of how events are judged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT: Final = 1
"""Of the lines; `boot` says which one an epoch has."""
FILE_NAME: Final = re.compile(
    r"(?P<open>\.)?(?P<broker>.+)-(?P<epoch>\d{8})-(?P<number>\d{8})\.jsonl(?:\.gz|(?(open)\.open))"
)
"""<broker>-<epoch>-<number>.jsonl, .jsonl.gz; while it is written to, .<the same>.jsonl.open."""
MOST_EPOCHS: Final = 1 << 14
MOST_LINES: Final = 1 << 38
"""Of an epoch. Both bounds make (epoch, line, place in the line) one positive number of 64 bits."""

LIVE: Final = ["pub", "mov", "dlv", "ack", "req", "dle", "drp", "uns", "inv"]
"""Kinds that tell of copies of messages."""
BEGINNINGS: Final = ("boot", "on")
"""`inv.w` of the inventories at the begin of an epoch."""


def file_number(path: str) -> int:
    """Which file of its epoch it is; 1 where the name does not say."""
    found = FILE_NAME.fullmatch(path.rpartition("/")[2])
    return int(found["number"]) if found else 1


def is_of(name: re.Match[str], broker: str) -> bool:
    """Whether lines of this broker may be in a file of this name.

    Whoever collects ledgers of several machines may have put something before the names.
    """
    return name["broker"] == broker or name["broker"].endswith(f"-{broker}")


def belongs(name: re.Match[str], broker: str, epoch: int) -> bool:
    """Whether lines of this broker and epoch may be in a file of this name."""
    return is_of(name, broker) and int(name["epoch"]) == epoch


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a line: its type in Spark and what it says."""

    name: str
    ddl: str
    text: str


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of event: the keys it must have, those it may have, and when it is written."""

    name: str
    needed: tuple[str, ...]
    optional: tuple[str, ...]
    text: str


_RANGES: Final = "array<array<bigint>>"
KEYS: Final = (
    Key("b", "string", "id of the broker"),
    Key("o", "bigint", "epoch: a new one for each start, and when the ledger is switched on"),
    Key("n", "bigint", "number of the line in its epoch, dense from 0"),
    Key("t", "bigint", "µs since 1970; never goes back within an epoch"),
    Key("e", "string", "kind of event"),
    Key("fmt", "int", "format of the lines of this epoch: 1"),
    Key("ver", "string", "version of the broker"),
    Key("w", "string", "why, or which way; the words depend on the kind"),
    Key("wm", "bigint", "watermark: the highest LSN that is synced, or was recovered"),
    Key("msg", "bigint", "highest LSN of a message that was recovered; others may be of notes"),
    Key("prev_o", "bigint", "epoch before this one, as found in the ledger's directory"),
    Key("prev_n", "bigint", "number of its last line"),
    Key("prev_lsn", "bigint", "highest LSN that its lines name"),
    Key("sync", "string", "`off`, or `group`: the ledger is synced before the journal is"),
    Key("dark", "int", "1: the broker has lived without a ledger since the epoch before"),
    Key("qid", "bigint", "id of the queue, never used again"),
    Key("v", "string", "virtual host"),
    Key("k", "string", "name of the queue; in `rte` the routing key"),
    Key("ty", "string", "`classic`, `quorum` or `stream`"),
    Key("d", "int", "what the queue stores: 0 nothing, 1 persistent messages, 2 all"),
    Key("pri", "int", "1: messages need not leave the queue in the order in which they came"),
    Key("id", "bigint", "of the route or consumer, unique in the epoch"),
    Key("x", "string", "exchange; in `dle` the dead letter exchange"),
    Key("m", "string", "in `rte` 1: mandatory; in `pub` the message ids as JSON, when asked for"),
    Key("c", "bigint", "connection"),
    Key("h", "bigint", "channel"),
    Key("g", "string", "consumer tag"),
    Key("pf", "bigint", "prefetch of the consumer, 0: unlimited"),
    Key("na", "int", "1: deliveries need no ack"),
    Key("rt", "bigint", "route, the `id` of an `rte`"),
    Key("s", "array<string>", "publish numbers [first, last]; in `dlv` positions in the queue"),
    Key("p", "int", "1: persistent"),
    Key("z", "bigint", "octets of the bodies"),
    Key("lsn", "array<bigint>", "[first, last] LSN of the run, absent when it went to no queue"),
    Key("to", "array<bigint>", "queues that have a copy of each message of the run"),
    Key("rj", "int", "1: a queue refused the run, a nack follows"),
    Key("src", "bigint", "queue that the messages came from, 0: none"),
    Key("si", _RANGES, "LSNs of the copies that the new ones come from, in the same order"),
    Key("i", _RANGES, "ranges of LSNs; of publish numbers in `cnf` and `ret`"),
    Key("ok", "int", "1 ack, 0 nack"),
    Key("us", "bigint", "how long the sync took"),
    Key("cid", "bigint", "consumer, the `id` of a `con`; 0: fetched by get"),
    Key("tag", "bigint", "first delivery tag"),
    Key("r", "int", "1: redelivered"),
    Key("deal", "bigint", "first line of the batch that was dealt out to several consumers"),
    Key("at", "bigint", "the inventory is what was there just before this line"),
    Key("full", "int", "1"),
    Key("part", "int", "part of the inventory, from 1"),
    Key("parts", "int", "how many parts it has"),
    Key("lost", "bigint", "how many events were dropped; their numbers stay unused"),
)
KINDS: Final = (
    Kind(
        "boot",
        ("fmt", "w", "wm"),
        ("ver", "msg", "prev_o", "prev_n", "prev_lsn", "sync", "dark"),
        "first line of an epoch; w: clean, crash, or on (switched on)",
    ),
    Kind("end", ("w",), (), "last line of an epoch that ended in order; w: stop, off"),
    Kind("que", ("qid", "v", "k", "ty", "d", "pri", "w"), (), "a queue, before its first use"),
    Kind("rte", ("id", "v", "x", "k", "m"), (), "a route, before the first publish on it"),
    Kind("con", ("id", "w"), ("qid", "c", "h", "g", "pf", "na"), "a consumer starts, stops"),
    Kind("pub", ("rt", "c", "h", "s", "p", "to"), ("z", "lsn", "m", "rj"), "a run was routed"),
    Kind("mov", ("w", "lsn", "to", "p"), ("src", "si"), "copies that the broker itself published"),
    Kind("sel", ("c", "h", "w"), (), "confirm or tx was selected: publishes are owed a confirm"),
    Kind("ret", ("c", "h", "i", "w"), (), "basic.return"),
    Kind("cnf", ("c", "h", "i", "ok", "wm"), (), "a confirm was sent"),
    Kind("syn", ("wm", "us"), (), "a sync has succeeded"),
    Kind("dlv", ("qid", "cid", "i", "r", "na"), ("tag", "s", "deal"), "delivered, in this order"),
    Kind("ack", ("qid", "cid", "i"), (), "acknowledged"),
    Kind("req", ("qid", "cid", "i", "w"), (), "back into the queue"),
    Kind("dle", ("qid", "i", "w"), ("x",), "dead-lettered: the end of these copies"),
    Kind("drp", ("qid", "i", "w"), (), "gone by a rule of the broker: the end of these copies"),
    Kind("uns", ("qid", "i"), (), "their end was taken back, they are in the queue again"),
    Kind("inv", ("qid", "i", "w", "part", "parts"), ("at", "full"), "all that a queue holds"),
    Kind("gap", ("lost",), (), "the ledger had to drop events before this line"),
)

SCHEMA_DDL: Final = ", ".join(f"`{key.name}` {key.ddl}" for key in KEYS)
"""Of a line, as Spark's `schema()` takes it."""


def schema() -> StructType:
    """The schema of a line as an object of Spark's; needs no running session."""
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(SCHEMA_DDL)
    if not isinstance(found, StructType):
        raise TypeError(SCHEMA_DDL)
    return found


def needed_keys() -> dict[str, tuple[str, ...]]:
    """Without which a line of a kind is broken, beside b, o, n, t, e."""
    return {kind.name: kind.needed for kind in KINDS}
