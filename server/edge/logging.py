"""How log events reach the operator: one line each, for eyes on a terminal, as JSON elsewhere.

Events are `noun.past` with plain keys; nothing per message, never a body or a secret. Must not
know who logs.
"""

from __future__ import annotations

import logging
import sys
from io import StringIO
from typing import TYPE_CHECKING, TextIO

import structlog

from vouchmq.protocol.text import shown, shown_values

if TYPE_CHECKING:
    from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger


def configure_logs(level: str, form: str, stream: TextIO | None = None) -> None:
    """Send events of at least `level` to `stream` (standard error) as `form` says.

    Args:
        level: debug, info, warning or error
        form: human, json, or auto: human when the stream is a terminal
        stream: where to; None is standard error
    """
    target = sys.stderr if stream is None else stream
    is_human = form == "human" or (form == "auto" and target.isatty())
    structlog.configure(
        processors=_processors(is_human, colours=is_human and target.isatty()),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=target),
        cache_logger_on_first_use=stream is None,
    )


def _processors(is_human: bool, *, colours: bool) -> list[Processor]:
    shared: list[Processor] = [structlog.processors.add_log_level]
    if is_human:
        return [
            *shared,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S.%f", utc=False),
            _show_values,
            _escape_values,
            structlog.dev.ConsoleRenderer(
                colors=colours, pad_event_to=24, exception_formatter=_write_traceback
            ),
        ]
    return [
        *shared,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # Without local variables: they may be passwords and message bodies.
        structlog.processors.ExceptionRenderer(
            structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        ),
        _show_values,
        structlog.processors.JSONRenderer(ensure_ascii=True),
    ]


def printable(text: str) -> str:
    """The text with everything escaped that a terminal would obey: names are what clients say."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in shown(text)
    )


class _Escaped:
    """A text that is shown as Python would write it, quoted and escaped."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return repr(self._text)


def _show_values(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """Texts of an event as they can be written: names may be bytes that are no UTF-8."""
    for key, value in event.items():
        if key != "exc_info":
            event[key] = shown_values(value)
    return event


def _escape_values(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """Texts of an event; other values are shown as `repr` does, which escapes as well."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = _Escaped(value)
    return event


def _write_traceback(sio: TextIO, exc_info: ExcInfo) -> None:
    """A traceback without local variables, as in JSON, and without what a terminal would obey."""
    text = StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    sio.write("\n".join(map(printable, text.getvalue().split("\n"))))
