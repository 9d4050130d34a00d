"""What standbys tell their leader beside the log: where they are.

    standby ── Report, once a second ─▶ `vqnodes.<log>.reports` ─▶ leader
    leader that waits for a standby ── after each record ─▶ `vqnodes.<log>.commits` ─▶ standby,
        which reads and syncs at once, and reports that

These are plain messages, which no server stores and which may get lost, on subjects of no stream.
No argument for safety rests on them, with one exception: where confirms wait for a standby, its
report counts if it names a record that the leader has committed (`standby_syncs.py`). A message
that is lost costs time, and the next report tells the same.

Reports are JSON, and fields that a reader does not know are passed over, so that brokers of two
versions understand each other. A leader's message is empty.
"""

from __future__ import annotations

from typing import Annotated, Final

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


class Topics:
    """The subjects beside a log."""

    def __init__(self, log: str) -> None:
        self.reports = f"vqnodes.{log}.reports"
        self.commits = f"vqnodes.{log}.commits"


def encode(message: Report) -> bytes:
    """What is sent."""
    return json.encode(message)


def parse_report(payload: bytes, log: str) -> Report:
    """What a standby of this log has sent.

    Raises:
        ReportError: it is none
    """
    if len(payload) > MOST_BYTES:
        raise ReportError(f"it has {len(payload)} bytes")
    try:
        report = json.decode(payload, type=Report)
    except (DecodeError, ValidationError) as error:
        raise ReportError(str(error)) from error
    if report.log != log:
        raise ReportError(f"it is about the log {report.log[:64]!r}, this is {log}")
    if not report.node.isprintable():
        raise ReportError("the name of its node is none")
    if not report.address.isprintable():
        raise ReportError("its address is none")
    return report
