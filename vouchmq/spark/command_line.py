"""What our Spark commands have in common: mistakes in one line, progress in one line, clean ends.

Knows terminals, signals, how Spark words its errors, and which errors of the client are the user's.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, TextIO, TypeVar

EXIT_FAILED: Final = 1
EXIT_UNUSABLE: Final = 2

# On something that is no terminal a line stays: fewer of them.
_LINES_EVERY_S: Final = 10.0
_SHOWN_EVERY_S: Final = 0.2
_MAX_REASON: Final = 400
# The last line of a Python traceback: where the class lives, its name, what it says.
_RAISED: Final = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*|_\w+): (.+)$", re.MULTILINE)
# The same of an error of ours, which comes without a traceback, behind words of Spark's.
_OURS: Final = re.compile(r"\bvouchmq(?:\.\w+)+\.\w+: (.+)$", re.MULTILINE)
# Spark puts a class of its own before its words and a state behind them.
_CLASS: Final = re.compile(r"^\[[A-Z0-9_.]+\] ")
_STATE: Final = re.compile(r"\.?\s+SQLSTATE: \w+.*$", re.DOTALL)
# Behind a query's error Spark tells of the query, with lines that look like errors.
_QUERY: Final = "=== Streaming Query ==="
# What py4j says of an exception of Java: its class and words, stack, causes; words have lines.
_JAVA: Final = re.compile(r"An error occurred while calling [^\n]*\n: (.*)", re.DOTALL)
_JAVA_CLASS: Final = re.compile(r"^(?:(?:[\w$]+\.)+[\w$]+(?:: |$))+")
_FRAME: Final = re.compile(r"\n\s+(?:at |\.{3} \d+ more)[^\n]*")
_CAUSE: Final = "\nCaused by: "
_UNITS: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
# One and a half times what Spark sets aside for itself, and what the JVM does not count as heap.
_LEAST_HEAP_BYTES: Final = 480 << 20
_PYTHON: Final = frozenset({"Traceback", "File", "Caused"})
# What Spark says of a Python process beside its driver that was not up within 10 s, a constant.
_LATE: Final = "Python worker failed to connect back"
_ATTEMPTS: Final = 5

_T = TypeVar("_T")


class UsageError(Exception):
    """What the user gave cannot be used; one line that names it."""


class Parser(argparse.ArgumentParser):
    """Mistakes are one line, and not a page of usage."""

    def error(self, message: str) -> NoReturn:
        """Say it and exit 2."""
        self.exit(EXIT_UNUSABLE, f"{self.prog}: {message}; see {self.prog} --help\n")


def add_session(parser: argparse.ArgumentParser) -> None:
    """The options of every command that runs Spark."""
    spark = parser.add_argument_group("Spark")
    spark.add_argument(
        "--cores", type=whole(1), default=2, metavar="N", help="number of concurrent tasks (2)"
    )
    spark.add_argument(
        "--memory", type=heap, default="2g", metavar="SIZE", help="heap of the JVM (2g)"
    )
    spark.add_argument(
        "--conf",
        action="append",
        type=assignment,
        default=[],
        metavar="NAME=VALUE",
        help="a Spark setting; repeatable",
    )


def add_options(parser: argparse.ArgumentParser, what: str) -> None:
    """`--option`: more of what the source or the sink takes."""
    parser.add_argument(
        "--option",
        action="append",
        type=assignment,
        default=[],
        metavar="NAME=VALUE",
        help=f"more options of the {what}; repeatable",
    )


def whole(least: int) -> Callable[[str], int]:
    """The type of an argument that is a whole number of at least so much."""

    def number(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return number


def heap(text: str) -> str:
    """The type of an argument that is the heap of a JVM: `2g`, `900m`."""
    found = re.fullmatch(r"(\d{1,9})([kmg])", text.lower(), re.ASCII)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 2g or 900m")
    if int(found[1]) * _UNITS[found[2]] < _LEAST_HEAP_BYTES:
        raise argparse.ArgumentTypeError(
            f"{text!r}: Spark needs at least {_LEAST_HEAP_BYTES >> 20}m"
        )
    return text.lower()


def place(text: str) -> Path:
    """The type of an argument that is a path: an empty one would mean the current directory."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path")
    return Path(text)


def assignment(text: str) -> tuple[str, str]:
    """The type of an argument NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


@contextmanager
def asking() -> Iterator[None]:
    """While the broker is looked at: what it refuses, and a URL of no use, are the user's mistakes.

    Raises:
        UsageError: that; a broker that is not there is none
    """
    # Only a command needs the client: a program that imports `vouchmq.spark` may not.
    from vouchmq.kit.bulk.errors import BulkClosed

    try:
        yield
    except BulkClosed as error:
        if error.code:
            raise UsageError(str(error)) from None
        raise
    except ValueError as error:
        raise UsageError(f"--url: {error}") from None


class Line:
    """Progress: a line that is written over on a terminal, else one every ten seconds.

    By hand, as rich hides the cursor meanwhile: a third Ctrl-C, which ends the process at once,
    would leave the terminal without one.
    """

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`stream` is standard error, unless it is given."""
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._is_terminal = self._stream.isatty()
        self._every_s = _SHOWN_EVERY_S if self._is_terminal else _LINES_EVERY_S
        self._due = clock() + (0 if self._is_terminal else self._every_s)
        self._width = 0

    def show(self, text: str) -> None:
        """Show how far it is, if it is time."""
        if self._clock() < self._due:
            return
        self._due = self._clock() + self._every_s
        if self._is_terminal:
            self._stream.write(f"\r{text}{' ' * (self._width - len(text))}")
            self._width = len(text)
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def begin(self, text: str) -> None:
        """Say on a terminal what takes a while, on a line that others may follow."""
        if self._is_terminal:
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def clear(self) -> None:
        """Take away what was written over."""
        if self._width:
            self._stream.write(f"\r{' ' * self._width}\r")
            self._width = 0
            self._stream.flush()


class Stop:
    """Whether somebody wants the command to end."""

    def __init__(self) -> None:
        self.count = 0

    def __bool__(self) -> bool:
        return self.count > 0

    def ask(self, number: int, frame: FrameType | None) -> None:
        """A signal came; the third one ends the process as if nobody had listened."""
        del frame
        self.count += 1
        if self.count == 3:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


@contextmanager
def listening() -> Iterator[Stop]:
    """Turn SIGINT and SIGTERM into a wish for the time of a `with` block."""
    stop = Stop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, stop.ask) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def with_source(command: Callable[[], _T], may_repeat: Callable[[], bool]) -> _T:
    """Run a query whose source is in Python; again while that process is up too late.

    It is started beside Spark's driver, and before anything is read. Only `archive` has one: sinks
    and functions run in processes that Spark forks, and waits for as long as they take.

    Args:
        command: the query
        may_repeat: whether it is still wanted

    Raises:
        Exception: of the command; of a process that was too late five times
    """
    for attempt in range(2, _ATTEMPTS + 1):
        try:
            return command()
        except Exception as error:
            if _LATE not in str(error) or not may_repeat():
                raise
        sys.stderr.write(
            "the process of the source was not ready within 10 s, a limit of Spark; "
            f"attempt {attempt} of {_ATTEMPTS}\n"
        )
    return command()


def reason_of(error: BaseException) -> str:
    """What went wrong, in one line: the words of the innermost Python error, or Spark's own."""
    text = str(error).partition(_QUERY)[0].strip()
    if ours := _OURS.findall(text):
        return _cut(_plain(ours[-1]), _MAX_REASON)
    raised = [each for each in _RAISED.findall(text) if each[0] not in _PYTHON]
    if raised and "Traceback (most recent call last)" in text:
        return _cut(_plain(raised[-1][1]), _MAX_REASON)
    if java := _JAVA.match(text):
        return _of_java(java[1]) or type(error).__name__
    return _cut(_plain(text.splitlines()[0] if text else type(error).__name__), _MAX_REASON)


def _of_java(text: str) -> str:
    """What an exception of Java says, and its innermost cause if that says something else."""
    what, *causes = (_words(each) for each in text.split(_CAUSE))
    cause = ""
    for each in reversed(causes):
        # One around it that repeats its words says where.
        if each not in what and cause in each:
            cause = each
    if not what or not cause:
        return _cut(what or cause, _MAX_REASON)
    # The cause names the file, the line, the number: the other words may be cut.
    room = max(_MAX_REASON // 4, _MAX_REASON - len(cause) - len(": "))
    return _cut(f"{_cut(what.rstrip('.'), room)}: {cause}", _MAX_REASON)


def _words(text: str) -> str:
    """Words of an exception of Java in one line: no class, no stack."""
    first = _FRAME.split(text, maxsplit=1)[0]
    return " ".join(_plain(_JAVA_CLASS.sub("", first.strip())).split())


def _plain(text: str) -> str:
    return _STATE.sub("", _CLASS.sub("", text)).strip()


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def shown(number: float) -> str:
    """A number with its thousands apart."""
    return f"{number:,.0f}"


def counted(number: int, what: str) -> str:
    """So many of something, in words."""
    ending = "" if number == 1 else "es" if what.endswith("ch") else "s"
    return f"{shown(number)} {what}{ending}"


def run(name: str, command: Callable[[], int], mistakes: Sequence[type[Exception]]) -> int:
    """Run a command; what goes wrong is one line on standard error.

    Args:
        name: of the command
        command: gives the exit code
        mistakes: errors that are the user's: exit 2, all others 1
    """
    try:
        return command()
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return 130
    except Exception as error:  # noqa: BLE001 - whatever Spark raises
        sys.stderr.write(f"vouchmq {name}: {reason_of(error)}\n")
        return EXIT_UNUSABLE if isinstance(error, (UsageError, *mistakes)) else EXIT_FAILED
