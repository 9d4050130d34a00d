"""Reads a system-call trace of the broker and judges when it acked what.

The rule (CONF-06, DURABLE-10): before the first octet of a `basic.ack` that speaks for a
persistent message is written to its socket, an fdatasync must have returned 0 that was started,
on the same file, after the write holding that message had returned; and if that file was made
meanwhile, its directory must have been synced too.

Messages are recognised by a mark in their body: `[mark PORT.CHANNEL.SEQNO]`, PORT being the
publisher's end of the connection.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

STRACE = (
    *("strace", "-f", "--seccomp-bpf", "-yy", "-xx", "-ttt", "-s", "1000000"),
    *("-e", "signal=none"),
)
TRACED = (
    "openat,rename,renameat,renameat2,write,writev,pwrite64,pwritev,pwritev2,"
    "sendto,sendmsg,sendmmsg,fdatasync,fsync,sync_file_range,msync,syncfs"
)

_LINE = re.compile(r"^(?P<pid>\d+)\s+(?:[\d.]+\s+)?(?P<rest>.*)$")
_RESUMED = re.compile(r"^<\.\.\. (?P<name>\w+) resumed>\s?(?P<rest>.*)$")
_CALL = re.compile(r"^(?P<name>\w+)\((?P<arguments>.*)$")
_RESULT = re.compile(r"\)\s+=\s+(?P<result>-?\d+|\?)(?P<tail>.*)$")
_STRING = re.compile(r'"(?P<text>(?:\\x[0-9a-f]{2})*)"(?P<cut>\.\.\.)?')
_FIRST_FILE = re.compile(r"^\d+<(?P<file>TCP[^\]]*\]|[^>]*)>")
_PEER_PORT = re.compile(r"^TCP(?:v6)?:\[.*->.*:(?P<port>\d+)\]$")
_MARK = re.compile(rb"\[mark (\d+)\.(\d+)\.(\d+)\]")
_WRITES = frozenset({"write", "writev", "pwrite64", "pwritev", "pwritev2", "sendto", "sendmsg"})
_SYNCS = frozenset({"fdatasync", "fsync"})
_BASIC_ACK = b"\x00\x3c\x00\x50"


class Call(NamedTuple):
    """One finished system call; `started` and `finished` are line numbers of the trace."""

    name: str
    arguments: str
    result: int
    tail: str
    started: int
    finished: int


class Mark(NamedTuple):
    """Which publish a message was."""

    port: int
    channel: int
    seqno: int


class Ack(NamedTuple):
    """A basic.ack as it left the broker; `line` is where its write began."""

    port: int
    channel: int
    seqno: int
    multiple: bool
    line: int


@dataclass
class Verdict:
    """What the trace shows."""

    acked: list[Mark] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    sync_count: int = 0


def calls(lines: list[str]) -> Iterator[Call]:
    """The finished calls of a trace in the order in which they returned."""
    begun: dict[str, tuple[str, str, int]] = {}
    for number, line in enumerate(lines):
        match = _LINE.match(line)
        if match is None or match["rest"].startswith(("+++", "---")):
            continue
        pid, rest = match["pid"], match["rest"]
        if rest.endswith("<unfinished ...>"):
            call = _CALL.match(rest.removesuffix("<unfinished ...>"))
            if call is not None:
                begun[pid] = (call["name"], call["arguments"], number)
            continue
        resumed = _RESUMED.match(rest)
        if resumed is not None:
            if pid not in begun:
                continue
            name, head, started = begun.pop(pid)
            rest = f"{name}({head}{resumed['rest']}"
        else:
            started = number
        call = _CALL.match(rest)
        result = _RESULT.search(rest)
        if call is None or result is None or result["result"] == "?":
            continue
        arguments = call["arguments"][: result.start() - len(call["name"]) - 1]
        yield Call(call["name"], arguments, int(result["result"]), result["tail"], started, number)


def plain(text: str) -> str:
    """A name as printed with -xx, in clear."""
    return re.sub(r"\\x([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), text)


def file_of(call: Call) -> str:
    """What the first argument's descriptor is open on."""
    match = _FIRST_FILE.match(call.arguments)
    return plain(match["file"]) if match is not None else ""


def data_of(call: Call) -> bytes:
    """The octets that a write took.

    Raises:
        ValueError: the trace was cut short; run strace with a larger -s.
    """
    pieces = []
    for match in _STRING.finditer(call.arguments):
        if match["cut"]:
            raise ValueError(f"line {call.started + 1} is cut short")
        pieces.append(bytes.fromhex(match["text"].replace("\\x", "")))
    return b"".join(pieces)[: max(call.result, 0)]


class SyncTrace:
    """A trace, sorted into what went to files, what went to sockets, and the syncs."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.acks: list[Ack] = []
        self.syncs: list[tuple[str, int, int]] = []
        self.stored: dict[Mark, tuple[str, int]] = {}
        self._made: dict[str, int] = {}
        self._streams: dict[int, bytearray] = defaultdict(bytearray)
        for call in calls(self.lines):
            self._take(call)

    def _take(self, call: Call) -> None:
        if call.name in _SYNCS:
            if call.result == 0:
                self.syncs.append((file_of(call), call.started, call.finished))
        elif call.name == "openat":
            if "O_CREAT" in call.arguments and call.result >= 0:
                made = plain(call.tail.strip().removeprefix("<").removesuffix(">"))
                self._made.setdefault(made, call.finished)
        elif call.name.startswith("rename"):
            if call.result == 0:
                target = _STRING.findall(call.arguments)[-1][0]
                self._made[plain(target)] = call.finished
        elif call.name in _WRITES and call.result > 0:
            name = file_of(call)
            peer = _PEER_PORT.match(name)
            if peer is not None:
                self._take_socket_write(int(peer["port"]), call)
            elif name.startswith("/"):
                for found in _MARK.findall(data_of(call)):
                    self.stored.setdefault(Mark(*map(int, found)), (name, call.finished))

    def _take_socket_write(self, port: int, call: Call) -> None:
        stream = self._streams[port]
        # A frame that began in an earlier write is judged by the write that completes it.
        stream += data_of(call)
        while len(stream) >= 7:
            size = int.from_bytes(stream[3:7], "big") + 8
            if len(stream) < size:
                return
            if stream[0] == 1 and stream[7:11] == _BASIC_ACK:
                seqno = int.from_bytes(stream[11:19], "big")
                channel = int.from_bytes(stream[1:3], "big")
                self.acks.append(Ack(port, channel, seqno, bool(stream[19]), call.started))
            del stream[:size]

    def judge(self, expected: dict[tuple[int, int], int]) -> Verdict:
        """Check every ack against the rule.

        `expected` names the publishing channels (port, channel) and how many marked persistent
        messages each has published; a trace without an ack for each of them is a violation too.
        """
        verdict = Verdict(sync_count=len(self.syncs))
        settled: dict[tuple[int, int], set[int]] = {key: set() for key in expected}
        for ack in self.acks:
            key = (ack.port, ack.channel)
            if key not in settled:
                continue
            first = 1 if ack.multiple else ack.seqno
            for seqno in range(first, ack.seqno + 1):
                if seqno in settled[key]:
                    continue
                settled[key].add(seqno)
                mark = Mark(*key, seqno)
                verdict.acked.append(mark)
                problem = self._problem(mark, ack)
                if problem:
                    verdict.violations.append(problem)
        for key, count in expected.items():
            if settled[key] != set(range(1, count + 1)):
                verdict.violations.append(f"{key}: {len(settled[key])} of {count} are acked")
        return verdict

    def _problem(self, mark: Mark, ack: Ack) -> str:
        if mark not in self.stored:
            return f"{mark} acked in line {ack.line + 1}, but never written to a file"
        name, written = self.stored[mark]
        if written > ack.line:
            return f"{mark} acked in line {ack.line + 1}, written only in line {written + 1}"
        if not self._synced(name, written, ack.line):
            return (
                f"{mark} acked in line {ack.line + 1}, written in line {written + 1} to {name}, "
                "and no fdatasync of it lies between"
            )
        made = self._made.get(name)
        directory = str(PurePosixPath(name).parent)
        if made is not None and not self._synced(directory, made, ack.line):
            return f"{mark} acked in line {ack.line + 1}, but {name} has no synced directory entry"
        return ""

    def _synced(self, name: str, after: int, before: int) -> bool:
        """True when a sync of `name` began after one line and returned before the other."""
        return any(
            what == name and started > after and finished < before
            for what, started, finished in self.syncs
        )

    def syncs_between(self, first: int, last: int) -> int:
        """How many syncs, of anything, began in these lines."""
        return sum(first <= started <= last for _, started, _ in self.syncs)
