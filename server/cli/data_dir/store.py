"""`vouchmq store check` and `store dump`: what a data directory holds, in words an operator reads.

    data directory (read only) → inspection → names of queues, properties → terminal, text, JSON

It prints. Nothing is decided here but how things look. Exit codes: 0 nothing wrong,
1 damage was found, 2 the directory cannot be read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TextIO

from vouchmq.protocol.errors import AmqpError
from vouchmq.protocol.fields import Field, decode_shortstr, render
from vouchmq.protocol.properties import Properties
from vouchmq.protocol.text import shown_values
from vouchmq.server.broker import definitions as d
from vouchmq.server.cli.data_dir.store_names import Names, clean
from vouchmq.server.cli.tables import print_table
from vouchmq.server.cli.units import plural
from vouchmq.store.disk import ReadOnlyDisk
from vouchmq.store.errors import DataDirUnreadable, StoreError
from vouchmq.store.inspection import (
    Contents,
    Damaged,
    Inspection,
    Inspector,
    QueueView,
    StoredMessage,
)

EXIT_CLEAN: Final = 0
EXIT_DAMAGED: Final = 1
EXIT_UNREADABLE: Final = 2
# Beside a running broker a file may go away, or seem to be missing, while we look.
ATTEMPTS: Final = 4
FIRST_OCTETS: Final = 32
# A header frame and the beginning of the body mostly fit in here.
LEAD_BYTES: Final = 4096
FRAME_HEADER_SIZE: Final = 7
FRAME_OVERHEAD: Final = 8
CONTENT_HEADER_SIZE: Final = 12
PROPERTIES: Final = (
    *("content_type", "content_encoding", "headers", "delivery_mode", "priority"),
    *("correlation_id", "reply_to", "expiration", "message_id", "timestamp", "type"),
    *("user_id", "app_id", "cluster_id"),
)


@dataclass(slots=True)
class Found:
    """One data directory as it was looked at."""

    path: Path
    holder: int | None
    inspector: Inspector
    inspection: Inspection
    names: Names


def look(directory: Path) -> Found:
    """Read a data directory.

    Raises:
        StoreError: it cannot be read, is no data directory or is of a newer format
        OSError: the disk refused
    """
    disk = ReadOnlyDisk(directory)
    for attempt in range(1, ATTEMPTS + 1):
        is_last = attempt == ATTEMPTS
        inspector = Inspector(disk)
        try:
            inspection = inspector.inspect()
        except FileNotFoundError:
            if is_last:
                raise
            continue
        holder = disk.holder()
        if is_last or holder is None or not inspection.damaged:
            break
    if not inspection.version and not inspection.quarantined:
        raise DataDirUnreadable(f"{directory} contains no VouchMQ journal")
    names = Names()
    for record in inspection.definitions:
        try:
            names.add(d.decode(record))
        except d.BadDefinition:
            names.unreadable += 1
    return Found(directory, holder, inspector, inspection, names)


def check(directory: Path, *, as_json: bool, out: TextIO | None = None) -> int:
    """Print what a data directory holds; returns the exit code."""
    out = sys.stdout if out is None else out
    try:
        found = look(directory)
        if as_json:
            print(json.dumps(shown_values(_document(found)), indent=2), file=out)
        else:
            _print_found(found, out)
    except BrokenPipeError:
        return _stop_talking()
    except (StoreError, OSError) as error:
        return complain(directory, error)
    return _exit_code(found.inspection)


def dump(
    directory: Path,
    *,
    queue: str | None,
    vhost: str | None,
    as_json: bool,
    out: TextIO | None = None,
) -> int:
    """Print every live message, of one queue or of all; returns the exit code."""
    out = sys.stdout if out is None else out
    try:
        found = look(directory)
        wanted = _wanted(found.names, queue, vhost)
        disk = ReadOnlyDisk(directory)
        contents = Contents(disk)
        try:
            for message in found.inspector.messages():
                ids = [
                    each
                    for each in message.queue_ids
                    if wanted is None or found.names.owner(each) in wanted
                ]
                if ids:
                    _print_message(_describe(found, message, ids, contents), as_json, out)
        finally:
            contents.close()
        if found.holder is not None and not as_json:
            sys.stderr.write(_beside(found.holder) + "\n")
    except BrokenPipeError:
        return _stop_talking()
    except (StoreError, OSError) as error:
        return complain(directory, error)
    return _exit_code(found.inspection)


def _exit_code(inspection: Inspection) -> int:
    return EXIT_DAMAGED if inspection.damaged or inspection.unroutable else EXIT_CLEAN


def _stop_talking() -> int:
    """Whoever read our output has had enough."""
    with suppress(OSError):
        sys.stdout = open("/dev/null", "w", encoding="ascii")  # noqa: PTH123, SIM115 - to the end
    return EXIT_CLEAN


def complain(directory: Path, error: Exception) -> int:
    """Say why a directory cannot be read; the exit code."""
    reason = str(error)
    if isinstance(error, OSError):
        reason = f"cannot read {error.filename or directory}: {error.strerror or error}"
    sys.stderr.write(f"vouchmq: {reason}\n")
    return EXIT_UNREADABLE


def _wanted(names: Names, queue: str | None, vhost: str | None) -> frozenset[int] | None:
    if queue is None and vhost is None:
        return None
    wanted = frozenset(
        queue_id
        for queue_id, (of_vhost, name) in names.queues.items()
        if (queue is None or name == queue) and (vhost is None or of_vhost == vhost)
    )
    if not wanted:
        where = f" in virtual host '{clean(vhost)}'" if vhost is not None else ""
        what = "queue" if queue is None else f"queue '{clean(queue)}'"
        raise StoreError(f"the definitions have no {what}{where}")
    return wanted


# What a directory holds, as text.


def _print_found(found: Found, out: TextIO) -> None:
    inspection, names = found.inspection, found.names
    if found.holder is not None:
        print(_beside(found.holder), file=out)
    lines = [
        f"data directory  {found.path}",
        f"format          {inspection.version or 'none'}",
        f"LSNs            up to {inspection.next_lsn - 1}",
        f"messages        {inspection.messages}",
        f"notes           {sum(inspection.notes.values())}",
        f"definitions     {plural(len(names.vhosts), 'virtual host')}, "
        f"{plural(len(names.exchanges), 'exchange')}, {plural(len(names.queues), 'queue')}, "
        f"{plural(len(names.bindings), 'binding')}",
        f"torn tail       {_size_text(inspection.torn_bytes) if inspection.torn_bytes else 'none'}",
        f"sealed          {'yes, by a clean shutdown' if inspection.is_sealed else 'no'}",
    ]
    print("\n".join(lines), file=out)
    if names.unreadable:
        print(f"{names.unreadable} definitions cannot be read by this version", file=out)
    _print_table(
        "segments",
        ("segment", "size", "used", "blocks", "live copies", "live bytes", ""),
        [
            (
                each.name,
                _size_text(each.size_bytes),
                _size_text(each.used_bytes),
                str(each.blocks),
                str(each.live_copies),
                _size_text(each.live_bytes),
                "damaged" if each.is_damaged else "",
            )
            for each in inspection.segments
        ],
        out,
    )
    _print_table(
        "queues",
        ("queue", "id", "messages", "bytes", "first LSN", "last LSN", "redelivered"),
        [
            (names.of_queue(queue_id), str(queue_id), *_of_queue(view))
            for queue_id, view in _all_queues(found).items()
        ],
        out,
    )
    print(file=out)
    for damage in inspection.damaged:
        print(_of_damage(damage, names), file=out)
    if inspection.unroutable:
        print(
            f"{inspection.unroutable} messages are intact, but their queues are unknown", file=out
        )
    for name in inspection.quarantined:
        print(f"quarantined by an earlier recovery: {name}", file=out)
    print("damage was found" if _exit_code(inspection) else "no damage", file=out)


def _all_queues(found: Found) -> dict[int, QueueView]:
    """Queues that are defined, and those that have messages without being so."""
    views = dict.fromkeys(found.names.queues, QueueView())
    for store_id, view in found.inspection.queues.items():
        queue_id = found.names.owner(store_id)
        views[queue_id] = _together(views.get(queue_id, QueueView()), view)
    return dict(sorted(views.items()))


def _together(one: QueueView, other: QueueView) -> QueueView:
    """Two levels of a queue as one."""
    return QueueView(
        one.count + other.count,
        one.size_bytes + other.size_bytes,
        min(filter(None, (one.first_lsn, other.first_lsn)), default=0),
        max(one.last_lsn, other.last_lsn),
        one.redelivered + other.redelivered,
    )


def _of_queue(view: QueueView) -> tuple[str, str, str, str, str]:
    if not view.count:
        return ("0", "0", "", "", "")
    size = _size_text(view.size_bytes)
    return (
        str(view.count),
        size,
        str(view.first_lsn),
        str(view.last_lsn),
        str(view.redelivered),
    )


def _of_damage(damage: Damaged, names: Names) -> str:
    lost = max(0, damage.last_lsn - damage.first_lsn + 1)
    where = f"{damage.segment} at offset {damage.offset}, {_size_text(damage.size_bytes)}"
    queues = ", ".join(names.of_queues(damage.queue_ids)) or "unknown"
    what = f"LSNs {damage.first_lsn} to {damage.last_lsn} ({lost})" if lost else "no message"
    return f"DAMAGED: {where}: may have lost {what}; affected queues: {queues}"


def _beside(holder: int) -> str:
    who = f"process {holder}" if holder else "a process"
    return f"note: {who} uses this directory; the figures are a snapshot"


def _size_text(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"


def _print_table(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO
) -> None:
    if not rows:
        print(f"\nno {title}", file=out)
        return
    print(file=out)
    # The first is a name, the last of segments a word.
    numbers = frozenset(at for at, head in enumerate(heads) if at and head)
    print_table(title, heads, rows, out, numbers=numbers)


# The same for programs.


def _document(found: Found) -> dict[str, object]:
    inspection, names = found.inspection, found.names
    return {
        "directory": str(found.path),
        "served_by": found.holder,
        "format": inspection.version,
        "next_lsn": inspection.next_lsn,
        "messages": inspection.messages,
        "notes": sum(inspection.notes.values()),
        "torn_bytes": inspection.torn_bytes,
        "is_sealed": inspection.is_sealed,
        "vhosts": names.vhosts,
        "exchanges": [
            {"vhost": vhost, "name": name, "type": kind}
            for (vhost, name), kind in sorted(names.exchanges.items())
        ],
        "bindings": len(names.bindings),
        "segments": [{"name": each.name, **asdict(each)} for each in inspection.segments],
        "queues": [
            {
                "id": queue_id,
                **dict(zip(("vhost", "name"), names.queues.get(queue_id, ("", "")), strict=True)),
                **asdict(view),
                "notes": inspection.notes.get(queue_id, 0),
            }
            for queue_id, view in _all_queues(found).items()
        ],
        "damaged": [
            {**each._asdict(), "queues": names.of_queues(each.queue_ids)}
            for each in inspection.damaged
        ],
        "unroutable": inspection.unroutable,
        "set_aside": inspection.quarantined,
    }


# Messages.


def _describe(
    found: Found, message: StoredMessage, queue_ids: Sequence[int], contents: Contents
) -> dict[str, object]:
    exchange, at = decode_shortstr(message.tail, 0)
    routing_key, _ = decode_shortstr(message.tail, at)
    marks = found.inspection.marks
    raw = contents.read(message, LEAD_BYTES)
    need = FRAME_HEADER_SIZE + int.from_bytes(raw[3:7], "big") + FRAME_OVERHEAD * 2 + FIRST_OCTETS
    if need > len(raw):
        raw = contents.read(message, need)
    return {
        "lsn": message.lsn,
        "queues": found.names.of_queues(queue_ids),
        "redelivered": any(message.lsn <= marks.get(queue_id, 0) for queue_id in queue_ids),
        "exchange": exchange,
        "routing_key": routing_key,
        **_content(raw),
    }


def _content(raw: bytes) -> dict[str, object]:
    """Properties, size and first bytes of the body, as far as they can be told."""
    end = FRAME_HEADER_SIZE + int.from_bytes(raw[3:7], "big")
    header = raw[FRAME_HEADER_SIZE:end]
    body_at = end + 1 + FRAME_HEADER_SIZE
    size = int.from_bytes(raw[end + 4 : end + 8], "big")
    properties: dict[str, object] = {}
    with suppress(AmqpError):
        decoded = Properties(header[CONTENT_HEADER_SIZE:])
        for name in PROPERTIES:
            with suppress(AmqpError):
                value = getattr(decoded, name)
                if value is not None:
                    properties[name] = _plain(value)
    return {
        "body_bytes": int.from_bytes(header[4:12], "big"),
        "properties": properties,
        "body": raw[body_at : body_at + min(size, FIRST_OCTETS)],
    }


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return render(value) if isinstance(value, Field) else value


def _print_message(message: dict[str, object], as_json: bool, out: TextIO) -> None:
    if as_json:
        print(json.dumps(shown_values(message), default=bytes.hex), file=out)
    else:
        print(" ".join(_words(message)), file=out)


def _words(message: dict[str, object]) -> Iterator[str]:
    yield f"{message['lsn']}"
    queues, properties = message["queues"], message["properties"]
    if isinstance(queues, list):
        yield "queue=" + ",".join(queues)
    yield f"exchange={clean(str(message['exchange']))!r}"
    yield f"key={clean(str(message['routing_key']))!r}"
    if message["redelivered"]:
        yield "redelivered"
    if isinstance(properties, dict):
        for name, value in properties.items():
            text = clean(str(value))
            yield f"{name}={text!r}" if isinstance(value, str) else f"{name}={text}"
    yield f"body={message['body_bytes']}"
    yield repr(message["body"])[1:]
