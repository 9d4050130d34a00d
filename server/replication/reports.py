"""What nodes tell each other beside the log: where a standby is, that a busy leader works.

    standby ── Report, once a second ─▶ `vqnodes.<log>.reports` ─▶ leader
    leader that waits for a standby ── after each record ─▶ `vqnodes.<log>.commits` ─▶ standby,
        which reads and syncs at once, and reports that
    beside a leader whose loop is busy ── Sign ─▶ `vqnodes.<log>.signs` ─▶ standby, which waits

These are plain messages, which no server stores and which may get lost, on subjects of no stream.
No argument for safety rests on them, with one exception: where confirms wait for a standby, its
report counts if it names a record that the leader has committed (`standby_syncs.py`). A message
that is lost costs time, and the next report tells the same.

Reports and signs are JSON, and fields that a reader does not know are passed over, so that brokers
of two versions understand each other. A leader's own message is empty.
"""

from __future__ import annotations

from typing import Annotated, Final, Protocol, TypeVar

import msgspec
from msgspec import DecodeError, Meta, ValidationError, json

# More is no message of a node.
MOST_BYTES: Final = 8192

Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
# Before the first record that is -1.
RecordNumber = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
Seconds = Annotated[float, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
Address = Annotated[str, Meta(max_length=300)]


class ReportError(Exception):
    """A message is none of a node of this log; says why in one line."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Where a standby is.

    Args:
        log: id of the log, in hexadecimal
        node: its name
        address: where it would serve clients; empty if it does not say
        epoch: of the last record that it has applied
        sequence: up to which it has applied the log
        generation: of the segment in which that is
        offset: where in that segment
        synced_sequence: up to which its directory will say that it has everything, after any crash
        synced_number: number of the record there
        synced_checksum: of that record
        synced_lsn: highest LSN up to there
        is_whole: nothing of its directory is damaged or missing
        can_take_over: it is whole, has the log, and the log answers it
        lag: messages of the log that it has not applied
        lag_s: age of its copy
    """

    log: str
    node: Name
    epoch: Number
    sequence: Number
    generation: Number
    offset: Number
    synced_sequence: Number
    synced_number: RecordNumber
    synced_checksum: Number
    synced_lsn: Number
    is_whole: bool
    can_take_over: bool
    lag: Number
    lag_s: Seconds
    address: Address = ""


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """A leader whose loop is busy, and when it was last seen to get on.

    It tells ages, not totals. Signs get lost, and of a total that a standby has not heard before it
    cannot know when it was reached.

    Args:
        log: id of the log, in hexadecimal
        node: its name
        epoch: of its claim
        step_age_s: since a step of its recovery was done, or since it was claimed
        work_age_s: since its loop has run, or the loop's thread has used the processor
    """

    log: str
    node: Name
    epoch: Number
    step_age_s: Seconds
    work_age_s: Seconds


class _Message(Protocol):
    """What every message says."""

    @property
    def log(self) -> str:
        """Id of the log."""

    @property
    def node(self) -> str:
        """Who says it."""


T = TypeVar("T", bound=_Message)


class Topics:
    """The subjects beside a log."""

    def __init__(self, log: str) -> None:
        self.signs = f"vqnodes.{log}.signs"
        self.reports = f"vqnodes.{log}.reports"
        self.commits = f"vqnodes.{log}.commits"


def encode(message: Report | Sign) -> bytes:
    """What is sent."""
    return json.encode(message)


def parse_report(payload: bytes, log: str) -> Report:
    """What a standby of this log has sent.

    Raises:
        ReportError: it is none
    """
    report = _parse(payload, log, Report)
    if not report.address.isprintable():
        raise ReportError("its address is none")
    return report


def parse_sign(payload: bytes, log: str) -> Sign:
    """What was sent beside a leader of this log.

    Raises:
        ReportError: it is none
    """
    return _parse(payload, log, Sign)


def _parse(payload: bytes, log: str, kind: type[T]) -> T:
    if len(payload) > MOST_BYTES:
        raise ReportError(f"it has {len(payload)} bytes")
    try:
        message = json.decode(payload, type=kind)
    except (DecodeError, ValidationError) as error:
        raise ReportError(str(error)) from error
    if message.log != log:
        raise ReportError(f"it is about the log {message.log[:64]!r}, this is {log}")
    if not message.node.isprintable():
        raise ReportError("the name of its node is none")
    return message
