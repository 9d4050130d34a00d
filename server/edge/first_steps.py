"""What somebody may try next who has started the broker on a terminal.

Must not know the broker; it is told where one listens.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vouchmq.server.settings.settings import default_of

if TYPE_CHECKING:
    from vouchmq.server.settings.settings import Settings

# Who listens on every address is found on this machine.
HERE: Final = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}  # noqa: S104


def first_steps(settings: Settings, port: int, program: str = "vouchmq") -> str:
    """A few lines: where to connect, with what, and how to go on and to stop.

    `program` is how this broker was started, for whoever has no `vouchmq` on the path.
    """
    host = HERE.get(settings.host[0], settings.host[0])
    # A password that somebody has chosen is nobody else's to see.
    names = ("users", "default_user", "default_pass", "load_definitions")
    is_default = all(getattr(settings, name) == default_of(name) for name in names)
    who = f"{settings.default_user}:{settings.default_pass}" if is_default else "USER:PASSWORD"
    url = f"amqp://{who}@{f'[{host}]' if ':' in host else host}:{port}/"
    return (
        f"  Connect:  {url}\n"
        "  Python:   pip install pika, then the first program in README.md\n"
        f"  Settings: {program} serve --help\n"
        "  Stop:     Ctrl-C\n"
    )


def started_as() -> str:
    """The command that started this process, as somebody would type it."""
    if Path(sys.argv[0]).name != "__main__.py":
        return sys.argv[0]
    python = Path(sys.executable)
    here = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    return f"{here} -m vouchmq"
