"""Commands that are programs of their own: they parse their command lines themselves.

Those that need extras import nothing of the broker.
"""

from __future__ import annotations

from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any, Final

import click

from vouchmq.server.cli.program import EXIT_MISTAKE, complain


class Handover(click.Command):
    """A command that hands everything behind its name on, `--help` included.

    Args:
        module: has a `main`, which takes the arguments and returns the exit code
        extra: brings what it needs
        needs: the packages, by the names that are imported
    """

    def __init__(self, name: str, module: str, extra: str, needs: tuple[str, ...]) -> None:
        super().__init__(name, add_help_option=False)
        self._module = module
        self._extra = extra
        self._needs = needs

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click: nothing is read here."""
        ctx.args = list(args)
        return ctx.args

    def invoke(self, ctx: click.Context) -> Any:
        """See click."""
        missing = [name for name in self._needs if not find_spec(name)]
        if missing:
            *some, last = missing
            names = f"{', '.join(some)} and {last}" if some else last
            complain(f"{self.name} needs {names}: pip install '{_package()}[{self._extra}]'")
            return EXIT_MISTAKE
        return import_module(self._module).main(ctx.args)


def _package() -> str:
    """What pip knows this program by: what is installed, or the checkout that it runs from."""
    try:
        return metadata.distribution("vouchmq").name
    except metadata.PackageNotFoundError:
        return "."


# Its words are RabbitMQ's, whose options stand where click has none.
rabbitmqctl: Final = Handover("rabbitmqctl", "vouchmq.server.cli.rabbitmqctl.main", "", ())
SPARK: Final = ("pyspark", "pyarrow")

conformance: Final = Handover(
    "conformance", "vouchmq.conformance.__main__", "conformance", ("jinja2", "pika", "aio_pika")
)
audit: Final = Handover("audit", "vouchmq.spark.audit.cli", "spark", SPARK)
archive: Final = Handover("archive", "vouchmq.spark.archive.cli", "spark", SPARK)
replay: Final = Handover("replay", "vouchmq.spark.replay.cli", "spark", SPARK)
