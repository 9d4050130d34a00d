"""The program of the sync helper process; see worker.py for the other end.

Run as a script with descriptors 3 to 6: eventfd of requests, eventfd of replies, shared
page, socket. It imports as little as it can, as its memory is part of the broker's. It
ends when the socket closes, or by signal when the broker dies.

It sleeps in the read of the first eventfd, which is bumped for a sync and for each message in the
socket: waiting for both of them would be another system call for each sync.

Files are made and removed in a thread, so that no sync waits for that. A new file is filled with
zeros, not only reserved (decision 0006): ext4 and XFS then overwrite what is there, and a sync has
no note of theirs to wait for, which they could fail to write. The zeros are synced piece by piece,
as the disk would otherwise get all of them in front of the next sync.
"""

import _queue
import _socket
import _thread
import mmap
import os
import stat
import sys
from struct import pack_into, unpack_from

REQUEST, REPLY, PAGE, CONTROL = 3, 4, 5, 6
PAGE_SIZE, REQUEST_AT, REPLY_AT = 4096, 64, 0
# What a sync adds to the eventfd; a message, or the end of the socket, adds one.
A_SYNC = 1 << 32
MESSAGE_SIZE, RIGHTS_SIZE = 512, 64
EIO = 5
# What one call writes. The page cache keeps what a call has written in units of up to that size,
# and each block that the broker writes there later goes through a whole unit, 4 KiB by 4 KiB: 33 us
# of CPU more for a small block when the unit is 1 MiB (decision 0006).
ZEROS = bytes(64 * 1024)
# What is filled before it is synced: with 1 MiB a file is there as soon as with 4 MiB, and a sync
# that comes meanwhile waits for a fifth of the time (bench/micro/fill.py).
SYNCED_BYTES = 1024 * 1024


class Helper:
    """Files by slot number, and what the broker asks to be done with them."""

    def __init__(self) -> None:
        self.page = mmap.mmap(PAGE, PAGE_SIZE)
        self.control = _socket.socket(fileno=CONTROL)
        self.files: dict[int, int] = {}
        self.directories: set[int] = set()
        # Files whose failure is told and counts for nothing.
        self.extra_targets: set[int] = set()
        self.file_tasks: _queue.SimpleQueue[tuple[bytes, int, str, int] | None]
        self.file_tasks = _queue.SimpleQueue()
        self.messages = 0  # in the socket, but not more than have been told of; less if read before
        self.is_ending = False
        self.has_ended = _thread.allocate_lock()
        self.has_ended.acquire()

    def run(self) -> None:
        """Do what is asked, for ever."""
        _thread.start_new_thread(self.do_file_tasks, ())
        while True:
            # Syncs count from here on, so that both can be told apart whenever they come.
            syncs, messages = divmod(os.eventfd_read(REQUEST), A_SYNC)
            # Syncs first: somebody waits for them.
            if syncs:
                self.serve()
            self.messages += messages
            while self.messages > 0:
                self.obey()

    def serve(self) -> None:
        """Answer one request for a sync."""
        sequence, count = unpack_from("=QQ", self.page, REQUEST_AT)
        slots = unpack_from(f"={count}Q", self.page, REQUEST_AT + 16)
        pack_into("=QQQ", self.page, REPLY_AT, sequence, *self.sync(slots))
        os.eventfd_write(REPLY, 1)

    def sync(self, slots: tuple[int, ...]) -> tuple[int, int]:
        """Return 0 or the errno of the first failure, and the same of the extra targets."""
        extra_errno = 0
        for slot in slots:
            # The descriptor was sent before the request, but may not be read yet.
            while slot not in self.files:
                self.obey()
            try:
                if slot in self.directories:
                    os.fsync(self.files[slot])
                else:
                    os.fdatasync(self.files[slot])
            except OSError as error:
                if slot not in self.extra_targets:
                    return error.errno or EIO, extra_errno
                extra_errno = error.errno or EIO
        return 0, extra_errno

    def obey(self) -> None:
        """Take one message from the socket: file, close, prepare (with zeros or not), unlink."""
        self.messages -= 1
        message, ancillary, _, _ = self.control.recvmsg(MESSAGE_SIZE, RIGHTS_SIZE)
        if not message:
            self.end()
        verb, slot, size = unpack_from("=cQQ", message)
        name = message[17:].decode("utf-8", "surrogateescape")
        if verb in {b"F", b"L"}:
            descriptor = int.from_bytes(ancillary[0][2][:4], sys.byteorder)
            self.files[slot] = descriptor
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                self.directories.add(slot)
            if verb == b"L":
                self.extra_targets.add(slot)
        elif verb == b"C":
            os.close(self.files.pop(slot))
            self.extra_targets.discard(slot)
        else:
            self.file_tasks.put((verb, self.files[slot], name, size))

    def end(self) -> None:
        """Leave a file that is being filled unfinished, remove what is to be removed, and go."""
        self.is_ending = True
        self.file_tasks.put(None)
        self.has_ended.acquire()
        sys.exit(0)

    def do_file_tasks(self) -> None:
        """In a thread of its own: make and remove files, one after the other."""
        while (task := self.file_tasks.get()) is not None:
            verb, directory, name, size = task
            if verb == b"U":
                self.unlink(directory, name)
            elif not self.is_ending:
                self.prepare(directory, name, size, has_zeros=verb == b"Z")
        self.has_ended.release()

    def prepare(self, directory: int, name: str, size: int, *, has_zeros: bool) -> None:
        """Make a spare file; the broker does without if that fails."""
        unfinished = name + ".new"
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            descriptor = os.open(unfinished, flags, 0o640, dir_fd=directory)
        except OSError:
            return
        try:
            os.posix_fallocate(descriptor, 0, size)
            if has_zeros:
                self.fill(descriptor, size)
            os.rename(unfinished, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            self.unlink(directory, unfinished)
        finally:
            os.close(descriptor)

    def fill(self, descriptor: int, size: int) -> None:
        """Write zeros and sync them, unless the end comes before."""
        written = synced = 0
        while written < size:
            if self.is_ending:
                raise InterruptedError
            step = os.pwrite(descriptor, ZEROS[: size - written], written)
            if not step:
                raise OSError(EIO, "the disk takes no more")
            written += step
            if written - synced >= SYNCED_BYTES or written == size:
                os.fdatasync(descriptor)
                synced = written

    @staticmethod
    def unlink(directory: int, name: str) -> None:
        try:
            os.unlink(name, dir_fd=directory)
        except OSError:
            return


if __name__ == "__main__":
    Helper().run()
