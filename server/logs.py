"""How log events reach the operator: one line each, for eyes on a terminal, as JSON elsewhere.

Events are `noun.past` with plain keys; nothing per message, never a body or a secret. Must not
know who logs.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, TextIO

import structlog

if TYPE_CHECKING:
    from structlog.typing import Processor


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
            structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=False),
            structlog.dev.ConsoleRenderer(colors=colours, pad_event_to=24),
        ]
    return [
        *shared,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # Without local variables: they may be passwords and message bodies.
        structlog.processors.ExceptionRenderer(
            structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        ),
        # Names may be octets that are no UTF-8; \udcff survives only escaped.
        structlog.processors.JSONRenderer(ensure_ascii=True),
    ]
