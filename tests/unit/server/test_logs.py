"""Logs: JSON for machines, lines for eyes, nothing below the level."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
import structlog

from server.logs import configure_logs


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
        structlog.get_logger().exception("connection.bug", name="\udcff")
    event = json.loads(stream.getvalue())
    assert event["exception"][0]["exc_value"] == "what went wrong"
    assert event["name"] == "\udcff"
