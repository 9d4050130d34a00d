"""What a replay does to each message, and how fast: runs in the tasks, over columns of Arrow.

Headers that a broker put in on delivery are cut out, one is added that says where the message comes
from; what else is left out is asked for. All other octets stay. Knows Arrow, and not Spark.

Spec: PUB-06, STREAM-16, SEQ-01
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from vouchmq.spark.sink.property_edit import (
    EXPIRATION,
    USER_ID,
    Parts,
    RawPropertiesError,
    edited,
    header,
)

REPLAYED_FROM: Final = "x-replayed-from"
# Put in by an earlier replay.
ADDED: Final = frozenset({REPLAYED_FROM.encode()})
# Put in by the broker on delivery, and always numbers: what else has such a name is a publisher's.
NUMBERS: Final = frozenset({b"x-stream-offset", b"x-queue-seq", b"x-queue-id", b"x-delivery-count"})
DEATH: Final = frozenset(
    {
        b"x-death",
        b"x-first-death-exchange",
        b"x-first-death-queue",
        b"x-first-death-reason",
        b"x-last-death-exchange",
        b"x-last-death-queue",
        b"x-last-death-reason",
    }
)
# After a longer halt of the broker its messages do not come all at once.
_MADE_UP_FOR_S: Final = 1.0
NO_PROPERTIES: Final = b"\0\0"


class EditError(ValueError):
    """Properties that cannot be edited; the text says whose."""


@dataclass(frozen=True)
class Edit:
    """What is changed.

    Attributes:
        archive: its name, for `x-replayed-from`
        user: of the connection; a `user_id` that is another one's would be refused (PUB-06)
        drops_death: also the history of dead-lettering is left out
        keeps_expiration: a message may expire as soon as it is back
    """

    archive: str
    user: str
    drops_death: bool = False
    keeps_expiration: bool = False

    def on(self, raws: pa.Array, queues: pa.Array, offsets: pa.Array) -> pa.Array:
        """The properties to publish with.

        Raises:
            EditError: some are no properties; they were archived as the broker gave them.
        """
        drop = ADDED | DEATH if self.drops_death else ADDED
        user = self.user.encode()
        added = header(REPLAYED_FROM, self.archive)
        always = 0 if self.keeps_expiration else EXPIRATION
        made: list[bytes] = []
        for row, raw in enumerate(raws.to_pylist()):
            if raw is None:
                raw = NO_PROPERTIES
            try:
                without = always
                flags = raw[0] << 8 | raw[1] if len(raw) > 1 else 0
                if flags & USER_ID and Parts(raw).text(USER_ID) != user:
                    without |= USER_ID
                made.append(
                    edited(raw, drop=drop, drop_numbers=NUMBERS, without=without, add=added)
                )
            except RawPropertiesError as error:
                at = offsets[row].as_py()
                where = f"offset {at} of " if at is not None else ""
                raise EditError(
                    f"the message at {where}queue '{queues[row].as_py()}' cannot be replayed: "
                    f"{error}; leave it out with --where"
                ) from None
        return pa.array(made, pa.binary())

    def at_rate(
        self, rate: float | None, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> Callable[[Iterator[tuple[pa.Array, ...]]], Iterator[pa.Array]]:
        """The edit of a task's columns, batch by batch: no more than so many rows a second.

        Args:
            rate: messages a second, None: as fast as it goes
            clock: seconds
            sleep: waits for so many seconds
        """

        def edit(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
            began: float | None = None
            rows = 0
            for columns in batches:
                made = self.on(*columns)
                if rate is not None:
                    now = clock()
                    began = now if began is None else began
                    # These rows are due when those before them have had their time.
                    early = began + rows / rate - now
                    if early < -_MADE_UP_FOR_S:
                        began -= early
                    sleep(max(0.0, early))
                    rows += len(made)
                yield made

        return edit


def real_time(edit: Edit, rate: float | None) -> Callable[..., Iterator[pa.Array]]:
    """As `Edit.at_rate`, by the machine's own clock."""
    return edit.at_rate(rate, time.monotonic, time.sleep)
