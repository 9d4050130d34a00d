"""A log of a stopped broker's data directory: `vouchmq ha create --from` and `vouchmq ha rescue`.

    the stream is looked at ─▶ it is made ─▶ the directory belongs to the new log ─▶ the origin
    ─▶ `LogCopy` ─▶ the directory says that it has all of the log

What holds:

- No record of a stream is ever removed or written over: a stream that has any is refused, unless
  they are an unfinished copy of this very directory, which is then continued.
- From before the first record on, the directory says that it belongs to the new log and has nothing
  of it. So a broker that is started there compares all of it, whenever the copying was interrupted.
- The sequences of a new stream begin far behind those that the directory has seen. Whoever follows
  the log that was lost, under the same name, finds nothing at the sequences that he knows: neither
  can a leader of it append, nor can a standby take the new log for its own.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vouchmq.server.edge.replicated import engine as e
from vouchmq.server.replication.jetstream import STREAM_NOT_FOUND, JetStreamError
from vouchmq.store.recovery.recover import clean_up
from vouchmq.store.replication import record
from vouchmq.store.replication.copy_source import CopySource
from vouchmq.store.replication.log_copy import LogCopy
from vouchmq.store.replication.log_view import START
from vouchmq.store.replication.position_file import PositionFile, read_positions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vouchmq.server.edge.replicated.engine import Engine
    from vouchmq.store.disk import Disk
    from vouchmq.store.recovery.summary_check import SummaryCheck
    from vouchmq.store.replication.log_view import Position
    from vouchmq.store.replication.position_file import StoredPosition

# Sequences of a new log begin behind the next multiple of this.
SEQUENCE_STEP: Final = 1_000_000_000
LOOK_S: Final = 0.5
# The writer's own look at the age of a record, in looks.
WRITER_LOOKS: Final = 4
# So long nothing may be committed until it is said why.
PATIENCE_S: Final = 5.0


class CopyError(Exception):
    """The directory cannot be the beginning of a log, for this reason."""


@dataclass(frozen=True)
class NewStream:
    """What a stream is made with.

    Args:
        replicas: servers that keep each record
        max_bytes: -1: as much as the servers may store
        is_replacement: of the log to which the directory belongs
    """

    replicas: int
    max_bytes: int
    is_replacement: bool


@dataclass(frozen=True)
class Copied:
    """A log that begins with a directory; `is_new`: it was completed now."""

    log_id: bytes
    block: int
    lsn: int
    size_bytes: int
    is_new: bool


class _Ending:
    """A `CopyOwner` that can be waited for."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def copied(self, at: Position) -> None:
        if not self.future.done():
            self.future.set_result(at)

    def failed(self, reason: str) -> None:
        if not self.future.done():
            self.future.set_exception(CopyError(reason))


async def copy(
    engine: Engine,
    disk: Disk,
    checked: SummaryCheck,
    stream: NewStream,
    name: str,
    *,
    progress: Callable[[int, int], None],
    say: Callable[[str], None],
) -> Copied:
    """Make a log of a directory, which is locked and undamaged, and make that a node of the log.

    Args:
        engine: where the log is to be
        disk: the directory
        checked: what counts in it
        stream: how it is made if it does not exist
        name: written into claims
        progress: told how many of how many bytes the log has
        say: told why nothing goes on

    Raises:
        CopyError: the log cannot be made, or not in this stream
        JetStreamError: the servers of the log refuse, or do not answer
        StoreError: the directory has changed
        OSError: the disk refused
    """
    extents = checked.verdict.accepted
    source = CopySource(disk, extents)
    end = extents[-1]
    try:
        place = await _find_place(engine, disk, source, stream, end.last_number)
        log_id = place.log_id
        if not place.is_complete:
            clean_up(disk, checked)
            log_id = await _fill(engine, disk, source, place, name, progress, say)
    finally:
        source.close()
    is_new = not place.is_complete
    return Copied(log_id, end.last_number, end.next_lsn - 1, source.size_bytes, is_new)


async def _fill(
    engine: Engine,
    disk: Disk,
    source: CopySource,
    place: _Place,
    name: str,
    progress: Callable[[int, int], None],
    say: Callable[[str], None],
) -> bytes:
    """Have all of the directory in the log, and have it say so; the id of the log."""
    position = PositionFile(disk)
    try:
        log_id = place.log_id or await _begin(engine, position, place.last)
        at = await _copy(engine, source, log_id, name, progress, say)
        position.put(log_id, at)
    finally:
        position.close()
    return log_id


@dataclass(frozen=True)
class _Place:
    """Where the log is to be.

    Args:
        last: sequence behind which it is to begin
        log_id: of the one that an earlier attempt has begun
        is_complete: that has all of the directory
    """

    last: int = 0
    log_id: bytes = b""
    is_complete: bool = False


async def _find_place(
    engine: Engine, disk: Disk, source: CopySource, stream: NewStream, last_block: int
) -> _Place:
    """Where the log is to begin, or has begun.

    Raises:
        CopyError: the stream has something else
        JetStreamError: nobody answers, or no stream can be made
    """
    positions = read_positions(disk)
    seen = max((each.at.sequence for each in positions), default=0)
    last = (seen // SEQUENCE_STEP + 1) * SEQUENCE_STEP if seen > 0 else 0
    try:
        state = (await e.ask_info(engine)).state
    except JetStreamError as error:
        if error.code != STREAM_NOT_FOUND:
            raise
        _require_no_other(positions, stream)
        _require_room(source, stream)
        await e.create_stream(
            engine,
            replicas=stream.replicas,
            max_bytes=stream.max_bytes,
            first_sequence=last + 1,
        )
        return _Place(last)
    if not state.messages:
        _require_no_other(positions, stream)
        if state.last_seq < seen:
            raise CopyError(
                f"the stream {engine.stream} was made anew, and nodes of the lost log could take it"
                " for that one: remove it, this command makes it"
            )
        _require_room(source, stream)
        await e.set_up_empty(engine, replicas=stream.replicas, max_bytes=stream.max_bytes)
        return _Place(state.last_seq)
    found = await e.find_log(engine)
    if found is None or not positions or found.log_id != positions[0].log_id:
        raise CopyError(_refusal(engine.stream, found))
    at = positions[0].at
    is_end = (at.sequence, at.checksum) == (found.sequence, found.checksum)
    if found.is_finished and (at == START or is_end) and last_block <= found.block:
        # No broker has begun to write since: nothing can be here that the log has not had.
        return _Place(log_id=found.log_id, is_complete=True)
    if found.is_finished or at != START:
        raise CopyError(_refusal(engine.stream, found, is_own=True))
    return _Place(log_id=found.log_id)


def _require_room(source: CopySource, stream: NewStream) -> None:
    """See that the stream may have the directory.

    Raises:
        CopyError: it may not
    """
    if 0 <= stream.max_bytes < source.size_bytes:
        raise CopyError(
            f"the directory has {source.size_bytes} bytes, and the log may have"
            f" {stream.max_bytes}: give --max-bytes more"
        )


def _require_no_other(positions: Sequence[StoredPosition], stream: NewStream) -> None:
    """See that the directory is taken away from no log by mistake; one that was begun is its own.

    Raises:
        CopyError: it belongs to one
    """
    if positions and positions[0].at != START and not stream.is_replacement:
        raise CopyError(
            f"the directory belongs to the log {positions[0].log_id.hex()}: vouchmq ha rescue makes"
            " a new log in place of that one"
        )


def _refusal(stream: str, found: e.LogFound | None, *, is_own: bool = False) -> str:
    begin = ""
    if found is None:
        what = "records, but no beginning of a log"
    elif is_own:
        what = "the log to which this directory belongs, or what is left of it"
        begin = "start the brokers if nothing of it is lost; otherwise "
    elif not found.is_finished:
        what = "the unfinished copy of another directory"
    else:
        what = f"another log, {found.log_id.hex()}"
    return (
        f"the stream {stream} has {what}: {begin}give the new log another name with --ha-stream,"
        " and all brokers the same ha_stream, or remove that stream yourself"
        f" (nats stream rm {stream})"
    )


async def _begin(engine: Engine, position: PositionFile, last: int) -> bytes:
    """Have the directory belong to a new log, and append its origin; return the id of the log."""
    log_id = secrets.token_bytes(record.ID_SIZE)
    position.put(log_id, START)
    await e.append_origin(engine, record.origin(log_id, record.COPIED), last)
    return log_id


async def _copy(
    engine: Engine,
    source: CopySource,
    log_id: bytes,
    name: str,
    progress: Callable[[int, int], None],
    say: Callable[[str], None],
) -> Position:
    """Have all of the source in the log.

    Raises:
        CopyError: that is not possible
    """
    loop = asyncio.get_running_loop()
    log = engine.log(loop)
    ending = _Ending()
    job = LogCopy(log, engine.subjects, source, log_id, ending)
    log.start(job)
    looks = done = 0
    heard_at = loop.time()
    try:
        job.start(name, secrets.token_bytes(record.NONCE_SIZE))
        while not (await asyncio.wait([ending.future], timeout=LOOK_S))[0]:
            looks += 1
            if not looks % WRITER_LOOKS:
                job.tick()
            if job.committed_bytes != done:
                done, heard_at = job.committed_bytes, loop.time()
            elif loop.time() - heard_at >= PATIENCE_S and log.trouble:
                say(log.trouble)
            progress(done, source.size_bytes)
        return await ending.future
    finally:
        log.stop()
