"""What a client may be told of a login that came to nothing; interpreted, as the errors it extends.

Spec: CONN-22, CONN-23, CONN-24
"""

from __future__ import annotations

from vouchmq.protocol import errors
from vouchmq.protocol.errors import HardError


class LoginFailure(HardError):  # noqa: N818 - as in the tree it extends
    """A login that came to nothing; `notify` is False when the client must not be told.

    Spec: CONN-23, CONN-24
    """

    notify = False

    def telling(self, notify: bool) -> LoginFailure:
        """The same failure, with `notify` set."""
        self.notify = notify
        return self


class LoginRefused(LoginFailure, errors.LoginRefused):
    """Wrong user, password or place: one text for all (CONN-22)."""


class UnknownMechanism(LoginFailure, errors.CommandInvalid):
    """A mechanism that was not offered (CONN-24)."""


class InvalidResponse(LoginFailure, errors.SyntaxRefused):
    """A response that is not in the form of its mechanism (CONN-24)."""
