"""What each feature costs: one work queue that has it beside a plain one, round by round in turn.

    python -m bench.features --list
    python -m bench.features --rounds 5 --out bench/results/features.json
    python -m bench.features --only ttl dedup_queue --size 100 --rounds 3

A round is the usual work queue: persistent messages, so many unconfirmed at most, a consumer that
acknowledges each. Each round with a feature stands beside one without it, in alternating order,
and what is judged is the median of the quotients of such pairs, so that whatever else the
machine does hits both. The share of the plain queue's CPU time says the same with less noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench import frames, servers
from bench.frames import number_entry, properties, text_entry, true_entry
from bench.measure import play
from bench.run import conditions
from bench.servers import DEFAULT_VOUCHMQ, Server
from bench.shape import Consumer, Mode, Publisher, Queue, Shape

QUEUE: Final = "bench-0"
GRAVE: Final = "bench-1"
EXCHANGE: Final = "bench-exchange"
HOUR_MS: Final = 3_600_000
PREFETCH: Final = 500
BACKLOG: Final = 20_000
DURATION_MS: Final = 800
WINDOWS: Final = {1024: 500, 100: 1000}
"""Unconfirmed messages at most, by the octets of a body."""
LEAST_SHARE: Final = 0.5
"""Of the plain queue's rate."""
Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Feature:
    """A way in which a work queue is no plain one; `queue` and `exchange` are table entries."""

    name: str
    what: str
    queue: bytes = b""
    blocks: tuple[bytes, ...] = ()
    has_numbers: bool = False
    exchange_kind: str = ""
    exchange: bytes = b""
    is_stream: bool = False
    rejects: bool = False
    beside_same: bool = False
    """The plain queue beside it gets the same messages: only what is done with them is judged."""

    def plain(self, size: int) -> Shape:
        """What it is held against."""
        made = plain(size)
        if not self.beside_same:
            return made
        publisher = replace(
            made.publishers[0], properties=self.blocks, has_numbers=self.has_numbers
        )
        return replace(made, publishers=(publisher,))

    def shape(self, size: int) -> Shape:
        """The work queue with it."""
        made = plain(size)
        publisher = replace(
            made.publishers[0], properties=self.blocks, has_numbers=self.has_numbers
        )
        queue = replace(made.queues[0], arguments=self.queue, is_stream=self.is_stream)
        if self.rejects:
            return replace(
                made,
                queues=(queue, Queue(GRAVE, durable=True, dead_from=QUEUE)),
                publishers=(replace(publisher, fan_count=2),),
                consumers=(
                    replace(made.consumers[0], rejects=True),
                    replace(made.consumers[0], queue=GRAVE),
                ),
            )
        if self.exchange_kind:
            return replace(
                made,
                queues=(queue,),
                publishers=(replace(publisher, exchange=EXCHANGE, routing_keys=("",)),),
                fanout_exchange=EXCHANGE,
                exchange_kind=self.exchange_kind,
                exchange_arguments=self.exchange,
            )
        return replace(made, queues=(queue,), publishers=(publisher,))


def plain(size: int) -> Shape:
    """The work queue that all are held against."""
    return Shape(
        (Queue(QUEUE, durable=True),),
        (
            Publisher(
                (QUEUE,),
                size,
                400_000,
                persistent=True,
                mode=Mode.WINDOW,
                window=WINDOWS[size],
                backlog_count=BACKLOG,
            ),
        ),
        (Consumer(QUEUE, size, ack_every=1, prefetch_count=PREFETCH),),
        duration_ms=DURATION_MS,
    )


HEADER: Final = properties(
    headers=text_entry("x-deduplication-header", frames.NUMBER.decode()),
)
TO_GRAVE: Final = text_entry("x-dead-letter-exchange", "") + text_entry(
    "x-dead-letter-routing-key", GRAVE
)
DEDUP: Final = true_entry("x-message-deduplication")

FEATURES: Final = (
    Feature("ttl", "queue with x-message-ttl", number_entry("x-message-ttl", HOUR_MS)),
    Feature(
        "expiration",
        "messages with an expiration",
        blocks=(properties(expiration=str(HOUR_MS)),),
    ),
    Feature("lease", "queue with x-expires", number_entry("x-expires", HOUR_MS)),
    Feature("dlx", "queue with a dead letter exchange", TO_GRAVE),
    Feature(
        "dead_letters",
        "the same; each message is rejected, and consumed from a second queue",
        TO_GRAVE,
        rejects=True,
    ),
    Feature(
        "priority_property",
        "messages with a priority, plain queue",
        blocks=(properties(priority=3),),
    ),
    Feature(
        "priority_5",
        "queue with x-max-priority 5, one priority",
        number_entry("x-max-priority", 5),
        (properties(priority=3),),
    ),
    Feature(
        "priority_10",
        "queue with x-max-priority 10, one priority",
        number_entry("x-max-priority", 10),
        (properties(priority=3),),
    ),
    Feature(
        "priorities_mixed",
        "queue with x-max-priority 5, another priority with every message",
        number_entry("x-max-priority", 5),
        tuple(properties(priority=number) for number in range(5)),
        beside_same=True,
    ),
    Feature(
        "max_length",
        "queue with x-max-length, not reached",
        number_entry("x-max-length", 1_000_000),
    ),
    Feature(
        "max_length_bytes",
        "queue with x-max-length-bytes, not reached",
        number_entry("x-max-length-bytes", 2_000_000_000),
    ),
    Feature(
        "reject_publish",
        "queue with x-max-length and reject-publish, not reached",
        number_entry("x-max-length", 1_000_000) + text_entry("x-overflow", "reject-publish"),
    ),
    Feature(
        "other_headers",
        "messages of which each has another header, plain queue",
        blocks=(HEADER,),
        has_numbers=True,
    ),
    Feature(
        "dedup_queue",
        "de-duplicating queue, keys go with their messages",
        DEDUP,
        (HEADER,),
        has_numbers=True,
        beside_same=True,
    ),
    Feature(
        "dedup_queue_window",
        "de-duplicating queue, the last 100,000 keys",
        DEDUP + number_entry("x-cache-size", 100_000),
        (HEADER,),
        has_numbers=True,
        beside_same=True,
    ),
    Feature(
        "dedup_exchange",
        "de-duplicating exchange, the last 100,000 keys",
        blocks=(HEADER,),
        has_numbers=True,
        exchange_kind="fanout",
        exchange=DEDUP + number_entry("x-cache-size", 100_000),
        beside_same=True,
    ),
    Feature("delivery_limit", "queue with x-delivery-limit", number_entry("x-delivery-limit", 5)),
    Feature("single_active", "single active consumer", true_entry("x-single-active-consumer")),
    Feature("quorum", "queue of type quorum", text_entry("x-queue-type", "quorum")),
    Feature("stream", "stream", is_stream=True),
    Feature(
        "delayed_exchange",
        "delaying exchange, messages without a delay",
        exchange_kind="x-delayed-message",
        exchange=text_entry("x-delayed-type", "fanout"),
    ),
)


class FeatureError(Exception):
    """A round failed."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one round showed, per published message."""

    rate_per_s: float
    cpu_us: float


def played(server: Server, shape: Shape) -> Figures:
    """Play one round.

    Raises:
        FeatureError: a message is missing, doubled or left over.
    """
    server.require_alive()
    one = play(server, shape)
    if one.error:
        raise FeatureError(one.error)
    fan = shape.publishers[0].fan_count
    return Figures(one.values["delivered_per_s"] / fan, one.values.get("cpu_us", 0.0) * fan)


def measured(server: Server, feature: Feature, size: int, round_count: int) -> Row:
    """Play a feature's rounds, each beside one of the plain queue."""
    pairs: list[tuple[Figures, Figures]] = []
    for number in range(round_count):
        if number % 2:
            with_it = played(server, feature.shape(size))
            pairs.append((played(server, feature.plain(size)), with_it))
        else:
            without = played(server, feature.plain(size))
            pairs.append((without, played(server, feature.shape(size))))
    shares = [with_it.rate_per_s / without.rate_per_s for without, with_it in pairs]
    cpu_shares = [without.cpu_us / with_it.cpu_us for without, with_it in pairs if with_it.cpu_us]
    row: Row = {
        "name": feature.name,
        "what": feature.what,
        "body_octets": size,
        "window": WINDOWS[size],
        "rounds": round_count,
        "beside": "plain queue, same messages" if feature.beside_same else "plain queue",
        "share": round(statistics.median(shares), 2),
        "share_low_high": [round(min(shares), 2), round(max(shares), 2)],
        "plain_per_s": round(statistics.median(one.rate_per_s for one, _ in pairs)),
        "rate_per_s": round(statistics.median(one.rate_per_s for _, one in pairs)),
        "plain_cpu_us": round(statistics.median(one.cpu_us for one, _ in pairs), 2),
        "cpu_us": round(statistics.median(one.cpu_us for _, one in pairs), 2),
    }
    if cpu_shares:
        row["cpu_share"] = round(statistics.median(cpu_shares), 2)
    return row


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser(prog="python -m bench.features", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these features")
    made.add_argument("--list", action="store_true", help="list the features and stop")
    made.add_argument("--size", nargs="+", type=int, choices=WINDOWS, default=list(WINDOWS))
    made.add_argument("--rounds", type=int, default=5, help="pairs of rounds of each (5)")
    made.add_argument("--vouchmq", default=DEFAULT_VOUCHMQ, metavar="CMD-or-URL")
    made.add_argument("--out", type=Path, metavar="FILE", help="JSON; other rows in it are kept")
    made.add_argument("--gate", action="store_true", help="exit 1 when a share is below 0.5")
    return made


def chosen(names: Sequence[str]) -> list[Feature]:
    """Pick features by name, all of them when none is named.

    Raises:
        ValueError: a name that is none.
    """
    known = {feature.name: feature for feature in FEATURES}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no feature {', '.join(unknown)}; there are: {', '.join(known)}")
    return [known[name] for name in names] if names else list(FEATURES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; 1 when a round failed or, with --gate, a target."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    try:
        features = chosen(options.only)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(f"{feature.name:20} {feature.what}" for feature in features))
        return 0
    rows: list[Row] = []
    failed = False
    with tempfile.TemporaryDirectory(prefix="vouchmq-bench-") as directory:
        work_dir = Path(directory)
        with servers.vouchmq(options.vouchmq, work_dir) as server:
            for size in options.size:
                play(server, plain(size).quick())  # the first round finds nothing prepared
                for feature in features:
                    try:
                        row = measured(server, feature, size, options.rounds)
                    except FeatureError as error:
                        row, failed = {"name": feature.name, "error": str(error)}, True
                    rows.append(row)
                    print(json.dumps(row), flush=True)
            where = conditions(work_dir)
    if options.out:
        command = "python -m bench.features " + " ".join(given)
        before = json.loads(options.out.read_text())["features"] if options.out.exists() else []
        results = {"command": command, "conditions": where, "features": merged(before, rows)}
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    failed |= options.gate and any(is_missed(row) for row in rows)
    return int(failed)


def merged(before: list[Row], rows: list[Row]) -> list[Row]:
    """New rows in the place of older ones of the same name and size; the others are kept."""
    found = {(row["name"], row.get("body_octets")): row for row in before}
    found |= {(row["name"], row.get("body_octets")): row for row in rows}
    return list(found.values())


def is_missed(row: Row) -> bool:
    """Whether a feature costs more than it may."""
    share = row.get("share")
    return isinstance(share, float) and share < LEAST_SHARE


if __name__ == "__main__":
    sys.exit(main())
