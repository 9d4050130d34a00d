"""`vouchmq definitions export` and `import`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

from vouchmq.server.cli.commands.messages import read
from vouchmq.server.cli.options import broker_options, json_option
from vouchmq.server.cli.program import Group

if TYPE_CHECKING:
    from vouchmq.server.cli.client import Broker


@click.group(cls=Group)
def definitions() -> None:
    """Export and import definitions: users, virtual hosts, policies, exchanges, queues…"""


@definitions.command(short_help="Print the definitions of a broker or a data directory.")
@click.option("--running", is_flag=True, help="Ask the broker that runs, as --url does.")
@click.option("--vhost", metavar="NAME", help="Of a running broker: only what is in this one.")
@broker_options
def export(broker: Broker, running: bool, vhost: str | None) -> int:
    """Print users, permissions, virtual hosts, policies, durable exchanges, queues and bindings in
    the format that --load-definitions and RabbitMQ read, as JSON.

    Without --running and --url those on disk are read from the data directory. Nothing is changed;
    the broker may be running. The exit codes are those of store check.

    Of a running broker: exit 0 on success, 1 if it refuses, 2 if none answers.
    """
    directory = getattr(broker, "directory", None)
    code: int
    if directory is not None and not running:
        if vhost is not None:
            raise click.UsageError("--vhost needs --running or --url")
        code = import_module("vouchmq.server.cli.data_dir.definitions").export(directory)
    else:
        code = import_module("vouchmq.server.cli.running.definitions").export(broker, vhost)
    return code


@definitions.command("import", short_help="Declare what a file of definitions has.")
@click.argument("file", metavar="FILE")
@click.option("--vhost", metavar="NAME", help="Declare all of it in this virtual host.")
@json_option
@broker_options
def import_(broker: Broker, file: str, vhost: str | None, as_json: bool) -> int:
    """Have a running broker declare everything in a file, which RabbitMQ may have exported; - reads
    the input.

    Nothing is deleted. A mistake in the file changes nothing. What this broker does not have is
    skipped and listed. Exit 0 on success, 1 if the broker refuses, 2 if none answers or the file
    cannot be read.
    """
    module = import_module("vouchmq.server.cli.running.definitions")
    source = "standard input" if file == "-" else file
    text = read(file, "FILE")
    code: int = module.import_text(broker, text, vhost, source=source, as_json=as_json)
    return code
