"""The command line: `vouchmq serve`, `vouchmq conformance`, `vouchmq --version`.

    flags → settings → app

What a command needs is imported when it runs, so that `--help` answers at once. Must not know
AMQP. Exit codes: 0 done, 1 the broker failed while running, 2 it could not start.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from server import settings as s
from server.startup import StartupError
from server.version import VERSION

EXIT_STARTUP = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # It has its own command line; nothing of it is read here.
    if given[:1] == ["conformance"]:
        return _conformance(given[1:])
    options = _parser().parse_args(given)
    if options.command == "serve":
        return _serve(options)
    _parser().print_help()
    return EXIT_STARTUP


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vouchmq", description="A message broker for AMQP 0-9-1.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"vouchmq {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="run the broker",
        description="Run the broker until SIGTERM or SIGINT.",
        epilog="Every setting may also stand in the file, or in the environment: "
        f"{s.flag_name('data_dir')} is {s.environment_name('data_dir')}.",
        allow_abbrev=False,
    )
    serve.add_argument(
        "--config", metavar="FILE", default=argparse.SUPPRESS, help="TOML file with settings"
    )
    for field in s.scalar_fields():
        serve.add_argument(
            s.flag_name(field.name),
            dest=field.name,
            metavar=_metavar(field.name),
            default=argparse.SUPPRESS,
            help=_help(field.name),
        )
    commands.add_parser(
        "conformance", help="test any broker, rule by rule (conformance --help)", add_help=False
    )
    return parser


def _metavar(name: str) -> str:
    kind = s.type_of(name)
    if kind is bool:
        return "on|off"
    return "N" if kind in {int, float} else "TEXT"


def _help(name: str) -> str:
    text = f"{s.doc_of(name)} Default: {s.show(s.default_of(name)) or 'empty'}"
    return text.replace("%", "%%")


def _serve(options: argparse.Namespace) -> int:
    flags = {name: value for name, value in vars(options).items() if name != "command"}
    try:
        settings = s.load(flags, os.environ)
        # Below the settings: a mistake in them is told without waiting for the broker's imports.
        run = import_module("server.app").run
        code: int = run(settings)
    except StartupError as error:
        print(f"vouchmq: {error}", file=sys.stderr)
        return EXIT_STARTUP
    return code


def _conformance(arguments: Sequence[str]) -> int:
    """Hand over to `python -m conformance`, a program of its own that imports nothing of ours."""
    if find_spec("conformance") is None:
        print("vouchmq: the conformance suite is not installed", file=sys.stderr)
        return EXIT_STARTUP
    code: int = import_module("conformance.__main__").main(list(arguments))
    return code


if __name__ == "__main__":
    sys.exit(main())
