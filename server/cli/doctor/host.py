"""The machine and the process: descriptors, memory, clock, ports, and what is preloaded."""

from __future__ import annotations

import ctypes
import os
import resource
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vouchmq.server.cli.doctor.findings import Finding, Level
from vouchmq.server.cli.units import amount, duration
from vouchmq.server.edge.listening import Listening
from vouchmq.server.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vouchmq.server.settings.settings import Settings

FEW_DESCRIPTORS: Final = 4096
LARGE_SHARE: Final = 0.8
SMALL_MEMORY_BYTES: Final = 256 * 1024 * 1024
CLOCK_SLACK_S: Final = 60.0
TIMEX_BYTES: Final = 512
TIME_ERROR: Final = 5
IGNORES_SYNCS: Final = "eatmydata"


def check_descriptors(pid: int | None, root: Path = Path("/")) -> Iterator[Finding]:
    """How many connections the broker can have, as far as the system is concerned."""
    limit = _limit_of(pid, root) if pid is not None else None
    if limit is None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        # As the broker does when it starts.
        limit = 1 << 30 if hard == resource.RLIM_INFINITY else hard
    text = f"at most {limit:,}, one for each connection and file"
    if limit < FEW_DESCRIPTORS:
        mend = "raise LimitNOFILE= of the unit, or ulimit -n of the shell, before the broker starts"
        yield Finding(Level.WARNING, "file descriptors", text, mend)
    else:
        yield Finding(Level.OK, "file descriptors", text)


def _limit_of(pid: int, root: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / f"proc/{pid}/limits").read_text().splitlines():
            if line.startswith("Max open files"):
                soft = line.split()[3]
                return 1 << 30 if soft == "unlimited" else int(soft)
    return None


def check_memory(total_bytes: int, limit: int) -> Iterator[Finding]:
    """Whether the alarm is raised before the system ends the process.

    Args:
        total_bytes: that the broker may use
        limit: of the memory alarm, in bytes
    """
    text = f"{amount(total_bytes)} for the broker, the alarm is at {amount(limit)}"
    if limit > total_bytes * LARGE_SHARE:
        yield Finding(
            Level.WARNING,
            "memory",
            f"{text}: the system may end the broker before the alarm holds publishers back",
            "set vm_memory_high_watermark to at most 0.8",
        )
    elif limit < SMALL_MEMORY_BYTES:
        yield Finding(
            Level.WARNING, "memory", f"{text}: that is very little", "give the broker more memory"
        )
    else:
        yield Finding(Level.OK, "memory", text)


def check_clock(
    settings: Settings,
    now_s: Callable[[], float] = time.time,
    is_kept: Callable[[], bool | None] | None = None,
) -> Iterator[Finding]:
    """Whether the clock is kept right, and has not gone back behind what is stored."""
    ahead_s = 0.0
    with suppress(OSError):
        for each in settings.data_dir.iterdir():
            ahead_s = max(ahead_s, each.stat().st_mtime - now_s())
    if ahead_s > CLOCK_SLACK_S:
        text = f"files of the data directory are {duration(ahead_s)} in the future"
        mend = "set the clock; until then messages expire late"
        yield Finding(Level.WARNING, "clock", text, mend)
        return
    kept = (is_kept or _is_clock_kept)()
    if kept is False:
        text = "the system does not keep it synchronized"
        mend = "run chrony or systemd-timesyncd: expiry and time stamps depend on the clock"
        yield Finding(Level.NOTE, "clock", text, mend)
    elif kept:
        yield Finding(Level.OK, "clock", "the system keeps it synchronized")


def _is_clock_kept() -> bool | None:
    with suppress(OSError, AttributeError):
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
        return None if state < 0 else state != TIME_ERROR
    return None


def check_ports(settings: Settings) -> Iterator[Finding]:
    """Of a broker that does not run: whether it could listen."""
    with ExitStack() as undone:
        try:
            listening = Listening.bind(settings, undone)
        except StartupError as error:
            text = "; ".join(map(str, error.args))
            mend = "ss -ltnp shows what listens where"
            yield Finding(Level.ERROR, "ports", text, mend)
            return
        ports = [listening.port, *([listening.tls_port] if listening.tls_port else [])]
    shown = " and ".join(map(str, ports))
    where = f"{shown} on {', '.join(settings.host)}"
    yield Finding(Level.OK, "ports", f"a broker can listen on {where}")


def check_preloads(pid: int | None, root: Path = Path("/")) -> Iterator[Finding]:
    """Whether something is loaded into the process that makes syncs do nothing."""
    found = IGNORES_SYNCS in os.environ.get("LD_PRELOAD", "")
    if pid is not None:
        with suppress(OSError):
            found = IGNORES_SYNCS in (root / f"proc/{pid}/maps").read_text("utf-8", "replace")
    if found:
        text = "libeatmydata is loaded: no sync reaches the disk, and confirms mean nothing"
        yield Finding(Level.ERROR, "syncs", text, "start the broker without it")
