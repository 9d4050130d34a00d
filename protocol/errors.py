"""Every way in which a peer can break the rules, as one tree of exceptions.

    AmqpError
    ├── SoftError  closes the channel      AccessRefused NotFound ResourceLocked PreconditionFailed
    └── HardError  closes the connection   ConnectionForced FrameError SyntaxRefused CommandInvalid
                                           ChannelError UnexpectedFrame ResourceError NotAllowed
                                           NotImplementedByBroker InternalError LoginRefused

Raised wherever a rule is broken and converted to a close frame in one place, the connection.
Must not know who raises or who converts.

Note that CHANNEL_ERROR (504) closes the *connection*; hence soft and hard as base names.
"""
# The classes bear the names of the reply codes; an Error suffix would hide them (N818).
# ruff: noqa: N818

from __future__ import annotations

from typing import ClassVar

from vouchmq.protocol.constants import Ids
from vouchmq.protocol.text import cut_to_shortstr, shown, snippet


class AmqpError(Exception):
    """A rule broken by the peer, with the reply code and text it shall be told.

    `ids` are the class and method id of the method at fault; None means "those of the method
    being handled" and is filled in by whoever converts the error; (0, 0) means that no method
    is at fault.

    Spec: GEN-03, GEN-05
    """

    code: ClassVar[int]
    name: ClassVar[str]

    def __init__(self, text: str, ids: Ids | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.ids = ids

    @property
    def reply_text(self) -> str:
        """`NAME - explanation`, at most 255 octets of UTF-8, never ending within a character.

        Spec: GEN-03
        """
        return cut_to_shortstr(shown(f"{self.name} - {self.text}"))

    def __str__(self) -> str:
        return self.reply_text


class SoftError(AmqpError):
    """Closes the channel; the connection lives on."""


class HardError(AmqpError):
    """Closes the connection with all its channels."""


class AccessRefused(SoftError):
    """No permission, a reserved name, or an exclusive consumer in the way."""

    code = 403
    name = "ACCESS_REFUSED"


class NotFound(SoftError):
    """The queue or exchange does not exist."""

    code = 404
    name = "NOT_FOUND"


class ResourceLocked(SoftError):
    """The queue is exclusive to another connection (QUEUE-30)."""

    code = 405
    name = "RESOURCE_LOCKED"


class PreconditionFailed(SoftError):
    """Inequivalent or bad arguments, an unknown delivery tag, a message too large."""

    code = 406
    name = "PRECONDITION_FAILED"


class ConnectionForced(HardError):
    """The broker or its operator ends the connection (CONN-56)."""

    code = 320
    name = "CONNECTION_FORCED"


class FrameError(HardError):
    """Octets that cannot be a frame, a method, a table or a property list."""

    code = 501
    name = "FRAME_ERROR"


class SyntaxRefused(HardError):
    """A malformed SASL response. Not called SyntaxError: Python has one."""

    code = 502
    name = "SYNTAX_ERROR"


class CommandInvalid(HardError):
    """A method that a client may not send here."""

    code = 503
    name = "COMMAND_INVALID"


class ChannelError(HardError):
    """Channel not open, opened twice, or a method out of state. Hard, despite its name."""

    code = 504
    name = "CHANNEL_ERROR"


class UnexpectedFrame(HardError):
    """The order of method, header and body frames is violated."""

    code = 505
    name = "UNEXPECTED_FRAME"


class ResourceError(HardError):
    """A limit of memory or disk was reached: 506, which closes the connection."""

    code = 506
    name = "RESOURCE_ERROR"


class NotAllowed(HardError):
    """Virtual host, limits, tuning, reuse of a consumer tag."""

    code = 530
    name = "NOT_ALLOWED"


class NotImplementedByBroker(HardError):
    """An unknown method, or one that this kind of queue does not have."""

    code = 540
    name = "NOT_IMPLEMENTED"


class InternalError(HardError):
    """A bug; the text never carries any detail of it."""

    code = 541
    name = "INTERNAL_ERROR"


class LoginRefused(HardError):
    """403 at login, where there is no channel to close yet (CONN-22)."""

    code = 403
    name = "ACCESS_REFUSED"


def cannot_decode(octets: bytes, ids: Ids | None = None) -> FrameError:
    """The error for arguments, tables and properties that are not what they claim to be.

    Spec: FRAME-15, FRAME-36
    """
    return FrameError(f"cannot decode {snippet(octets)}", ids)
