"""Change the product in small wrong ways and see which tests notice: `python -m tests.mutation`.

    --count N --seed S        how many mutants, and which (60, 1)
    --folders server store protocol
    --stages unit property simulation conformance
    --out FILE                a line of JSON for each mutant, as it is judged
    --only K                  mutant K of the draw alone, its test output shown
    --list                    the mutants of the draw, and stop

First every test of the stage `unit` is run once, unchanged and measured, to learn which tests
reach which line (kept in --coverage FILE). A mutant then meets the tests that reach its line, those
of the most telling stage first, until one fails; what survives them meets fresh histories of the
simulation, and then the conformance suite. A stage that takes too long has noticed as well.

The work is done in a copy of the tree, so the checkout stays as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.mutation.mutants import Mutant, drawn

ROOT: Final = Path(__file__).resolve().parents[2]
NEEDED: Final = (
    *("protocol", "store", "server", "vouchmq", "conformance", "tests", "tools", "bench"),
    *("examples", "docs", "pyproject.toml", "README.md"),
)
UNIT: Final = ("tests/unit/protocol", "tests/unit/store", "tests/unit/server", "tests/property")
MOST_TESTS: Final = 400
"""Tests that reach a line, at most: one that all tests reach is seen by the first of them."""
STAGE_LIMIT_S: Final = 240
SIMULATION_S: Final = 40
# Coverage keeps one context for a line run at import: no test has reached it.
NO_TEST: Final = ""
PYTEST: Final = (
    *("-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", "--timeout=60"),
)


@dataclass(slots=True)
class Verdict:
    """What became of a mutant: the stage that noticed, or none."""

    number: int
    mutant: str
    noticed_by: str
    test: str
    tests_reaching: int
    seconds: float


def copied(directory: Path) -> Path:
    """Copy what tests need of the tree."""
    for name in NEEDED:
        source, target = ROOT / name, directory / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            # Links stay links: vouchmq/server is server/, in which the mutants are.
            shutil.copytree(source, target, symlinks=True, ignore=ignored)
        elif source.exists():
            shutil.copy2(source, target)
    return directory


def run(directory: Path, *arguments: str, limit_s: float = STAGE_LIMIT_S) -> tuple[bool, str]:
    """Run Python there; False with the end of its output when it failed or took too long."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(directory)}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        return False, output + "\ntook too long"
    return process.returncode == 0, output


def reached(directory: Path, kept: Path) -> dict[str, dict[int, list[str]]]:
    """Say which tests reach which line of which file; measured once and kept."""
    if not kept.exists():
        data = directory / ".coverage"
        settings = directory / "coverage.toml"
        settings.write_text(
            f'[tool.coverage.run]\ndata_file = "{data}"\nsource = ["protocol", "store", "server"]\n'
        )
        arguments = [*PYTEST, "--timeout=300", f"--cov-config={settings}", "--cov", "--cov-report="]
        arguments.remove("-x")
        _, output = run(directory, *arguments, "--cov-context=test", *UNIT, limit_s=3600)
        sys.stdout.write(output[-400:] + "\n")
        report = directory / "coverage.json"
        flags = ("--show-contexts", "--data-file", str(data), "-o", str(report))
        is_done, output = run(directory, "-m", "coverage", "json", *flags, limit_s=600)
        assert is_done, output
        found: dict[str, dict[str, list[str]]] = {}
        for name, entry in json.loads(report.read_text())["files"].items():
            tests: dict[str, set[str]] = defaultdict(set)
            for line, contexts in entry.get("contexts", {}).items():
                tests[line] = {text.partition("|")[0] for text in contexts if text != NO_TEST}
            found[name] = {line: sorted(names) for line, names in tests.items()}
        kept.write_text(json.dumps(found))
    read = json.loads(kept.read_text())
    return {
        name: {int(line): tests for line, tests in lines.items()} for name, lines in read.items()
    }


def tests_of(lines: dict[int, list[str]], line: int) -> list[str]:
    """Say which tests reach a line; the first one of a long statement counts."""
    return lines[max(before)] if (before := [one for one in lines if one <= line]) else []


def near_first(tests: list[str], mutant: Mutant) -> list[str]:
    """Tests of the mutant's own module first; of many, a share of each file."""
    stem = Path(mutant.path).stem
    by_file: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        by_file[test.partition("::")[0]].append(test)
    own = [name for name in by_file if stem in Path(name).stem]
    ordered = [test for name in own for test in by_file.pop(name)]
    share = max(1, (MOST_TESTS - len(ordered)) // max(1, len(by_file)))
    return (ordered + [test for names in by_file.values() for test in names[:share]])[:MOST_TESTS]


def judge(directory: Path, mutant: Mutant, tests: list[str], stages: list[str]) -> tuple[str, str]:
    """Return the stage that noticed the mutant and what it said; empty when none did."""
    target = directory / mutant.path
    unchanged = target.read_text(encoding="utf-8")
    target.write_text(mutant.applied(unchanged), encoding="utf-8")
    try:
        for stage in stages:
            is_fine, output = played(directory, stage, near_first(tests, mutant))
            if not is_fine:
                return stage, told_by(output)
    finally:
        target.write_text(unchanged, encoding="utf-8")
    return "", ""


def played(directory: Path, stage: str, tests: list[str]) -> tuple[bool, str]:
    """Play one stage against the copy."""
    if stage in {"unit", "property"}:
        chosen = [test for test in tests if test.startswith(f"tests/{stage}/")]
        return run(directory, *PYTEST, *chosen) if chosen else (True, "")
    if stage == "simulation":
        seconds = ("--seconds", str(SIMULATION_S), "--jobs", "1")
        calm = run(directory, "-m", "tests.simulation", *seconds)
        return (
            calm if not calm[0] else run(directory, "-m", "tests.simulation", *seconds, "--rough")
        )
    if stage == "conformance":
        return run(
            directory,
            *("tools/with_broker.py", "--", sys.executable, "-m", "vouchmq.conformance"),
            *("--url", "{url}", "--restart-command", "{restart}"),
            *("--control-command", "{control}", "--tls", "{tls_port}", "{tls_files}"),
            limit_s=2 * STAGE_LIMIT_S,
        )
    return run(directory, *PYTEST, f"tests/{stage}", limit_s=4 * STAGE_LIMIT_S)


def told_by(output: str) -> str:
    """Find the line that names what failed."""
    lines = [line for line in output.splitlines() if line.strip()]
    named = [line for line in lines if line.startswith(("FAILED", "ERROR", "E   "))]
    return (named or lines or ["nothing"])[-1][:200]


def main() -> int:
    """Draw, judge, and say what survived."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folders", nargs="+", default=["server", "store", "protocol"])
    parser.add_argument("--stages", nargs="+", default=["unit", "property", "simulation"])
    parser.add_argument("--coverage", type=Path, default=ROOT / "reports" / "reached.json")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--step", type=int, default=1, help="every N-th mutant of the draw")
    parser.add_argument("--only", type=int)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    mutants = drawn(ROOT, tuple(options.folders), options.count, options.seed)
    numbered = list(enumerate(mutants))[options.first :: options.step]
    if options.only is not None:
        numbered = [(options.only, mutants[options.only])]
    if options.list:
        for number, mutant in numbered:
            sys.stdout.write(f"{number:3} {mutant}\n")
        return 0
    options.coverage.parent.mkdir(parents=True, exist_ok=True)
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="mutation-") as made:
        directory = copied(Path(made))
        lines_of = reached(directory, options.coverage)
        for number, mutant in numbered:
            began = time.monotonic()
            tests = tests_of(lines_of.get(mutant.path, {}), mutant.line)
            stage, test = judge(directory, mutant, tests, options.stages)
            survivors += not stage
            seconds = round(time.monotonic() - began, 1)
            verdict = Verdict(number, str(mutant), stage, test, len(tests), seconds)
            sys.stdout.write(f"{number:3} {stage or 'SURVIVED':10} {seconds:6} {mutant}\n")
            sys.stdout.flush()
            if options.out:
                with options.out.open("a") as out:
                    out.write(json.dumps(asdict(verdict)) + "\n")
    sys.stdout.write(f"{len(numbered)} mutants, {survivors} survived\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
