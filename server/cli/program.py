"""The groups of the command line: commands that are imported when needed, mistakes in one line.

    vouchmq list queues --jsn  ─▶  vouchmq: no such option: --jsn …; see vouchmq list queues --help

click parses. Commands return their exit code; what they raise ends here. Must not know a command.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import click

from vouchmq.server.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from click.shell_completion import CompletionItem

EXIT_MISTAKE: Final = 2
EXIT_INTERRUPTED: Final = 130
NAME: Final = "vouchmq"
# Of a name that is suggested in place of what was typed.
LEAST_LIKENESS: Final = 0.6
UNUSED_BY_STRUCTLOG: Final = ("rich", "greenlet")


class CommandFailed(Exception):  # noqa: N818 - not an error of this program
    """A command that could not be done.

    Args:
        text: why, in one line
        exit_code: of the program
    """

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.text = text
        self.exit_code = exit_code


def import_structlog() -> None:
    """Import structlog without what it tries to import, for processes that stay.

    structlog prints tracebacks with rich, and keeps contexts by greenlet, if these can be imported:
    5 MB and 1 MB of memory for what `configure_logs` never has it do. Who needs them can import
    them afterwards.
    """
    hidden = [name for name in UNUSED_BY_STRUCTLOG if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = cast("ModuleType", None)
    try:
        import_module("structlog")
    finally:
        for name in hidden:
            del sys.modules[name]


class Entry(NamedTuple):
    """A command that is not imported yet.

    Args:
        where: module and name in it, with a colon between them
        text: what it does, for the help of its group
    """

    where: str
    text: str


class Group(click.Group):
    """A group of commands, some of which may be imported when they are needed.

    Args:
        entries: those, by name
    """

    def __init__(self, *args: Any, entries: Mapping[str, Entry] | None = None, **more: Any) -> None:
        more.setdefault("no_args_is_help", False)
        super().__init__(*args, **more)
        self._entries = dict(entries or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click: the names, in the order in which help shows them."""
        del ctx
        return [*self.commands, *(name for name in self._entries if name not in self.commands)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click: a command, which is imported now at the latest."""
        entry = self._entries.get(cmd_name)
        if entry is not None and cmd_name not in self.commands:
            module, _, name = entry.where.partition(":")
            self.add_command(getattr(import_module(module), name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See click, which suggests only commands that have been imported."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            names = self.list_commands(ctx)
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=names, ctx=ctx
            ) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """See click, which would import every command to complete the name of one."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        item: type[CompletionItem] = import_module("click.shell_completion").CompletionItem
        return [
            item(name, help=self._entries[name].text if name in self._entries else None)
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click: what there is, without importing it."""
        del ctx
        with formatter.section("Commands"):
            rows = {name: entry.text for name, entry in self._entries.items()}
            own = {
                name: each.get_short_help_str(200)
                for name, each in self.commands.items()
                if name not in rows
            }
            formatter.write_dl([*(own | rows).items()])


class Program(Group):
    """The whole command line."""

    # One signature, where click has one for each value of `standalone_mode`.
    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = NAME,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> int:
        """Run one command; returns the exit code, or exits with it as `standalone_mode` says."""
        code = self._run(args, prog_name, complete_var, **extra)
        if standalone_mode:
            sys.exit(code)
        return code

    def _run(
        self,
        args: Sequence[str] | None,
        prog_name: str | None,
        complete_var: str | None,
        **extra: Any,
    ) -> int:
        try:
            code: object = super().main(args, prog_name, complete_var, False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            return EXIT_MISTAKE
        except click.ClickException as error:
            complain(_line(error))
            return EXIT_MISTAKE
        except CommandFailed as error:
            # Some reasons of the broker have several lines.
            complain(" ".join(error.text.split()))
            return error.exit_code
        except StartupError as error:
            for line in error.args:
                complain(line)
            return EXIT_MISTAKE
        except (click.Abort, KeyboardInterrupt):
            return EXIT_INTERRUPTED
        except BrokenPipeError:
            # Whoever reads has seen enough; Python would complain again when it ends.
            with suppress(OSError):
                sys.stdout = open("/dev/null", "w", encoding="ascii")  # noqa: PTH123, SIM115
            return 0
        return code if isinstance(code, int) else 0


def complain(line: str) -> None:
    """Say what is wrong, on standard error."""
    click.echo(f"{NAME}: {line}", err=True)


def _line(error: click.ClickException) -> str:
    """A mistake as one line, which says where to read on."""
    # click's messages are sentences; some list choices below each other.
    text = " ".join(error.format_message().split())
    if isinstance(error, click.NoSuchOption | click.exceptions.NoSuchCommand):
        text = error.message.removesuffix(".")
        given = error.option_name if isinstance(error, click.NoSuchOption) else error.command_name
        near = [each for each in error.possibilities or () if _is_near(given, each)]
        if near:
            text += f" (did you mean {' or '.join(near)}?)"
    text = text[:1].lower() + text[1:].removesuffix(".")
    for kind, word in (("integer range", "integer"), ("float range", "number")):
        text = text.replace(f"is not a valid {kind}", f"is not a valid {word}")
    context = error.ctx if isinstance(error, click.UsageError) else None
    # Its parser does not always know whose option it was.
    path = context.command_path if context is not None else NAME
    return f"{text}; see {path} --help"


def _is_near(given: str, name: str) -> bool:
    """Whether somebody may have meant a name. click counts the dashes in front as letters."""
    matcher = import_module("difflib").SequenceMatcher
    likeness: float = matcher(None, given.lstrip("-"), name.lstrip("-")).ratio()
    return likeness >= LEAST_LIKENESS
