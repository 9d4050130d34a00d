"""`authenticate`: whether somebody is who they say, for a process that lets people in elsewhere.

The login is counted and refused as one of AMQP is. Must not know sockets.

Spec: HTTP-02, AUTH-08, AUTH-10
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from vouchmq.server.admin.commands import Arguments, refuse
from vouchmq.server.auth.attempts import HTTP
from vouchmq.server.auth.authenticator import LoginError, UncheckedLogin, is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vouchmq.server.admin.commands import ControlCommands, Reply
    from vouchmq.server.auth.authenticator import Authenticator, Outcome

log = structlog.get_logger(__name__)

LOGIN_REFUSED: Final = 401
TOO_MANY_LOGINS: Final = 429
TOO_MANY: Final = "Too many logins have failed; try again later"


class Login(Arguments, frozen=True):
    """Who somebody says they are.

    Args:
        user: name
        password: of the user
        address: of whom the login comes from; "" from this machine
    """

    user: str
    password: str
    address: str = ""


class LoginCommands:
    """Checks logins of others.

    Args:
        auth: all users
        vhosts: the names of all virtual hosts, as they are when asked
    """

    def __init__(self, auth: Authenticator, vhosts: Iterable[str]) -> None:
        self._auth = auth
        self._vhosts = vhosts

    def register(self, commands: ControlCommands) -> None:
        """Enter the commands."""
        commands.register("authenticate", Login, self._authenticate)
        commands.register("reset login attempts", Arguments, self._reset_attempts)

    def _reset_attempts(self, _: Arguments, reply: Reply) -> None:
        self._auth.attempts.reset()
        reply({"ok": True})

    def _authenticate(self, login: Login, reply: Reply) -> None:
        def done(outcome: Outcome) -> None:
            self._answer(login, outcome, reply)

        try:
            user = self._auth.log_in(
                login.user,
                login.password,
                is_loopback=is_loopback(login.address),
                address=login.address,
                done=done,
                is_wanted=lambda: reply.is_open,
            )
        except LoginError as error:
            done(error)
        else:
            if user is not None:
                done(user)

    def _answer(self, login: Login, outcome: Outcome, reply: Reply) -> None:
        """Tell what the user may look at; what they may change, commands ask when it is time."""
        self._auth.attempts.count(HTTP, is_ok=not isinstance(outcome, LoginError))
        if isinstance(outcome, LoginError):
            if outcome.is_told:
                log.warning("management.login_failed", address=login.address, reason=str(outcome))
            if isinstance(outcome, UncheckedLogin):
                refuse(reply, TOO_MANY, TOO_MANY_LOGINS)
            else:
                refuse(reply, "Login failed", LOGIN_REFUSED)
            return
        reply(
            {
                "ok": True,
                "user": outcome.name,
                "tags": sorted(outcome.tags),
                "vhosts": [name for name in self._vhosts if outcome.may_enter(name)],
            }
        )
