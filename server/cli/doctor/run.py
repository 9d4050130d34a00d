"""`vouchmq doctor`: all checks, the worst last.

settings, the broker that runs (if one does) ─▶ checks ─▶ findings ─▶ terminal, JSON
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

from vouchmq.server.cli.client import LocalBroker
from vouchmq.server.cli.doctor.choices import check_certificates, check_durability, check_logins
from vouchmq.server.cli.doctor.disk import (
    check_directory,
    check_space,
    check_syncs,
    check_write_cache,
)
from vouchmq.server.cli.doctor.findings import Finding, Level
from vouchmq.server.cli.doctor.host import (
    check_clock,
    check_descriptors,
    check_memory,
    check_ports,
    check_preloads,
)
from vouchmq.server.cli.doctor.limits import (
    check_backlog,
    check_files,
    check_swap,
    check_throttling,
)
from vouchmq.server.cli.doctor.shared_log import check_log
from vouchmq.server.cli.program import CommandFailed
from vouchmq.server.cli.running.listing import cell
from vouchmq.server.cli.running.ping import ping
from vouchmq.server.cli.units import plural
from vouchmq.server.edge.memory import MemoryGauge
from vouchmq.server.settings.sizes import parse_amount
from vouchmq.store.disk import ReadOnlyDisk
from vouchmq.store.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vouchmq.server.settings.settings import Settings

EXIT_FOUND: Final = 1


def run(settings: Settings, *, as_json: bool, out: TextIO | None = None) -> int:
    """Check everything and say what was found; returns the exit code: 1 if something is wrong."""
    out = sys.stdout if out is None else out
    found = sorted(findings(settings), key=lambda each: each.level)
    wrong = [each for each in found if each.level >= Level.WARNING]
    if as_json:
        document = {"wrong": len(wrong), "findings": [each.document() for each in found]}
        out.write(json.dumps(document, indent=2) + "\n")
    else:
        for each in found:
            out.writelines(f"{cell(line)}\n" for line in each.lines())
        end = plural(len(wrong), "problem") if wrong else "no problem"
        out.write(f"{end} found\n")
    return EXIT_FOUND if wrong else 0


def findings(settings: Settings) -> Iterator[Finding]:
    """What all checks find."""
    status = running(settings)
    holder = _holder(settings) if status is None else int(status["pid"])
    # 0 if it is not known which.
    pid = holder or None
    memory_bytes = MemoryGauge(process=str(pid or "self")).total_octets
    alarms = alarm_limits(settings, memory_bytes, is_running=status is not None)
    if status is not None:
        yield from check_broker(settings, status)
    elif holder is not None:
        yield check_waiting(settings, holder)
    else:
        text = f"none uses {settings.data_dir.absolute()}; this is about its next start"
        yield Finding(Level.NOTE, "broker", text)
        yield from check_ports(settings)
    yield from check_directory(settings)
    yield from check_space(settings, alarms["disk"])
    yield from check_preloads(pid)
    yield from check_syncs(settings)
    yield from check_write_cache(settings)
    yield from check_durability(settings, None if status is None else status["settings"])
    yield from check_memory(memory_bytes, alarms["memory"])
    yield from check_swap(pid)
    yield from check_throttling(pid)
    yield from check_descriptors(pid)
    yield from check_files(settings, pid)
    yield from check_backlog()
    yield from check_clock(settings)
    yield from check_certificates(settings)
    yield from check_log(settings)
    yield from check_logins(settings)


def alarm_limits(settings: Settings, memory_bytes: int, *, is_running: bool) -> dict[str, int]:
    """At how many bytes each alarm is raised: as the broker says, or as it would next time.

    Args:
        settings: those of the next start
        memory_bytes: that the broker may use
        is_running: whether it answers
    """
    found = {
        "memory": parse_amount(settings.vm_memory_high_watermark).of(memory_bytes),
        "disk": parse_amount(settings.disk_free_limit).of(memory_bytes),
    }
    if is_running:
        rows = LocalBroker(settings.data_dir).rows("list alarms")
        found |= {row["name"]: row["limit_bytes"] for row in rows if row["name"] in found}
    return found


def running(settings: Settings) -> dict[str, Any] | None:
    """What the broker says that uses the data directory; None if none does, or serves nobody."""
    try:
        return LocalBroker(settings.data_dir).ask("status")
    except CommandFailed:
        return None


def _holder(settings: Settings) -> int | None:
    """The process that uses the data directory."""
    try:
        return ReadOnlyDisk(settings.data_dir).holder()
    except (StoreError, OSError):
        return None


def check_waiting(settings: Settings, pid: int) -> Finding:
    """What a broker is that serves nobody: a standby, or one that starts."""
    try:
        facts = LocalBroker(settings.data_dir).ask("ha status")
    except CommandFailed:
        waits = "recovers, or waits for the shared log" if settings.ha_log else "recovers"
        text = (
            f"process {pid} uses {settings.data_dir.absolute()} and serves nobody yet: it {waits}"
        )
        return Finding(Level.NOTE, "broker", text)
    text = f"process {pid}, a standby"
    if facts.get("can_take_over"):
        return Finding(Level.OK, "broker", f"{text} that can take over")
    why = f": {facts['trouble']}" if facts.get("trouble") else ""
    mend = "vouchmq ha status shows how far it has the log"
    return Finding(Level.WARNING, "broker", f"{text} that cannot take over{why}", mend)


def check_broker(settings: Settings, status: dict[str, Any]) -> Iterator[Finding]:
    """Whether it answers clients, and has an alarm."""
    listeners = status["listeners"]
    problem = ping(listeners["host"], listeners["port"])
    if problem:
        mend = "look at its log; vouchmq status may tell more"
        yield Finding(Level.ERROR, "broker", problem, mend)
    else:
        text = f"process {status['pid']}, version {status['version']} ({status['build']})"
        yield Finding(Level.OK, "broker", f"{text}, answers on port {listeners['port']}")
    yield from check_management(status)
    for alarm in LocalBroker(settings.data_dir).rows("list alarms"):
        if alarm["raised"]:
            text = f"the {alarm['name']} alarm is raised: publishers are blocked"
            yield Finding(Level.ERROR, "alarms", text, "vouchmq list alarms shows what is short")


def check_management(status: dict[str, Any]) -> Iterator[Finding]:
    """Whether the management process is there, if it should be."""
    there = status.get("management", ())
    if there:
        ports = " and ".join(str(each["port"]) for each in there)
        yield Finding(Level.OK, "management", f"the HTTP API is on port {ports}")
    elif status["settings"].get("management") == "on":
        text = "it is on, and no management process is there; it is started again and again"
        mend = "look for management.ended and management.listen_failed in the log"
        yield Finding(Level.ERROR, "management", text, mend)
