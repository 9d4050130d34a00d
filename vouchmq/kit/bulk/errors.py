"""What goes wrong in the bulk client, beside wrong arguments (`TypeError`, `ValueError`).

Texts name the broker as `amqp://user@host:port/vhost`; a password is in none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vouchmq.kit.bulk.result import PublishResult


class BulkError(Exception):
    """Whatever the bulk client raises of its own.

    `published` is set when it ended a `publish_many`: what was known of its rows by then.
    """

    published: PublishResult | None = None


class BulkTimeout(BulkError):  # noqa: N818 - read as a state: `except BulkTimeout`
    """The broker did not answer, or not confirm, in the time it was given."""


class BulkClosed(BulkError):  # noqa: N818 - read as a state: `except BulkClosed`
    """The broker closed the channel or the connection, or the connection was lost (code 0)."""

    def __init__(self, code: int, text: str, *, is_connection: bool) -> None:
        super().__init__(f"{code} {text}" if code else text)
        self.code = code
        self.text = text
        self.is_connection = is_connection

    def again(self) -> BulkClosed:
        """A copy to raise: one exception raised twice would carry both tracebacks."""
        return BulkClosed(self.code, self.text, is_connection=self.is_connection)


class PropertiesError(BulkError, ValueError):
    """Properties that are not AMQP's, or do not fit into its types."""
