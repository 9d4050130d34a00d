"""The command line: `vouchmq serve`, `ping`, `list`, `store`, `ledger`, and more.

    command line → click → a function of `commands/`, which imports what it needs

What a command needs is imported when it runs, so that `--help` answers at once. Must not know
AMQP. Exit codes: 0 done, 1 the broker failed, refuses or does not answer or a store is damaged,
2 it could not start, there is no broker, or the command line is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from vouchmq.server.cli.program import Entry, Program
from vouchmq.server.version import VERSION, build_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS: Final = "vouchmq.server.cli.commands"
ENTRIES: Final = {
    "serve": Entry(f"{COMMANDS}.serve:serve", "Run the broker."),
    "ping": Entry(f"{COMMANDS}.serve:ping", "Check that a broker answers."),
    "status": Entry(f"{COMMANDS}.overview:status", "Show one page about a running broker."),
    "top": Entry(f"{COMMANDS}.overview:top", "Show rates as they change."),
    "watch": Entry(f"{COMMANDS}.overview:watch", "Show what happens as it happens."),
    "doctor": Entry(f"{COMMANDS}.doctor:doctor", "Find what is wrong with a set-up."),
    "list": Entry(f"{COMMANDS}.listing:listing", "List what a running broker has."),
    "show": Entry(f"{COMMANDS}.listing:show", "Show one object with what belongs to it."),
    "declare": Entry(f"{COMMANDS}.objects:declare", "Declare a queue, an exchange or a binding."),
    "put": Entry(f"{COMMANDS}.accounts:put", "Set a user, permissions, a virtual host, a policy…"),
    "delete": Entry(f"{COMMANDS}.objects:delete", "Delete an object, a user, a policy…"),
    "purge": Entry(f"{COMMANDS}.objects:purge", "Delete the messages of a queue."),
    "pause": Entry(f"{COMMANDS}.objects:pause", "Have a queue deliver nothing."),
    "resume": Entry(f"{COMMANDS}.objects:resume", "Have a paused queue deliver again."),
    "close": Entry(f"{COMMANDS}.objects:close", "Close a connection or a channel."),
    "publish": Entry(f"{COMMANDS}.messages:publish", "Publish a message."),
    "get": Entry(f"{COMMANDS}.messages:get", "Show messages from the head of a queue."),
    "peek": Entry(f"{COMMANDS}.moving:peek", "Show messages without consuming any."),
    "tail": Entry(f"{COMMANDS}.moving:tail", "Show messages as they come, without consuming any."),
    "move": Entry(f"{COMMANDS}.moving:move", "Move or copy messages of a queue."),
    "bench": Entry(f"{COMMANDS}.bench:bench", "Measure any AMQP 0-9-1 broker."),
    "drain": Entry(f"{COMMANDS}.overview:drain", "Stop a broker when its clients have gone."),
    "manage": Entry(f"{COMMANDS}.manage:manage", "Serve the HTTP API of a running broker."),
    "ha": Entry(
        "vouchmq.server.cli.replicated.commands:ha", "Make a shared log, and see who leads."
    ),
    "store": Entry(f"{COMMANDS}.store:store", "Inspect, back up and restore a data directory."),
    "definitions": Entry(f"{COMMANDS}.definitions:definitions", "Export and import definitions."),
    "ledger": Entry(f"{COMMANDS}.ledger:ledger", "Control the ledger of a running broker."),
    "completion": Entry(
        f"{COMMANDS}.completion:completion", "Print a script that completes words in a shell."
    ),
    "rabbitmqctl": Entry(
        f"{COMMANDS}.handover:rabbitmqctl", "Take the words of RabbitMQ's rabbitmqctl."
    ),
    "conformance": Entry(
        f"{COMMANDS}.handover:conformance", "Test any AMQP 0-9-1 broker against the specification."
    ),
    "audit": Entry(
        f"{COMMANDS}.handover:audit", "Verify from ledgers what became of every message."
    ),
    "archive": Entry(f"{COMMANDS}.handover:archive", "Copy a queue or stream into a table."),
    "replay": Entry(f"{COMMANDS}.handover:replay", "Publish the messages of an archive again."),
}

program: Final = Program(
    "vouchmq",
    entries=ENTRIES,
    help="VouchMQ, a message broker for AMQP 0-9-1.",
    epilog="vouchmq COMMAND --help explains a command.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(VERSION, message=f"vouchmq {VERSION} ({build_kind()})")(program)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    return program.main(arguments, standalone_mode=False)
