"""What `vouchmq audit` was given, looked at before Spark starts: each mistake is one line.

A JVM takes seconds to start and an audit may take hours; what can be known to go wrong at its end
is said before. Must not need Spark.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vouchmq.spark.audit import verdicts
from vouchmq.spark.audit.result import INTERNAL
from vouchmq.spark.command_line import UsageError
from vouchmq.spark.ledger import lines
from vouchmq.spark.witness import witness

LATE_S: Final = 60.0
"""How long a running broker may take for its inventories."""
SUMMARY: Final = "summary.json"
# Each says something of ledgers, and nothing of what clients saw.
_OF_LEDGERS: Final = {
    "--report": "report",
    "--since": "since",
    "--until": "until",
    "--vhost": "vhost",
    "--queue": "queue",
    "--partition-by-queue": "partition_by_queue",
    "--poison-deliveries": "poison_deliveries",
    "--shared-log": "shared_log",
}


def check(options: argparse.Namespace) -> tuple[str, ...]:
    """The paths of ledgers to read; afterwards `--out` is there, and marked as an audit's.

    Raises:
        UsageError: options that do not go together, or paths that cannot be what they are meant for
        LedgerError: a path is not there, or holds no ledger
    """
    _check_options(options)
    if options.witness:
        try:
            witness.find(options.witness)
        except (lines.LedgerError, OSError) as error:
            raise UsageError(f"--witness: {error}") from error
    _check_out(options.out, options.paths)
    if options.report is not None:
        _check_report(options.report, options.out)
    # Cheap things first: a broker's inventories may take a minute.
    paths = list(options.paths)
    if options.data_dir is not None:
        paths.append(str(ask_inventory(options.data_dir)))
        _check_out(options.out, paths)
    if paths:
        lines.find(paths)
    try:
        (options.out / INTERNAL).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {options.out}: {error.strerror or error}") from error
    return tuple(paths)


def _check_options(options: argparse.Namespace) -> None:
    has_ledger = bool(options.paths) or options.data_dir is not None
    if not has_ledger and not options.witness:
        raise UsageError("nothing to audit: specify a PATH, --data-dir or --witness")
    if options.incremental and options.witness:
        raise UsageError("--incremental is for ledgers, not for --witness")
    if options.incremental and options.shared_log:
        raise UsageError("--shared-log is for a full audit, not for --incremental")
    if not has_ledger:
        for name, key in _OF_LEDGERS.items():
            if getattr(options, key) not in (None, False):
                raise UsageError(f"{name} is about ledgers, not about --witness alone")
    if options.since is not None and options.until is not None and options.since >= options.until:
        raise UsageError("--since is not before --until: no message can be published between them")
    known = {
        *(verdicts.FINDINGS if has_ledger else ()),
        *(witness.FINDINGS if options.witness else ()),
    }
    for kind in options.fail_on or ():
        if kind not in known:
            which = "ledgers" if has_ledger else "witnesses"
            raise UsageError(f"--fail-on: {kind} is not a finding of {which}")


def _check_out(out: Path, paths: Sequence[str]) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is not a directory")
    if out.is_dir() and any(out.iterdir()) and not _is_ours(out):
        raise UsageError(f"--out {out} is not empty and was not written by vouchmq audit")
    for path in paths:
        if Path(path).resolve() == out.resolve():
            raise UsageError(f"--out {out} is the ledger itself")
    above = next(each for each in (out.absolute(), *out.absolute().parents) if each.exists())
    if not above.is_dir():
        raise UsageError(f"--out {out}: {above} is not a directory")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(f"--out {out}: nothing can be written to {above}")


def _is_ours(out: Path) -> bool:
    """Whether an audit has written there: names such as `messages` are anybody's."""
    if (out / INTERNAL).is_dir():
        return True
    try:
        told = json.loads((out / SUMMARY).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(told, dict) and {"states", "findings", "copies"} <= told.keys()


def _check_report(report: Path, out: Path) -> None:
    if report.is_dir():
        raise UsageError(f"--report {report} is a directory")
    above = report.absolute().parent
    # Beside the tables it may lie, too, and they have no directory yet.
    if above == out.absolute() and not above.exists():
        return
    if not above.is_dir():
        raise UsageError(f"--report {report}: {above} is not a directory")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(f"--report {report}: nothing can be written to {above}")


def ask_inventory(directory: Path) -> Path:
    """Have a running broker list what its queues hold: else what came last has no verdict yet.

    Returns:
        the directory of its ledger

    Raises:
        UsageError: no broker runs there, or it has no ledger
    """
    ran = _ledger_command("inventory", directory=directory)
    if ran is None:
        raise UsageError(f"the broker on {directory} takes no inventory")
    if ran.returncode:
        raise UsageError(f"--data-dir {directory}: {_complaint(ran).removeprefix('vouchmq: ')}")
    return directory_of(ran.stdout.strip(), directory)


def record(directory: Path, out: Path) -> str:
    """Tell the broker on a data directory what the audit has found, for whoever looks at it there.

    Returns:
        why it does not know; empty if it does
    """
    summary = str(out / SUMMARY)
    ran = _ledger_command("audited", summary, directory=directory)
    if ran is None:
        return "it does not answer"
    return _complaint(ran).removeprefix("vouchmq: ") if ran.returncode else ""


def _ledger_command(*words: str, directory: Path) -> subprocess.CompletedProcess[str] | None:
    """Run `vouchmq ledger`; None: the broker does not answer in time."""
    command = [sys.executable, "-m", "vouchmq", "ledger", *words, "--data-dir", str(directory)]
    try:
        return subprocess.run(  # noqa: S603 - our own command
            command, capture_output=True, text=True, timeout=LATE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None


def _complaint(ran: subprocess.CompletedProcess[str]) -> str:
    return (ran.stderr.strip().splitlines() or ["no answer"])[-1]


def directory_of(answer: str, data_directory: Path) -> Path:
    """Where a broker's ledger is, by the file that its inventories are in.

    Args:
        answer: the path of the file; relative to where the broker was started if it is relative
        data_directory: of the broker

    Raises:
        UsageError: the path is relative, and the file is not found
    """
    file = Path(answer)
    if file.is_absolute():
        return file.parent
    for each in (data_directory / "ledger", file.parent):
        if (each / file.name).is_file():
            return each
    raise UsageError(
        f"--data-dir {data_directory}: its ledger is in {file.parent}, seen from where the broker "
        "was started: give that directory as PATH"
    )
