"""The program: a command line as rabbitmqctl's, at the broker that uses a data directory.

    words ─▶ settings (which directory) ─▶ command ─▶ control socket ─▶ RabbitMQ's output

Exit codes are RabbitMQ's: 0 done, 64 a wrong command line, 65 wrong data, 67 no such user, 69 no
broker or no such object, 70 anything else that is refused.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import StringIO
from typing import TYPE_CHECKING, Any, Final, TextIO

from vouchmq.server.cli.client import LocalBroker, Refused
from vouchmq.server.cli.program import CommandFailed
from vouchmq.server.cli.rabbitmqctl import changes, listings
from vouchmq.server.cli.rabbitmqctl.output import Output
from vouchmq.server.cli.rabbitmqctl.words import EXIT_USAGE, Mistake, Words, parse
from vouchmq.server.errors import StartupError
from vouchmq.server.settings.settings import load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vouchmq.server.cli.client import Broker


def status(broker: Broker, words: Words, output: Output) -> None:
    """status: what `vouchmq status` shows"""
    from vouchmq.server.cli.running import status as page

    words.allow()
    words.take()
    if words.values.get("formatter") == "json":
        page.run(broker, as_json=True, out=output.out)
        return
    output.banner(f"Status of node {words.values.get('node') or broker.ask('status')['node']} ...")
    page.run(broker, as_json=False, out=output.out)


def await_startup(broker: Broker, words: Words, _: Output) -> None:
    """await_startup: ends when the broker answers, which it does when clients can connect"""
    words.allow()
    words.take()
    broker.ask("status")


def ping(broker: Broker, words: Words, output: Output) -> None:
    """ping: whether the broker answers"""
    words.allow()
    words.take()
    node = broker.ask("status")["node"]
    output.banner(f"Will ping {node}. This only checks if the broker answers.")
    output.banner("Ping succeeded")


def import_definitions(broker: Broker, words: Words, output: Output) -> None:
    """import_definitions <file>"""
    words.allow()
    (file,) = words.take("file")
    output.banner(f"Importing definitions in JSON from a file at {file!r} ...")
    try:
        with open(file, encoding="utf-8") as opened:  # noqa: PTH123 - as it is typed
            text = opened.read()
    except (OSError, UnicodeDecodeError) as error:
        raise Mistake(f"{file}: {error}", changes.EXIT_DATA) from None
    for each in broker.ask("import definitions", text=text).get("skipped") or []:
        output.line(f"skipped: {each}")


def export_definitions(broker: Broker, words: Words, output: Output) -> None:
    """export_definitions <file>: - is the standard output"""
    from vouchmq.server.cli.running import definitions

    words.allow()
    (file,) = words.take("file")
    if file == "-":
        definitions.export(broker, None, output.out)
        return
    output.banner(f"Exporting definitions in JSON to a file at {file!r} ...")
    found = StringIO()
    definitions.export(broker, None, found)
    try:
        # Hashes of passwords are nobody else's business.
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as opened:  # noqa: PTH123 - a descriptor
            opened.write(found.getvalue())
    except OSError as error:
        raise Mistake(f"{file}: {error.strerror}", changes.EXIT_DATA) from None


COMMANDS: Final[Mapping[str, Callable[[Broker, Words, Output], None]]] = {
    **{
        each.__name__: each
        for each in (
            *(changes.add_user, changes.change_password, changes.clear_password),
            *(changes.set_user_tags, changes.delete_user, changes.authenticate_user),
            *(changes.add_vhost, changes.delete_vhost),
            *(changes.set_permissions, changes.clear_permissions),
            *(changes.set_topic_permissions, changes.clear_topic_permissions),
            *(changes.set_policy, changes.clear_policy),
            *(changes.set_operator_policy, changes.clear_operator_policy),
            *(changes.set_vhost_limits, changes.set_user_limits),
            *(changes.purge_queue, changes.delete_queue),
            *(changes.close_connection, changes.close_all_connections),
            *(listings.list_user_permissions, status, await_startup, ping),
            *(import_definitions, export_definitions),
        )
    },
    **dict.fromkeys(listings.LISTINGS, listings.show),
}


def run(given: Sequence[str], out: TextIO | None = None) -> int:
    """Do what a command line says; returns the exit code."""
    out = sys.stdout if out is None else out
    try:
        words = parse(given)
        if words.command in {"", "help"}:
            out.write(usage())
            return 0 if words.command else EXIT_USAGE
        command = COMMANDS.get(words.command)
        if words.command == "eval":
            raise Mistake("eval runs Erlang, which this broker does not have")
        if command is None:
            raise Mistake(f"there is no command '{words.command}'; see vouchmq rabbitmqctl help")
        output = Output(words, out)
        command(_broker(words), words, output)
    except Mistake as error:
        return _fail(error.text, error.exit_code)
    except Refused as error:
        return _fail(error.text.partition(": ")[2], changes.EXIT_SOFTWARE)
    except CommandFailed as error:
        return _fail(error.text, changes.EXIT_UNAVAILABLE)
    except StartupError as error:
        return _fail("; ".join(map(str, error.args)), EXIT_USAGE)
    except BrokenPipeError:
        with suppress(OSError):
            sys.stdout = open("/dev/null", "w", encoding="ascii")  # noqa: PTH123, SIM115
    return 0


def _fail(text: str, exit_code: int) -> int:
    sys.stderr.write(f"Error:\n{text}\n")
    return exit_code


def _broker(words: Words) -> Broker:
    """The broker of the data directory of the settings.

    Raises:
        Mistake: it is another node than the one that was named
    """
    flags = {name: words.values[name] for name in ("data_dir", "config") if name in words.values}
    timeout = words.values.get("timeout")
    broker = LocalBroker(load(flags, os.environ).data_dir, *_limit(timeout))
    node = words.values.get("node")
    if node is not None:
        actual = broker.ask("status")["node"]
        if node != actual:
            text = f"the broker of this data directory is node {actual}, not {node}"
            raise Mistake(
                f"{text}; set its name with vouchmq serve --node", changes.EXIT_UNAVAILABLE
            )
    return broker


def _limit(timeout: str | None) -> tuple[float, ...]:
    if timeout is None:
        return ()
    try:
        seconds = float(timeout)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise Mistake(f"--timeout: expected seconds, not {timeout!r}")
    return (seconds,)


def usage() -> str:
    """What there is."""
    lines = [
        "Usage: vouchmq rabbitmqctl [OPTIONS] COMMAND [ARGUMENTS]",
        "",
        "The part of RabbitMQ's rabbitmqctl that test suites and scripts call.",
        "",
        "Options:",
        "  -p, --vhost NAME            the virtual host; / by default",
        "  -q, --quiet                 print only the result",
        "  -s, --silent                print only the result, without heads of columns",
        "  --no-table-headers          print no heads of columns",
        "  --formatter table|json|csv  how listings are printed",
        "  -t, --timeout SECONDS       longest wait for an answer",
        "  -n, --node NAME             refuse if the broker has another name",
        "  --data-dir DIR              the data directory of the broker",
        "  --config FILE               the configuration file that names it",
        "",
        "Commands:",
    ]
    return "\n".join([*lines, *(f"  {name}" for name in sorted(COMMANDS)), ""])


def script() -> None:
    """The program `vouchmq-rabbitmqctl`."""
    sys.exit(run(sys.argv[1:]))


def main(arguments: list[str]) -> Any:
    """`vouchmq rabbitmqctl`, with what follows."""
    return run(arguments)
