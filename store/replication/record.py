"""The bytes of a record, which is one message of the shared log. Pure; nothing is sent here.

A record is a header and a body. The body of a record of blocks is one or more whole journal blocks
of one segment, byte for byte as they stand in the leader's file, or a part of a larger one.

    record header, 84 bytes, little-endian
      magic 6s, version u16, crc32 u32             crc over all that follows, body included
      kind u16, flags u16
      previous u32                                 crc32 of the record before this one
      epoch u64                                    number of the claim under which it was written
      number u64                                   records are numbered without gaps
      committed u64                                highest record known committed when it was made
      generation u64, offset u64                   of the segment, and where in it the body belongs
      block u64, lsn u64                           the last whole block up to its end: number, LSN
      part u16, parts u16                          the body is part 1 … of so many of one block
      length u32                                   of the body, in bytes

Two fields carry the guarantees:

- `previous` and `crc32` make the records a chain. Whoever reads a record that does not continue it
  knows that the log has lost, swapped or repeated something, whatever the engine says about it.
- `epoch` tells whose it is. A claim begins an epoch, and carries its node's name and chance: two
  nodes that claim the same epoch at once send different bytes, and neither takes the other's claim
  for its own.

Generation, offset, block and LSN are where the log stands: of a record without blocks, its end.

What it costs: 84 bytes a record, and one checksum over what the journal has checked already. It
could be computed from those of the blocks (`records.join_checksums`), but a record is then no check
on how it was put together; a pass over 512 KiB takes a fifth of a millisecond.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from vouchmq.store.checksum import crc32
from vouchmq.store.errors import UnsupportedFormat

MAGIC: Final = b"VQRECD"
FORMAT_VERSION: Final = 1

_LEAD: Final = struct.Struct("<6sHI")
_REST: Final = struct.Struct("<HHIQQQQQQQHHI")
HEADER_SIZE: Final = _LEAD.size + _REST.size

# The first record of a log that begins empty: its body is the log's id.
ORIGIN: Final = 1
BLOCKS: Final = 2
# A node takes the lead: chance, then its name.
CLAIM: Final = 3
# The leader steps down: whoever reads this may claim at once.
HANDOVER: Final = 4
# The leader is there, and has nothing to say.
BEAT: Final = 5
# The first record of a log that begins with the journal of a directory: the log's id. Nobody may
# lead before that is complete.
COPIED: Final = 6
# All of that journal is in the log; whoever reads this may claim at once.
COMPLETE: Final = 7
_KINDS: Final = frozenset({ORIGIN, BLOCKS, CLAIM, HANDOVER, BEAT, COPIED, COMPLETE})
# The first record is one of these.
ORIGINS: Final = frozenset({ORIGIN, COPIED})
# These tell where a log comes from and who has led.
_LASTING: Final = frozenset({ORIGIN, CLAIM, COPIED, COMPLETE})

ID_SIZE: Final = 16
NONCE_SIZE: Final = 16


class RecordHeader(NamedTuple):
    """Everything in a record's header but magic, version, checksum and length."""

    kind: int
    previous: int
    epoch: int
    number: int
    committed: int
    generation: int
    offset: int
    block: int
    lsn: int
    part: int = 1
    parts: int = 1


class Record(NamedTuple):
    """A record that was found to be whole."""

    header: RecordHeader
    checksum: int
    body: bytes


def seal(header: RecordHeader, body: Sequence[bytes]) -> tuple[bytes, int]:
    """Return the bytes that go in front of `body`, and the record's checksum."""
    kind, *others, part, parts = header
    rest = _REST.pack(kind, 0, *others, part, parts, sum(map(len, body)))
    checksum = crc32(rest)
    for each in body:
        checksum = crc32(each, checksum)
    return _LEAD.pack(MAGIC, FORMAT_VERSION, checksum) + rest, checksum


def open_record(raw: bytes) -> Record | None:
    """Return the record that a message is, None if it is no whole one.

    Raises:
        UnsupportedFormat: it is ours, but of a newer format version, or of a kind or with a flag
            that this program does not know
    """
    if len(raw) < HEADER_SIZE or not raw.startswith(MAGIC):
        return None
    _, version, checksum = _LEAD.unpack_from(raw)
    if version > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"the log has records of format {version}, this program reads {FORMAT_VERSION};"
            " start the version that wrote them"
        )
    with memoryview(raw) as view, view[_LEAD.size :] as checked:
        if crc32(checked) != checksum:
            return None
    kind, flags, *others, length = _REST.unpack_from(raw, _LEAD.size)
    if length != len(raw) - HEADER_SIZE:
        return None
    if kind not in _KINDS or flags:
        raise UnsupportedFormat(
            f"the log has a record of kind {kind} with flags {flags};"
            " start the version that wrote it"
        )
    return Record(RecordHeader(kind, *others), checksum, raw[HEADER_SIZE:])


def origin(log_id: bytes, kind: int = ORIGIN) -> bytes:
    """Return the first record of a new log, of one of the kinds `ORIGINS`.

    Raises:
        ValueError: the id has not `ID_SIZE` bytes
    """
    if len(log_id) != ID_SIZE:
        raise ValueError(f"the id of a log has {ID_SIZE} bytes, this has {len(log_id)}")
    return b"".join((seal(RecordHeader(kind, 0, 0, 0, 0, 0, 0, 0, 0), [log_id])[0], log_id))


def claim_body(name: str, nonce: bytes) -> bytes:
    """Return what tells a claim from others of its epoch: the node's name, and chance.

    Raises:
        ValueError: the chance has not `NONCE_SIZE` bytes
    """
    if len(nonce) != NONCE_SIZE:
        raise ValueError(f"a claim has {NONCE_SIZE} bytes of chance, not {len(nonce)}")
    return nonce + name.encode()


def claimant(body: bytes) -> str:
    """Return the name of the node in the body of a claim."""
    return body[NONCE_SIZE:].decode("utf-8", "replace")


class Subjects:
    """Names of what can be purged at once: the records of one segment.

    Claims, the origin and what completes a copied one stand apart and are never purged, so that
    whoever reads the log from its beginning sees every epoch begin.
    """

    __slots__ = ("_prefix", "lasting")

    def __init__(self, log: str) -> None:
        self._prefix = f"vq.{log}."
        self.lasting = f"{self._prefix}epochs"

    def of(self, header: RecordHeader) -> str:
        """Return the subject of a record."""
        if header.kind in _LASTING:
            return self.lasting
        return self.of_segment(header.generation)

    def of_segment(self, generation: int) -> str:
        """Return the subject of all records with blocks of a segment."""
        return f"{self._prefix}{generation}"
