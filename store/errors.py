"""What can go wrong in the store, by name.

Nothing here knows a reply code: the server decides what a client is told.
    StoreError
      DataDirLocked        another process serves this directory
      DataDirUnreadable    the directory cannot be made, read or written
      UnsupportedFormat    a newer program wrote it; reading on would misread
      CorruptSegment       damage in the middle, and the caller asked to refuse it
      WriteFailed          a block could not be handed to the disk; the journal stays usable
      ReadFailed           stored messages could not be read back
      SettledTwice         more copies settled than were stored: a fault of the caller
      LogBroken            the shared log has lost, swapped or repeated what it had acknowledged
      OtherLog             the shared log is not the one that this directory follows
      NoMirror             a directory cannot follow the shared log as it is
      CopyDamaged          a copy of the shared log is not what was read, and can be read again
"""

# Names of what happened; an Error suffix would say it twice (N818).
# ruff: noqa: N818


class StoreError(Exception):
    """Root of the store's errors; the text says what, where and what to do."""


class DataDirLocked(StoreError):
    """Another broker holds the lock of the data directory. Spec: DURABLE-18"""


class DataDirUnreadable(StoreError):
    """The data directory cannot be created, listed or written."""


class UnsupportedFormat(StoreError):
    """The journal was written by a newer program. Spec: DURABLE-18"""


class CorruptSegment(StoreError):
    """Damage that is not a torn tail was found and the caller wants to refuse it.

    Spec: DURABLE-14
    """


class WriteFailed(StoreError):
    """One block could not be written.

    Runs, definitions and drops buffered for it are gone (their LSNs are `first_lsn` to
    `last_lsn`, both inclusive); settles and delivery marks stay buffered for the next block.

    Spec: CONF-12, LIMIT-15
    """

    def __init__(self, error: OSError, first_lsn: int, last_lsn: int) -> None:
        super().__init__(f"cannot write to the journal: {error.strerror or error}")
        self.errno = error.errno or 0
        self.first_lsn = first_lsn
        self.last_lsn = last_lsn


class ReadFailed(StoreError):
    """Stored messages could not be read back, or are not what was written.

    Whoever asked for them cannot go on without them: neither passing over them nor waiting is
    right, so it is as final as a failed sync. Spec: DURABLE-21
    """


class SettledTwice(StoreError):
    """A queue settled more copies in a segment than it had there."""


class LogBroken(StoreError):
    """The shared log does not continue as it was acknowledged: nobody may go on by himself."""


class OtherLog(StoreError):
    """The shared log has another id than the one that was asked for."""


class CopyDamaged(StoreError):
    """Recovery does not find all of the shared log in a directory: it has to follow it again.

    Nothing was changed, so that what is missing can be told from what the log has.
    """


class NoMirror(StoreError):
    """A directory cannot follow the shared log: it has a journal of its own, or of another log."""
