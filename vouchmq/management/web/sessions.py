"""Who has signed in with the form of the page, and for how long that counts.

A session ends when it has not been used for a while, some hours after it began, when its user signs
out, and when this process ends. It keeps the login of its user in memory, because the broker checks
each request: a user who is deleted, or whose password changes, is out at once.

Must not know HTTP.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

IDLE_S: Final = 30 * 60
LIFETIME_S: Final = 8 * 3600
MOST_SESSIONS: Final = 1000


class Session(Struct):
    """One session.

    Args:
        user: name
        tags: of the user, when the session began
        authorization: what goes to the HTTP API for it
        csrf_token: what requests that change something must carry
        opened_at: on the monotonic clock
        used_at: the same
    """

    user: str
    tags: tuple[str, ...]
    authorization: str
    csrf_token: str
    opened_at: float
    used_at: float

    def is_csrf_token(self, token: str) -> bool:
        """Whether this is the token, compared in constant time."""
        return hmac.compare_digest(self.csrf_token.encode(), token.encode())


class Sessions:
    """All sessions, by their keys.

    Args:
        clock: monotonic seconds
        draw: makes keys that nobody can guess
    """

    def __init__(self, clock: Callable[[], float], draw: Callable[[], str]) -> None:
        self._clock = clock
        self._draw = draw
        # By when they were used, the latest last.
        self._sessions: dict[str, Session] = {}

    def open(self, user: str, tags: tuple[str, ...], authorization: str) -> tuple[str, Session]:
        """Begin a session; gives its key. Beyond the limit, the one longest unused ends."""
        self._drop_expired()
        while len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        now = self._clock()
        session = Session(user, tags, authorization, self._draw(), now, now)
        key = self._draw()
        self._sessions[key] = session
        return key, session

    def use(self, key: str) -> Session | None:
        """The session of a key, which is used now; None when it has ended."""
        session = self._sessions.pop(key, None)
        if session is None or self._has_expired(session):
            return None
        session.used_at = self._clock()
        self._sessions[key] = session
        return session

    def close(self, key: str) -> None:
        """End a session, if there is one."""
        self._sessions.pop(key, None)

    def _has_expired(self, session: Session) -> bool:
        now = self._clock()
        return now - session.used_at >= IDLE_S or now - session.opened_at >= LIFETIME_S

    def _drop_expired(self) -> None:
        expired = [key for key, each in self._sessions.items() if self._has_expired(each)]
        for key in expired:
            del self._sessions[key]
