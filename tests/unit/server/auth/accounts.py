"""Users for tests: an authenticator that keeps nothing, and logins that need no wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vouchmq.server.auth.authenticator import Authenticator, check_accounts
from vouchmq.server.auth.failed_logins import FailedLogins
from vouchmq.server.auth.passwords import SHA256
from vouchmq.server.auth.slow_checks import SlowChecks
from vouchmq.server.auth.users import User
from vouchmq.server.broker.accounts import Accounts
from vouchmq.server.settings.accounts import UserAccount


def authenticator_of(
    accounts: Iterable[UserAccount],
    loopback_users: Iterable[str] = (),
    random_bytes: Callable[[int], bytes] = bytes,
    failures: FailedLogins | None = None,
    *,
    checks: SlowChecks | None = None,
    algorithm: str = SHA256,
) -> Authenticator:
    """One that knows these accounts."""
    accounts = tuple(accounts)
    check_accounts(accounts)
    made = Authenticator(
        Accounts(lambda _: 0),
        loopback_users,
        random_bytes,
        failures,
        checks=checks,
        algorithm=algorithm,
    )
    for account in accounts:
        made.seed(account)
    return made


def logged_in(
    known: Authenticator,
    name: str,
    password: str,
    *,
    is_loopback: bool = False,
    address: str = "",
) -> User:
    """The user of a login that is decided at once."""
    user = known.log_in(name, password, is_loopback=is_loopback, address=address)
    assert user is not None
    return user
