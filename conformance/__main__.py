"""`vouchmq conformance --url amqp://…`: which rules does the broker at that URL keep?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from vouchmq.conformance.case import MARKS, Case, all_cases
from vouchmq.conformance.client import Connection
from vouchmq.conformance.command_line import EXIT_UNUSABLE, Parser
from vouchmq.conformance.comparison import main as compare
from vouchmq.conformance.events import EndedError, RefusedError, SilenceError
from vouchmq.conformance.expect import MismatchError
from vouchmq.conformance.report import Display, write_json, write_junit
from vouchmq.conformance.runner import Plan, run
from vouchmq.conformance.stage import SLACK_S
from vouchmq.conformance.target import Target, Tls, parse
from vouchmq.conformance.wire import Typed, WireError, plain

EXIT_FAILED = 1


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        prog="vouchmq conformance",
        description=__doc__,
        epilog="vouchmq conformance compare A.json B.json … compares reports.",
    )
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/")
    parser.add_argument("--json", type=Path, metavar="F", help="write all verdicts as JSON")
    parser.add_argument("--junit", type=Path, metavar="F", help="write all verdicts as JUnit XML")
    parser.add_argument("--only", nargs="+", default=[], metavar="RULE-PREFIX")
    parser.add_argument("--marks", nargs="+", choices=MARKS, default=list(MARKS))
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument(
        "--referee",
        action="store_true",
        help="the broker is RabbitMQ 3.10.8: only ≡ cases, known deviations are excused",
    )
    parser.add_argument("--jobs", type=int, default=4, help="concurrent cases (default 4)")
    parser.add_argument(
        "--slack",
        type=float,
        default=SLACK_S,
        metavar="S",
        help="seconds added to times that rules allow, for busy machines (default %(default)g)",
    )
    parser.add_argument(
        "--restart-command", default="", metavar="CMD", help="command that restarts the broker"
    )
    parser.add_argument(
        "--control-command",
        default="",
        metavar="CMD",
        help="command for operator tasks, with the arguments of rabbitmqctl",
    )
    parser.add_argument(
        "--tls",
        nargs=2,
        metavar=("PORT", "FILES"),
        help="TLS port, and a folder filled by tools/certificates.py",
    )
    return parser.parse_args(arguments)


def chosen(wanted: argparse.Namespace) -> list[Case]:
    """The cases that the command line asks for."""
    marks = ["≡"] if wanted.referee else wanted.marks
    return [
        one
        for one in all_cases()
        if one.mark in marks
        and (not wanted.only or any(one.rule.startswith(prefix) for prefix in wanted.only))
    ]


def unusable(broker: Target) -> str:
    """Why no connection can be opened; empty if one can."""
    where = f"{broker.host}:{broker.port}"
    try:
        connection = Connection(broker).open()
        connection.close()
    except OSError as error:
        return f"no broker at {where}: {error}"
    except (EndedError, RefusedError, SilenceError, MismatchError, WireError) as error:
        return f"cannot open a connection to {where} as {broker.user}: {error}"
    connection.drop()
    return ""


def product(broker: Target) -> str:
    """What the broker calls itself, with its version."""
    connection = Connection(broker)
    try:
        properties = connection.wait(0, "connection.start").arguments["server_properties"]
    finally:
        connection.drop()
    shown = plain(Typed("F", properties)) if isinstance(properties, dict) else {}
    words = (
        [shown.get(name, "") for name in ("product", "version")] if isinstance(shown, dict) else []
    )
    return " ".join(str(word) for word in words if word)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; 0 all kept, 1 some failed, 2 nothing could be judged."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["compare"]:
        return compare(given[1:])
    wanted = options(given)
    cases = chosen(wanted)
    if wanted.list:
        for one in cases:
            sys.stdout.write(f"{one.rule:11} {one.mark:2} {one.says}\n")
        return 0
    try:
        broker = parse(wanted.url)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_UNUSABLE
    problem = unusable(broker) or ("" if cases else "no case matches --only and --marks")
    if problem:
        sys.stderr.write(f"{problem}\n")
        return EXIT_UNUSABLE
    plan = Plan(
        broker,
        wanted.jobs,
        wanted.restart_command,
        wanted.referee,
        wanted.slack,
        wanted.control_command,
        Tls(int(wanted.tls[0]), Path(wanted.tls[1])) if wanted.tls else None,
    )
    with Display(len(cases)) as display:
        verdicts = run(cases, plan, display.tell)
    display.table(verdicts)
    shown_url = f"amqp://{broker.user}@{broker.host}:{broker.port}{urlsplit(wanted.url).path}"
    if wanted.json:
        write_json(wanted.json, shown_url, verdicts, product(broker))
    if wanted.junit:
        write_junit(wanted.junit, verdicts)
    display.summary(verdicts)
    return EXIT_FAILED if any(verdict.outcome == "failed" for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
