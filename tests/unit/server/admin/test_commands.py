"""The registry of control commands: arguments are checked, refusals and errors are answers."""

from __future__ import annotations

import pytest

from tests.unit.server.admin.listings import Reader
from vouchmq.protocol.errors import NotFound
from vouchmq.server.admin.commands import Arguments, CommandRefused, ControlCommands, Reply


class Named(Arguments, frozen=True):
    name: str
    count: int = 1


def do(given: Named, reply: Reply) -> None:
    match given.name:
        case "refused":
            raise CommandRefused("not that one", 406)
        case "missing":
            raise NotFound("no queue 'missing' in vhost '/'")
        case "broken":
            raise RuntimeError("a fault of ours")
    reply({"ok": True, "name": given.name, "count": given.count})


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        ({"command": "do", "name": "a"}, {"ok": True, "name": "a", "count": 1}),
        ({"command": "do", "name": "a", "count": 2}, {"ok": True, "name": "a", "count": 2}),
        (
            {"command": "do", "name": 7},
            {"ok": False, "code": 400, "error": "do: Expected `str`, got `int` - at `$.name`"},
        ),
        (
            {"command": "do"},
            {"ok": False, "code": 400, "error": "do: Object missing required field `name`"},
        ),
        (
            {"command": "do", "name": "a", "nmae": 1},
            {"ok": False, "code": 400, "error": "do: Object contains unknown field `nmae`"},
        ),
        ({"command": "do", "name": "refused"}, {"ok": False, "code": 406, "error": "not that one"}),
        (
            {"command": "do", "name": "missing"},
            {"ok": False, "code": 404, "error": "NOT_FOUND - no queue 'missing' in vhost '/'"},
        ),
        (
            {"command": "do", "name": "broken"},
            {"ok": False, "code": 541, "error": "INTERNAL_ERROR - RuntimeError"},
        ),
        ({}, {"ok": False, "code": 400, "error": "a request needs a command"}),
        (
            {"command": "undo"},
            {
                "ok": False,
                "code": 404,
                "error": "this broker has no command 'undo'",
                "commands": ["do"],
            },
        ),
    ],
)
def test_a_request_has_one_answer(request_: dict[str, object], answer: dict[str, object]) -> None:
    registry = ControlCommands()
    registry.register("do", Named, do)
    reader = Reader()
    registry.run(request_, reader)
    assert reader.facts == answer


def test_a_broker_of_another_kind_says_why_it_does_not_know_a_command() -> None:
    registry = ControlCommands(lambda: "this broker is a standby: ask the leader, a")
    registry.register("do", Named, do)
    reader = Reader()
    registry.run({"command": "ledger inventory"}, reader)
    assert reader.facts == {
        "ok": False,
        "error": "this broker is a standby: ask the leader, a",
        "code": 404,
        "commands": ["do"],
    }


def test_a_name_is_registered_once() -> None:
    registry = ControlCommands()
    registry.register("do", Named, do)
    with pytest.raises(ValueError, match="registered already"):
        registry.register("do", Named, do)
    assert registry.names == ["do"]
