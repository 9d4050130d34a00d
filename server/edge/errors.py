"""The mistakes that keep a broker from starting; each is one line for the operator and exit 2.

Must not know who finds them: settings, the journal's opening, the listening socket.
"""

from __future__ import annotations


class StartupError(Exception):
    """The broker cannot start; the text is one clear line that names what to change."""


class SettingsError(StartupError):
    """A setting is unknown, has the wrong type, or is out of range."""
