"""Every event that the product logs is on the page of log events, with its levels and fields."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = PROJECT / "docs" / "operate" / "log-events.md"
LOGGING: Final = ("server", "store", "protocol", "vouchmq/management")
RENAMED: Final = "## Renamed events"
LEVELS: Final = {
    **{name: name for name in ("debug", "info", "warning", "error", "critical")},
    "exception": "error",
}
QUOTED: Final = re.compile(r"`([^`]+)`")
ROW: Final = re.compile(
    r"^\| `([a-z_.]+)` \| ([a-z, ]+) \|[^|]*\|([^|]*)\|([^|]*)\|$", re.MULTILINE
)


@dataclass
class Event:
    levels: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)
    # Some of its fields are chosen by the caller: the page may name more.
    is_open: bool = False


def levels_of(call: ast.Call) -> set[str]:
    """The levels at which this call logs; `partial(log.info, …)` and `(a if b else c)(…)` too."""
    places: list[ast.expr] = [call.func, *call.args]
    if isinstance(call.func, ast.IfExp):
        places += [call.func.body, call.func.orelse]
    return {
        LEVELS[each.attr]
        for each in places
        if isinstance(each, ast.Attribute)
        and isinstance(each.value, ast.Name)
        and each.value.id == "log"
        and each.attr in LEVELS
    }


def events_in(source: str) -> tuple[dict[str, Event], list[int]]:
    """The events that a module logs, and the lines where the name of one cannot be read."""
    found: dict[str, Event] = {}
    unreadable: list[int] = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not (levels := levels_of(node)):
            continue
        names = [
            each.value
            for each in node.args
            if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        if not names:
            unreadable.append(node.lineno)
            continue
        event = found.setdefault(names[0], Event())
        event.levels |= levels
        keys = {each.arg for each in node.keywords}
        event.is_open |= None in keys
        event.fields |= {key for key in keys if key is not None} - {"meaning", "exc_info"}
        takes_traceback = "exc_info" in keys or any(
            isinstance(each, ast.Attribute) and each.attr == "exception" for each in [node.func]
        )
        if takes_traceback:
            event.fields.add("exception")
    return found, unreadable


def logged() -> tuple[dict[str, Event], list[str]]:
    """The events of the product, and the places that hide the name of one."""
    events: dict[str, Event] = {}
    hidden: list[str] = []
    for path in sorted(path for name in LOGGING for path in (PROJECT / name).rglob("*.py")):
        found, unreadable = events_in(path.read_text(encoding="utf-8"))
        hidden += [f"{path.relative_to(PROJECT)}:{line}" for line in unreadable]
        for name, event in found.items():
            known = events.setdefault(name, Event())
            known.levels |= event.levels
            known.fields |= event.fields
            known.is_open |= event.is_open
    return events, hidden


def described(page: str) -> dict[str, Event]:
    """The events in the tables of the page, without those that were renamed."""
    rows = ROW.findall(page.partition(RENAMED)[0])
    return {
        name: Event(set(levels.split(", ")), set(QUOTED.findall(fields)))
        for name, levels, fields, _ in rows
    }


def differences(events: dict[str, Event], page: str) -> list[str]:
    """What the page and the product do not agree about."""
    told = described(page)
    wrong = [f"not on the page: {name}" for name in sorted(events.keys() - told.keys())]
    wrong += [f"not logged: {name}" for name in sorted(told.keys() - events.keys())]
    for name in sorted(events.keys() & told.keys()):
        event, row = events[name], told[name]
        if event.levels != row.levels:
            wrong.append(f"{name}: logged at {sorted(event.levels)}")
        extra = set() if event.is_open else row.fields - event.fields
        if event.fields - row.fields or extra:
            wrong.append(f"{name}: has the fields {sorted(event.fields)}")
    return wrong


def told_otherwise() -> dict[str, Event]:
    """Events that no logger writes: lines of standard output, and those of the image's command."""
    app = (PROJECT / "server/edge/app.py").read_text(encoding="utf-8")
    assert '"event": "broker.ready"' in app
    command = (PROJECT / "deploy/image/vouchmq").read_text(encoding="utf-8")
    told = re.findall(r"^ +warn ([a-z_.]+) ([a-z]+) ", command, re.MULTILINE)
    assert told
    process = (PROJECT / "vouchmq/management/process.py").read_text(encoding="utf-8")
    assert '"event": "management.ready"' in process
    return {
        "broker.ready": Event({"info"}, is_open=True),
        "management.ready": Event({"info"}, is_open=True),
        **{name: Event({"warning"}, {field}) for name, field in told},
    }


def test_the_page_has_every_event_with_its_levels_and_fields() -> None:
    events, hidden = logged()
    events |= told_otherwise()
    assert not hidden
    assert {"internal_error", "connection.lost", "signal.ignored"} <= events.keys()
    assert differences(events, PAGE.read_text(encoding="utf-8")) == []


def test_differences_are_found() -> None:
    source = (
        'log.info("a.one", count=1)\nlog.exception("a.two", **more)\nlog.error(name, count=1)\n'
    )
    events, hidden = events_in(source)
    assert hidden == [3]
    fits = (
        "| `a.one` | info | x | `count` | y |\n| `a.two` | error | x | `exception`, `more` | y |\n"
    )
    assert differences(events, fits) == []
    assert differences(events, fits + RENAMED + "\n| `a.old` | info | x | | y |") == []
    assert differences(events, fits.replace("a.one", "a.gone")) == [
        "not on the page: a.one",
        "not logged: a.gone",
    ]
    assert differences(events, fits.replace("info", "info, debug")) == ["a.one: logged at ['info']"]
    assert differences(events, fits.replace("`count`", "`size`")) == [
        "a.one: has the fields ['count']"
    ]


def test_calls_in_other_forms_are_read() -> None:
    source = 'partial(log.warning, "a", x=1)\n(log.info if b else log.error)("b", y=2)\n'
    events, hidden = events_in(source)
    assert not hidden
    assert events == {"a": Event({"warning"}, {"x"}), "b": Event({"info", "error"}, {"y"})}


def test_new_names_of_renamed_events_are_logged() -> None:
    renamed = PAGE.read_text(encoding="utf-8").partition(RENAMED)[2]
    rows = re.findall(r"^\| `([a-z_.]+)` \| `([a-z_.]+)`", renamed, re.MULTILINE)
    events, _ = logged()
    assert len(rows) > 30
    assert [new for _, new in rows if new not in events] == []
    assert [old for old, _ in rows if old in events] == []
