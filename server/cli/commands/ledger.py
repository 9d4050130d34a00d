"""`vouchmq ledger on`, `off`, `status`, `inventory`, `rotate` and `audited`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from vouchmq.server.cli.options import broker_options, json_option
from vouchmq.server.cli.program import Group

if TYPE_CHECKING:
    from vouchmq.server.cli.client import Broker

VERBS: Final = {
    "on": "Start recording events.",
    "off": "Stop, after inventories of all queues; print the newest file.",
    "status": "Show whether it is on, and how many lines it has dropped.",
    "inventory": "Take inventories of all queues; print the file in which they end.",
    "rotate": "Close the current file so that it can be read, and print its path.",
}


@click.group(cls=Group)
def ledger() -> None:
    """Control the ledger of a running broker."""


def _add(verb: str, text: str) -> None:
    @ledger.command(
        verb,
        short_help=text,
        help=f"{text}\n\nThe command goes to the broker that uses a data directory. Exit 0 if it "
        "succeeds, 1 with the reason if the broker refuses, 2 if no broker uses it.",
    )
    @json_option
    @broker_options
    def run(broker: Broker, as_json: bool) -> int:
        ledger_command = import_module("vouchmq.server.cli.running.ledger").run
        code: int = ledger_command(broker, verb, as_json=as_json)
        return code


for _verb, _text in VERBS.items():
    _add(_verb, _text)


@ledger.command()
@click.argument("summary", metavar="SUMMARY")
@json_option
@broker_options
def audited(broker: Broker, summary: str, as_json: bool) -> int:
    """Tell a broker what an audit of its ledger has found.

    SUMMARY is `summary.json` in the directory that `vouchmq audit --out` names. `vouchmq ledger
    status` and the page show it from then on. Exit 0 on success, 1 if the broker refuses, 2 if no
    broker uses the directory or SUMMARY is not such a file.
    """
    module = import_module("vouchmq.server.cli.running.ledger")
    code: int = module.audited(broker, summary, as_json=as_json)
    return code
