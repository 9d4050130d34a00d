"""One `publish_many` on its way: chunks out, confirms in, never more than a window apart.

Confirms are read between chunks without waiting, and waited for only when the window is full or
everything is sent.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vouchmq.kit.bulk.confirms import Confirms, Row
from vouchmq.kit.bulk.errors import BulkTimeout
from vouchmq.kit.bulk.publish import CHUNK_ROWS, AnyRow, Encoder

if TYPE_CHECKING:
    from vouchmq.kit.bulk.ports import PublishingChannel


class PublishRun:
    """The rows of one call, sent and settled."""

    def __init__(
        self,
        channel: PublishingChannel,
        confirms: Confirms,
        window: int,
        timeout_s: float,
        *,
        is_confirming: bool,
    ) -> None:
        self._channel = channel
        self._connection = channel.connection
        self._confirms = confirms
        self._window = window
        self._timeout_s = timeout_s
        self._is_confirming = is_confirming
        self._quiet_since = time.monotonic()
        self.sent = 0

    def send(self, rows: Iterator[AnyRow], encoder: Encoder) -> None:
        """Send all rows, with as many unconfirmed as the window allows."""
        size = min(CHUNK_ROWS, self._window)
        while True:
            self._wait_for_room(size)
            chunk: list[Row] = []
            parts = encoder.chunk(rows, size, self.sent, chunk)
            if not chunk:
                return
            self._confirms.note(self.sent, chunk)
            # Counted before it is written: a write that fails half way may have sent it.
            self.sent += len(chunk)
            self._connection.write(b"".join(parts))
            self._quiet_since = time.monotonic()

    def finish(self) -> None:
        """Wait for what is still unconfirmed."""
        if not self._is_confirming:
            self._channel.fence()
            self.take()
            return
        while self._confirms.outstanding(self.sent):
            self._step(self._timeout_s)

    def take(self) -> None:
        """Take the outcomes that have come."""
        if self._confirms.take(self._channel.inbox.outcomes, self.sent):
            self._quiet_since = time.monotonic()

    def _wait_for_room(self, size: int) -> None:
        """Until another chunk may be sent; reads what has come in any case."""
        self._step(0.0)
        while not self._channel.may_publish or (
            self._is_confirming and self._confirms.outstanding(self.sent) > self._window - size
        ):
            self._step(self._timeout_s)

    def _step(self, limit_s: float) -> None:
        """Read once, waiting for something at most `limit_s` in all since it was quiet."""
        channel = self._channel
        outcomes = channel.inbox.outcomes
        if not outcomes:
            left = limit_s and self._quiet_since + self._timeout_s - time.monotonic()
            if left < 0:
                raise BulkTimeout(self._silence())
            could = channel.may_publish
            self._connection.poll_until(
                lambda: (
                    bool(outcomes) or channel.ended is not None or channel.may_publish is not could
                ),
                left,
            )
        self.take()
        ended = channel.ended
        if ended is not None:
            raise ended.again()

    def _silence(self) -> str:
        missing = self._confirms.outstanding(self.sent)
        text = f"no confirm in {self._timeout_s:g} s; {missing} publishes are unconfirmed"
        if not self._channel.may_publish:
            reason = self._connection.blocked_reason or "channel.flow"
            text += f"; the broker has blocked publishing: {reason}"
        return text
