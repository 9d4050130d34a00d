"""The mistakes that keep a broker from starting; one line each for the operator, and exit 2.

Must not know who finds them: settings, the journal's opening, the listening socket.
"""

from __future__ import annotations


class StartupError(Exception):
    """The broker cannot start; each argument is one clear line that names what to change."""

    def __str__(self) -> str:
        """All of them in one line, for the log."""
        return "; ".join(map(str, self.args))


class SettingsError(StartupError):
    """A setting is unknown, has the wrong type, or is out of range."""
