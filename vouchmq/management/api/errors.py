"""What the HTTP API answers when it does not do what was asked.

Spec: HTTP-02, HTTP-03
"""

from __future__ import annotations

from typing import Final

BAD_REQUEST: Final = 400
NOT_AUTHORISED: Final = 401
NOT_FOUND: Final = 404
NOT_ALLOWED: Final = 405
TOO_LARGE: Final = 413
TOO_MANY: Final = 429
INTERNAL: Final = 500
UNAVAILABLE: Final = 503


class ApiError(Exception):
    """An answer other than success.

    Args:
        status: of HTTP
        error: its kind, one word
        reason: why, for people
        headers: of the answer, beside the usual ones
    """

    def __init__(
        self, status: int, error: str, reason: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.error = error
        self.reason = reason
        self.headers = headers or {}


def bad_request(reason: str, error: str = "bad_request") -> ApiError:
    """The request is not as it should be."""
    return ApiError(BAD_REQUEST, error, reason)


def refused(reason: str) -> ApiError:
    """The user is known, and may not."""
    return ApiError(NOT_AUTHORISED, "not_authorised", reason)


def not_found(reason: str = "") -> ApiError:
    """There is no such resource; `reason` is what there is none of, for who has named several."""
    if reason:
        return ApiError(NOT_FOUND, "not_found", reason)
    return ApiError(NOT_FOUND, "Object Not Found", "Not Found")
