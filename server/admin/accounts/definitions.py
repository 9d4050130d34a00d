"""`export definitions` and `import definitions`: all that is durable, in RabbitMQ's form.

    export: rows of {"kind": "queues", "entry": {…}} ─▶ the answer, with the head of the document
    import: read ─▶ what is there already is left out ─▶ validated ─▶ applied ─▶ answer

Both go in slices (LIMIT-23). Must not know sockets or files.

Spec: HTTP-29, HTTP-40, HTTP-41, HTTP-42
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from msgspec import Struct

from vouchmq.server.admin.audit import Changing, who
from vouchmq.server.admin.commands import CommandRefused, refuse
from vouchmq.server.auth.passwords import SCRYPT
from vouchmq.server.definitions.document import DefinitionsError
from vouchmq.server.definitions.export import PRODUCT, exporting
from vouchmq.server.definitions.file import Content, reading
from vouchmq.server.definitions.importer import Importer
from vouchmq.server.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vouchmq.server.admin.accounts.administration import Administration
    from vouchmq.server.admin.commands import ControlCommands, Reply
    from vouchmq.server.admin.listing import RowSender

log = structlog.get_logger(__name__)


class ExportedRow(Struct, frozen=True, array_like=True):
    """An entry of a list of the document."""

    kind: str
    entry: dict[str, Any]


class ExportDefinitions(Changing, frozen=True, kw_only=True):
    """What to export: one virtual host; None: all, with users."""

    vhost: str | None = None


class ImportDefinitions(ExportDefinitions, frozen=True, kw_only=True):
    """A document, as text of JSON; with a virtual host all of it is made in that one."""

    text: str


class DefinitionsCommands:
    """The commands that export and import definitions.

    Args:
        administration: of the broker
        sender: sends rows
    """

    def __init__(self, administration: Administration, sender: RowSender) -> None:
        self._administration = administration
        self._sender = sender
        self._importer = Importer(administration.broker, administration.authenticator)

    def register(self, commands: ControlCommands) -> None:
        """Enter the commands."""
        commands.register("export definitions", ExportDefinitions, self._export)
        commands.register("import definitions", ImportDefinitions, self._import)

    def _export(self, asked: ExportDefinitions, reply: Reply) -> None:
        administration = self._administration
        # It shows the hashes of all passwords.
        administration.allow(asked)
        if asked.vhost is not None:
            administration.vhost(asked.vhost)
        reply.send({"columns": list(ExportedRow.__struct_fields__)})
        users = administration.accounts.users.values()
        slow = sorted(each.user for each in users if each.hashing_algorithm == SCRYPT)

        def rows() -> Iterator[ExportedRow]:
            for kind, entry in exporting(administration.broker, asked.vhost):
                yield ExportedRow(kind, entry)

        self._sender.send(
            rows(),
            reply,
            product_name=PRODUCT,
            product_version=VERSION,
            # RabbitMQ cannot import these.
            not_portable_users=slow if asked.vhost is None else [],
        )

    def _import(self, asked: ImportDefinitions, reply: Reply) -> None:
        administration = self._administration
        administration.begin(asked)
        if asked.vhost is not None:
            administration.vhost(asked.vhost)
        content = Content()

        def steps() -> Iterator[None]:
            yield from reading(asked.text, content, asked.vhost)
            yield from self._importer.leave_out(content)
            # The disk, or the user's rights, may be others by now.
            administration.begin(asked)
            yield from self._importer.applying(content, is_file=False)

        def then() -> None:
            log.info("admin.definitions_imported", **who(asked), vhost=asked.vhost or "")
            administration.answer(reply, self._importer.defined_lsn, skipped=content.skipped)

        def fail(error: Exception) -> None:
            if isinstance(error, CommandRefused):
                refuse(reply, error.text, error.code)
            elif isinstance(error, DefinitionsError):
                refuse(reply, "\n".join(error.args))
            else:
                raise error

        administration.in_slices(steps(), then, fail)
