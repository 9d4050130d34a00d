"""What a command asks a running broker with: `ask` for one answer, `rows` for a listing.

    command ─▶ Broker.ask("delete queue", vhost="/", name="q") ─▶ control socket ─▶ answer

Whoever asks never looks at how the question travels. Must not know what is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from vouchmq.server.cli.program import CommandFailed
from vouchmq.server.edge.control.client import ANSWER_LIMIT_S, NoBrokerError, ask_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXIT_REFUSED: Final = 1
EXIT_NO_BROKER: Final = 2
EXIT_BAD_VALUE: Final = 2


class Refused(CommandFailed):
    """The broker does not do what it was asked for.

    Args:
        text: the command and the broker's reason
        code: as in HTTP: 404 no such object, 406 a failed precondition…
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text, EXIT_REFUSED)
        self.code = code


class Listing:
    """The rows of a listing: `columns` is known with the first, and what else there is to say, the
    `facts`, with the last."""

    def __init__(self, rows: Iterator[dict[str, Any]]) -> None:
        self._rows = rows
        self.columns: list[str] = []
        self.facts: dict[str, Any] = {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows, once.

        Raises:
            Refused: the broker does not list this
        """
        for row in self._rows:
            if "ok" in row:
                self.columns = self.columns or row.get("columns", [])
                self.facts = row
                return
            self.columns = self.columns or list(row)
            yield row


class Broker(Protocol):
    """A running broker."""

    def ask(self, command: str, /, **arguments: object) -> dict[str, Any]:
        """Have it do something; gives its answer.

        Raises:
            CommandFailed: it refuses, or none runs there
        """

    def rows(self, command: str, /, **arguments: object) -> Listing:
        """The same, of a command that answers with rows."""

    def watch(self, command: str, /, **arguments: object) -> Listing:
        """The same, of one whose rows come when something happens."""


class LocalBroker:
    """The broker that uses a data directory, asked over the control socket in it.

    Args:
        directory: that
        limit_s: longest wait for each part of an answer
    """

    def __init__(self, directory: Path, limit_s: float = ANSWER_LIMIT_S) -> None:
        self.directory = directory
        self._limit_s = limit_s

    def ask(self, command: str, /, **arguments: object) -> dict[str, Any]:
        """See `Broker`."""
        *_, answer = self._answers(command, arguments, self._limit_s)
        return answer

    def rows(self, command: str, /, **arguments: object) -> Listing:
        """See `Broker`."""
        return Listing(self._answers(command, arguments, self._limit_s))

    def watch(self, command: str, /, **arguments: object) -> Listing:
        """See `Broker`."""
        return Listing(self._answers(command, arguments, None))

    def _answers(
        self, command: str, arguments: dict[str, object], limit_s: float | None
    ) -> Iterator[dict[str, Any]]:
        try:
            for row in ask_rows(self.directory, command, limit_s, **arguments):
                if "ok" in row and not row["ok"]:
                    raise Refused(f"{command}: {row.get('error', 'refused')}", row.get("code", 400))
                yield row
        except NoBrokerError as error:
            text = f"{error}; --data-dir names another one"
            raise CommandFailed(text, EXIT_NO_BROKER) from None
        except OverflowError:
            text = f"{command}: an integer takes more than 64 bits"
            raise CommandFailed(text, EXIT_BAD_VALUE) from None
