"""Logs: JSON for machines, lines for eyes, nothing below the level."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator

import pytest
import structlog

from vouchmq.protocol.text import shown
from vouchmq.server.edge.logging import configure_logs


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Other tests get the logging they had."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_json_where_no_terminal_is() -> None:
    stream = io.StringIO()
    configure_logs("info", "auto", stream)
    structlog.get_logger().info("connection.opened", vhost="/", count=1)
    event = json.loads(stream.getvalue())
    assert event["event"] == "connection.opened"
    assert (event["level"], event["vhost"], event["count"]) == ("info", "/", 1)
    assert event["timestamp"].endswith("Z")


def test_lines_for_eyes_on_a_terminal() -> None:
    stream = Terminal()
    configure_logs("info", "auto", stream)
    structlog.get_logger().info("connection.opened", vhost="shop")
    assert "connection.opened" in stream.getvalue()
    assert "shop" in stream.getvalue()
    assert "\x1b[" in stream.getvalue()


def test_lines_for_eyes_in_a_file_have_no_colours() -> None:
    stream = io.StringIO()
    configure_logs("info", "human", stream)
    structlog.get_logger().warning("sync.slow", duration_ms=900)
    assert "sync.slow" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_json_on_a_terminal_when_asked_for() -> None:
    stream = Terminal()
    configure_logs("info", "json", stream)
    structlog.get_logger().info("broker.started")
    assert json.loads(stream.getvalue())["event"] == "broker.started"


@pytest.mark.parametrize(
    ("level", "expected"),
    [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)],
)
def test_less_severe_events_are_left_out(level: str, expected: int) -> None:
    stream = io.StringIO()
    configure_logs(level, "json", stream)
    log = structlog.get_logger()
    log.debug("a.happened")
    log.info("a.happened")
    log.warning("a.happened")
    log.error("a.happened")
    assert len(stream.getvalue().splitlines()) == expected


def test_an_exception_stays_one_line_of_json() -> None:
    stream = io.StringIO()
    configure_logs("info", "json", stream)
    try:
        raise ValueError("what went wrong")
    except ValueError:
        structlog.get_logger().exception("internal_error", name="\udcff")
    event = json.loads(stream.getvalue())
    assert event["exception"][0]["exc_value"] == "what went wrong"
    # No reader of JSON has to know lone surrogates (FRAME-58).
    assert event["name"] == "\\xff"


NASTY = "a\x1b]0;owned\x07\x1b[2J\r\n2026_fake_line\x9b31m\u202e\udcff"


@pytest.mark.parametrize("text", ["a\x1b]0;owned\x07\x1b[2J", NASTY, NASTY + " ", f"'{NASTY}"])
def test_what_a_terminal_would_obey_is_escaped_for_eyes(text: str) -> None:
    stream = io.StringIO()
    configure_logs("info", "human", stream)
    structlog.get_logger().info("connection.opened", client_name=text, many=[text], other="shop")
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    assert line.count(repr(shown(text))) == 2
    assert line.endswith(" other=shop")


def test_a_traceback_for_eyes_is_escaped_and_tells_no_local_variables() -> None:
    stream = io.StringIO()
    configure_logs("info", "human", stream)
    password = "hush" + "hush"
    try:
        raise ValueError(NASTY + str(len(password)))
    except ValueError:
        structlog.get_logger().exception("internal_error")
    lines = stream.getvalue().split("\n")
    assert all(line.isprintable() for line in lines)
    assert "ValueError: a\\x1b]0;owned" in stream.getvalue()
    assert "hushhush" not in stream.getvalue()


def test_lines_for_eyes_have_a_date() -> None:
    stream = io.StringIO()
    configure_logs("info", "human", stream)
    structlog.get_logger().info("broker.started")
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6} ", stream.getvalue())
