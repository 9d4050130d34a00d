"""The commands of the control socket: a name, its arguments, and who does it.

    {"command": "delete queue", "vhost": "/", "name": "orders"}
        ─▶ registry ─▶ checked arguments, a Struct ─▶ a handler, which answers now or later

Who can do something for an operator registers commands by name (verb and noun) with the Struct of
their arguments; nobody has to know all of them. What is missing, unknown or of the wrong type is
refused before the handler sees it. A handler that raises an AMQP error or `CommandRefused` has
answered with it.

Must not know sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog
from msgspec import Struct, ValidationError, convert

from vouchmq.protocol.errors import AmqpError

if TYPE_CHECKING:
    from collections.abc import Mapping

log = structlog.get_logger(__name__)

BAD_REQUEST = 400
INTERNAL_ERROR = 541


class Arguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of a command; one without any takes these."""


class CommandRefused(Exception):  # noqa: N818 - not an error of the broker
    """A command that the broker does not do.

    Args:
        text: why, for whoever asked
        code: as in HTTP and AMQP: 400 a bad request, 404 no such object, 406 a failed precondition…
    """

    def __init__(self, text: str, code: int = BAD_REQUEST) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


class Reply(Protocol):
    """Where an answer goes. Called: the last of it."""

    def __call__(self, facts: Mapping[str, object], /) -> None:
        """Answer with one map that has `ok`, which ends the command."""

    @property
    def is_open(self) -> bool:
        """False when nobody reads any more, or the command has been answered."""

    @property
    def is_full(self) -> bool:
        """True while more is on its way to the reader than should be."""

    def send(self, content: Mapping[str, object], /) -> None:
        """What comes before the last of the answer: `columns`, then `rows`."""

    def when_writable(self, job: Callable[[], None], /) -> None:
        """Have this called once it is not full any more; never, when the reader goes."""

    def when_gone(self, job: Callable[[], None], /) -> None:
        """Have this called if the reader goes before it has the answer."""


T = TypeVar("T", bound=Arguments)
Command = Callable[[T, Reply], None]


def refuse(reply: Reply, text: str, code: int = BAD_REQUEST) -> None:
    """Answer that a command is not done, and why."""
    reply({"ok": False, "error": text, "code": code})


class ControlCommands:
    """What may be asked over the control socket, by name.

    Args:
        why_not: says why a broker of this kind does not know what others do
    """

    def __init__(self, why_not: Callable[[], str] | None = None) -> None:
        self._why_not = why_not
        self._commands: dict[str, Callable[[Mapping[str, object], Reply], None]] = {}

    def register(self, name: str, arguments: type[T], command: Command[T]) -> None:
        """Have `command` called with its arguments and the reply when `name` is asked for.

        Raises:
            ValueError: the name is taken
        """
        if name in self._commands:
            raise ValueError(f"the command {name!r} is registered already")
        self._commands[name] = partial(_call, name, arguments, command)

    @property
    def names(self) -> list[str]:
        """The names of all registered commands, sorted."""
        return sorted(self._commands)

    def run(self, request: Mapping[str, object], reply: Reply) -> None:
        """Do what a request asks for, or answer why not. Never raises."""
        given = dict(request)
        name = given.pop("command", None)
        command = self._commands.get(name) if isinstance(name, str) else None
        if name is None:
            refuse(reply, "a request needs a command")
        elif command is None:
            why_not = self._why_not
            reply(
                {
                    "ok": False,
                    "error": why_not() if why_not else f"this broker has no command {name!r}",
                    "code": 404,
                    "commands": self.names,
                }
            )
        else:
            command(given, reply)


def _call(
    name: str,
    kind: type[T],
    command: Command[T],
    given: Mapping[str, object],
    reply: Reply,
) -> None:
    try:
        arguments = convert(given, kind)
    except ValidationError as error:
        refuse(reply, f"{name}: {error}")
        return
    try:
        command(arguments, reply)
    except CommandRefused as error:
        refuse(reply, error.text, error.code)
    except AmqpError as error:
        refuse(reply, error.reply_text, error.code)
    except Exception as error:
        # Whoever asks for too much shall not end a broker.
        log.exception("control.command_failed", command=name)
        refuse(reply, f"INTERNAL_ERROR - {type(error).__name__}", INTERNAL_ERROR)
