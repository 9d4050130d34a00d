"""The words of a rabbitmqctl command line: options may stand before and behind the command.

Must not know what a command does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EXIT_USAGE: Final = 64

# Options with a value, and switches, by what they are called.
VALUES: Final[Mapping[str, str]] = {
    "-p": "vhost",
    "--vhost": "vhost",
    "-n": "node",
    "--node": "node",
    "-t": "timeout",
    "--timeout": "timeout",
    "--formatter": "formatter",
    "--priority": "priority",
    "--apply-to": "apply_to",
    "--description": "description",
    "--tags": "tags",
    "--default-queue-type": "default_queue_type",
    "--data-dir": "data_dir",
    "--config": "config",
}
SWITCHES: Final[Mapping[str, str]] = {
    "-q": "quiet",
    "--quiet": "quiet",
    "-s": "silent",
    "--silent": "silent",
    "--no-table-headers": "no_table_headers",
    "-e": "if_empty",
    "--if-empty": "if_empty",
    "-u": "if_unused",
    "--if-unused": "if_unused",
}


class Mistake(Exception):  # noqa: N818 - of whoever typed it
    """A command line or a request that is refused, with RabbitMQ's exit code for it."""

    def __init__(self, text: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(text)
        self.text = text
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Words:
    """A command line, taken apart.

    Args:
        command: the first word that is no option
        arguments: those that follow
        values: options with a value
        switches: options without
    """

    command: str
    arguments: tuple[str, ...]
    values: Mapping[str, str] = field(default_factory=dict)
    switches: frozenset[str] = frozenset()

    @property
    def vhost(self) -> str:
        """The virtual host that is meant."""
        return self.values.get("vhost", "/")

    def take(self, *names: str) -> tuple[str, ...]:
        """As many arguments as there are names.

        Raises:
            Mistake: there are more or fewer
        """
        if len(self.arguments) != len(names):
            wanted = " ".join(f"<{name}>" for name in names) or "no arguments"
            raise Mistake(f"{self.command} takes {wanted}")
        return self.arguments

    def allow(self, *options: str) -> None:
        """Refuse options of other commands.

        Raises:
            Mistake: there is one
        """
        of_all = {"node", "timeout", "formatter", "data_dir", "config"}
        of_all |= {"quiet", "silent", "no_table_headers"}
        for name in (*self.values, *self.switches):
            if name not in of_all and name not in options:
                shown = "-p" if name == "vhost" else f"--{name.replace('_', '-')}"
                raise Mistake(f"{self.command} does not take {shown}")


def parse(given: Sequence[str]) -> Words:
    """Take a command line apart.

    Raises:
        Mistake: an option is unknown or has no value
    """
    words: list[str] = []
    values: dict[str, str] = {}
    switches: set[str] = set()
    rest = iter(given)
    for word in rest:
        if word == "--":
            words.extend(rest)
            break
        name, equals, value = word.partition("=")
        if word in SWITCHES:
            switches.add(SWITCHES[word])
        elif name in VALUES and equals and name.startswith("--"):
            values[VALUES[name]] = value
        elif word in VALUES:
            found = next(rest, None)
            if found is None:
                raise Mistake(f"option {word} needs a value")
            values[VALUES[word]] = found
        elif word.startswith("-") and len(word) > 1:
            raise Mistake(f"there is no option {word}")
        else:
            words.append(word)
    command, *arguments = words or [""]
    return Words(command, tuple(arguments), values, frozenset(switches))
