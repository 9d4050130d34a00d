"""The command line: `vouchmq serve`, `ping`, `store`, `ledger`, `audit`, `conformance`, and more.

    flags → settings → app

What a command needs is imported when it runs, so that `--help` answers at once. Must not know
AMQP. Exit codes: 0 done, 1 the broker failed or does not answer or a store is damaged, 2 it could
not start.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NoReturn

from vouchmq.server.errors import StartupError
from vouchmq.server.settings import settings as s
from vouchmq.server.settings.validation import choices_of, plain_type
from vouchmq.server.version import VERSION, build_kind

EXIT_FAILED = 1
EXIT_STARTUP = 2
RULE_ID: Final = re.compile(r" \([A-Z]+-\d\d\)")
LEDGER_VERBS: Final = {
    "on": "start recording events",
    "off": "stop, after inventories of all queues; print the newest file",
    "status": "show whether it is on, and how many lines it has dropped",
    "inventory": "take inventories of all queues; print the file in which they end",
    "rotate": "close the current file so that it can be read, and print its path",
}
# Of the extra `spark`: programs of their own that import nothing of ours, and their modules.
LISTINGS: Final = {
    "overview": "the whole broker: what there is, and totals since its start",
    "vhosts": "virtual hosts",
    "queues": "queues, their messages and consumers",
    "exchanges": "exchanges",
    "bindings": "bindings, without those of the default exchange",
    "connections": "connections",
    "channels": "channels, with unacknowledged deliveries and unconfirmed publishes",
    "consumers": "consumers",
    "alarms": "alarms, with the values and limits that they compare",
    "store": "the journal: LSNs, segments, syncs",
}
SPARK_COMMANDS: Final = {
    "audit": ("vouchmq.spark.audit.cli", "verify from ledgers what became of every message"),
    "archive": ("vouchmq.spark.archive.cli", "copy a queue or stream into a table"),
    "replay": ("vouchmq.spark.replay.cli", "publish the messages of an archive again"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # It has its own command line; nothing of it is read here.
    if given[:1] == ["conformance"]:
        return _conformance(given[1:])
    if given and given[0] in SPARK_COMMANDS:
        return _spark(given[0], given[1:])
    options = _parser().parse_args(given)
    if options.command in _COMMANDS:
        try:
            return _COMMANDS[options.command](options)
        except StartupError as error:
            for line in error.args:
                print(f"vouchmq: {line}", file=sys.stderr)
            return EXIT_STARTUP
    _parser().print_help()
    return EXIT_STARTUP


class _Parser(argparse.ArgumentParser):
    """Mistakes are one line here, as those of settings are, and not a page of usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_STARTUP, f"vouchmq: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="vouchmq", description="VouchMQ, a message broker for AMQP 0-9-1.", allow_abbrev=False
    )
    version = f"vouchmq {VERSION} ({build_kind()})"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="run the broker",
        description="Run the broker until SIGTERM or SIGINT.",
        epilog="You can also set each of these in the configuration file or in the environment: "
        f"{s.flag_name('data_dir')} is {s.environment_name('data_dir')}.",
        allow_abbrev=False,
    )
    _add_settings(serve, [field.name for field in s.scalar_fields()])
    ping = commands.add_parser(
        "ping",
        help="check that a broker answers",
        description="Ask the broker that uses a data directory, wherever it listens; the one at "
        "the host and port of the settings if no broker uses it, or if you give --host or --port. "
        "Exit 0 if the broker answers, 1 with the reason if it does not.",
        allow_abbrev=False,
    )
    _add_settings(ping, ["host", "port", "data_dir"])
    _add_store(commands.add_parser("store", help="inspect a data directory", allow_abbrev=False))
    _add_definitions(
        commands.add_parser("definitions", help="export definitions", allow_abbrev=False)
    )
    _add_ledger(
        commands.add_parser(
            "ledger", help="control the ledger of a running broker", allow_abbrev=False
        )
    )
    _add_list(
        commands.add_parser("list", help="list what a running broker has", allow_abbrev=False)
    )
    commands.add_parser(
        "conformance",
        help="test any AMQP 0-9-1 broker against the specification (conformance --help)",
        add_help=False,
    )
    for name, (_, text) in SPARK_COMMANDS.items():
        commands.add_parser(name, help=f"{text} ({name} --help)", add_help=False)
    return parser


def _add_store(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    check = verbs.add_parser(
        "check",
        help="summarize a data directory and verify its checksums",
        description="Read a data directory without changing it; the broker may be running. "
        "Exit 0 if it is intact, 1 if it is damaged, 2 if it cannot be read.",
        allow_abbrev=False,
    )
    dump = verbs.add_parser(
        "dump",
        help="print the messages in a data directory",
        description="Print each live message of a data directory in publishing order, without "
        "changing anything. The exit codes are those of check.",
        allow_abbrev=False,
    )
    dump.add_argument("--queue", metavar="NAME", help="only messages in queues with this name")
    dump.add_argument("--vhost", metavar="NAME", help="only queues in this virtual host")
    for verb in (check, dump):
        verb.add_argument(
            "directory",
            metavar="DIR",
            type=_directory,
            nargs="?",
            help="the data directory; by default that of the settings",
        )
        verb.add_argument(
            "--json", action="store_true", help="print JSON; dump prints one line for each message"
        )
        _add_settings(verb, ["data_dir"])


def _directory(text: str) -> Path:
    # An empty one, as of an unset variable, would be the current directory.
    if not text:
        raise argparse.ArgumentTypeError("expected a path, not ''")
    return Path(text)


def _add_definitions(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    export = verbs.add_parser(
        "export",
        help="print the definitions in a data directory",
        description="Print virtual hosts, policies, durable exchanges, queues and bindings of a "
        "data directory in the format that --load-definitions reads. Nothing is changed; the "
        "broker may be running. The exit codes are those of store check.",
        allow_abbrev=False,
    )
    _add_settings(export, ["data_dir"])


def _add_ledger(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, text in LEDGER_VERBS.items():
        verb = verbs.add_parser(
            name,
            help=text,
            description="Send the command to the broker that uses a data directory. Exit 0 if it "
            "succeeds, 1 with the reason if the broker refuses, 2 if no broker uses it.",
            allow_abbrev=False,
        )
        _add_settings(verb, ["data_dir"])


def _add_list(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="WHAT", required=True)
    for name, text in LISTINGS.items():
        verb = verbs.add_parser(
            name,
            help=text,
            description="Ask the broker that uses a data directory. A terminal gets a table, a "
            "pipe or a file columns separated by tabs. Exit 0 on success, 1 if the broker refuses, "
            "2 if no broker uses the directory.",
            allow_abbrev=False,
        )
        verb.add_argument("--json", action="store_true", help="print one JSON object per line")
        _add_settings(verb, ["data_dir"])


def _add_settings(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    parser.add_argument(
        "--config", metavar="FILE", default=argparse.SUPPRESS, help="TOML file with settings"
    )
    for name in names:
        parser.add_argument(
            s.flag_name(name),
            dest=name,
            metavar=_metavar(name),
            default=argparse.SUPPRESS,
            help=_help(name),
            # A list may be given in one flag, or in several.
            action="append" if s.is_list(s.type_of(name)) else "store",
        )


def _metavar(name: str) -> str:
    kind = plain_type(s.type_of(name))
    if kind is bool:
        return "on|off"
    if (choices := choices_of(kind)) and not s.is_list(kind):
        return "|".join(choices)
    return "N" if kind in {int, float} else "TEXT"


def _help(name: str) -> str:
    # The ids of rules are for the reference, which has the same texts.
    meaning = RULE_ID.sub("", s.doc_of(name))
    text = f"{meaning} Default: {s.show(s.default_of(name)) or 'empty'}"
    return text.replace("%", "%%")


def _settings(options: argparse.Namespace) -> s.Settings:
    flags = {
        name: ",".join(value) if isinstance(value, list) else value
        for name, value in vars(options).items()
        if name not in {"command", "verb", "json", "directory", "queue", "vhost"}
    }
    return s.load(flags, os.environ)


def _serve(options: argparse.Namespace) -> int:
    settings = _settings(options)
    # Below the settings: a mistake in them is told without waiting for the broker's imports.
    code: int = import_module("vouchmq.server.edge.app").run(settings)
    return code


def _ping(options: argparse.Namespace) -> int:
    settings = _settings(options)
    check = import_module("vouchmq.server.cli.ping")
    address = (settings.host[0], settings.port)
    if not {"host", "port"} & vars(options).keys():
        address = check.listeners(Path(settings.data_dir)) or address
    problem: str = check.ping(*address)
    if problem:
        print(f"vouchmq: {problem}", file=sys.stderr)
        return EXIT_FAILED
    return 0


def _store(options: argparse.Namespace) -> int:
    report = import_module("vouchmq.server.cli.store")
    # A mistake in settings that are not needed does not keep anybody from a directory.
    directory = options.directory or Path(_settings(options).data_dir)
    code: int
    if options.verb == "check":
        code = report.check(directory, as_json=options.json)
    else:
        code = report.dump(
            directory, queue=options.queue, vhost=options.vhost, as_json=options.json
        )
    return code


def _definitions(options: argparse.Namespace) -> int:
    settings = _settings(options)
    code: int = import_module("vouchmq.server.cli.definitions").export(settings.data_dir)
    return code


def _ledger(options: argparse.Namespace) -> int:
    settings = _settings(options)
    code: int = import_module("vouchmq.server.cli.ledger").run(settings.data_dir, options.verb)
    return code


def _list(options: argparse.Namespace) -> int:
    settings = _settings(options)
    listing = import_module("vouchmq.server.cli.listing")
    code: int = listing.run(settings.data_dir, options.verb, as_json=options.json)
    return code


def _conformance(arguments: Sequence[str]) -> int:
    """Hand over to the conformance suite, which imports nothing else of ours."""
    missing = [name for name in ("jinja2", "pika", "aio_pika") if not find_spec(name)]
    if missing:
        print(
            f"vouchmq: conformance needs {', '.join(missing)}: pip install 'vouchmq[conformance]'",
            file=sys.stderr,
        )
        return EXIT_STARTUP
    code: int = import_module("vouchmq.conformance.__main__").main(list(arguments))
    return code


def _spark(name: str, arguments: Sequence[str]) -> int:
    """Hand over to a command of the data pipeline."""
    missing = [package for package in ("pyspark", "pyarrow") if not find_spec(package)]
    if missing:
        print(
            f"vouchmq: {name} needs {' and '.join(missing)}: pip install 'vouchmq[spark]'",
            file=sys.stderr,
        )
        return EXIT_STARTUP
    code: int = import_module(SPARK_COMMANDS[name][0]).main(list(arguments))
    return code


_COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "serve": _serve,
    "ping": _ping,
    "store": _store,
    "definitions": _definitions,
    "ledger": _ledger,
    "list": _list,
}
