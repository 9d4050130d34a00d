"""What `vouchmq publish`, `get`, `declare` and the like print."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from tests.unit.server.cli.brokers import AnsweringBroker
from vouchmq.server.cli.client import Refused
from vouchmq.server.cli.running import changes, moving


def message(body: bytes, size: int | None = None, **more: Any) -> dict[str, Any]:
    return {
        "exchange": "e\t",
        "routing_key": "k",
        "redelivered": False,
        "messages": 0,
        "properties": {},
        "size": len(body) if size is None else size,
        "body": body,
        **more,
    }


@pytest.mark.parametrize(
    ("body", "size", "lines", "plain"),
    [
        (b"a\tb\nc", 5, ["   a\tb", "   c"], ("a\tb\nc", "utf-8")),
        (b"", 0, [], ("", "utf-8")),
        # The rest of a character is cut off.
        (b"a\xc3", 9, ["   a"], ("a", "utf-8")),
        (b"a\xc3", 2, [f"   00000000  61 c3{' ' * 43} a."], ("YcM=", "base64")),
        (b"\x1b[2J", 4, [f"   00000000  1b 5b 32 4a{' ' * 37} .[2J"], ("\x1b[2J", "utf-8")),
    ],
)
def test_a_body_is_shown_as_text_or_as_numbers(
    body: bytes, size: int, lines: list[str], plain: tuple[str, str]
) -> None:
    given = message(body, size)
    assert list(changes.body_lines(given)) == lines
    shown = changes.plain(given)
    assert (shown["body"], shown["body_encoding"]) == plain


def test_a_long_body_of_numbers_has_a_line_for_sixteen() -> None:
    lines = list(changes.body_lines(message(bytes(range(128, 161)))))
    assert [line.split()[0] for line in lines] == ["00000000", "00000010", "00000020"]


def test_messages_have_a_line_of_their_own_above_the_body() -> None:
    rows = [
        message(b"x", redelivered=True, properties={"type": "t\n", "headers": {"a": 1}}),
        message(b"xyz", 10),
    ]
    broker = AnsweringBroker(listings={"get": rows})
    out = io.StringIO()
    assert changes.get(broker, {"name": "q"}, as_json=False, out=out) == 0
    assert broker.asked == [("get", {"name": "q"})]
    assert out.getvalue().splitlines() == [
        "1  exchange='e\\\\t' routing_key='k' redelivered type=t\\n headers={\"a\": 1} 1 byte",
        "   x",
        "2  exchange='e\\\\t' routing_key='k' 10 bytes, the first 3:",
        "   xyz",
    ]


def test_a_message_that_reaches_no_queue_fails() -> None:
    for is_routed, code, line in (
        (True, 0, "published and confirmed\n"),
        (False, 1, "no queue got the message\n"),
    ):
        broker = AnsweringBroker({"publish": {"routed": is_routed}})
        out = io.StringIO()
        assert changes.publish(broker, {}, as_json=False, out=out) == code
        assert out.getvalue() == line
        out = io.StringIO()
        assert changes.publish(broker, {}, as_json=True, out=out) == code
        assert json.loads(out.getvalue()) == {"routed": is_routed}


def test_what_was_done_is_said() -> None:
    for answer, done, line in (
        ({"messages": 1}, "{messages} deleted", "1 message deleted\n"),
        ({"created": True}, "queue 'q' declared", "queue 'q' declared\n"),
        ({"created": False}, "queue 'q' declared", "queue 'q' exists already\n"),
        ({}, "queue '{{}}\t' deleted", "queue '{}\\t' deleted\n"),
    ):
        broker = AnsweringBroker({"c": answer})
        out = io.StringIO()
        assert changes.change(broker, "c", {"name": "q"}, done, as_json=False, out=out) == 0
        assert out.getvalue() == line
        out = io.StringIO()
        changes.change(broker, "c", {}, done, as_json=True, out=out)
        assert json.loads(out.getvalue()) == answer


def peeked(**more: Any) -> dict[str, Any]:
    held = {"connection": "", "channel": 0, "consumer": "", "delivery_tag": 0}
    return {"place": 7, "id": 41, "state": "ready", **message(b"x"), **held, **more}


def test_messages_are_shown_where_they_are() -> None:
    held = peeked(connection="c", channel=2, consumer="t", delivery_tag=5)
    broker = AnsweringBroker(listings={"peek": [peeked(), held]})
    out = io.StringIO()
    assert moving.peek(broker, {"name": "q"}, as_json=False, out=out) == 0
    assert broker.asked == [("peek", {"name": "q"})]
    assert out.getvalue().splitlines() == [
        "7  id=41 exchange='e\\\\t' routing_key='k' 1 byte",
        "   x",
        "7  id=41 held by c channel 2 consumer='t' tag=5 exchange='e\\\\t' routing_key='k' 1 byte",
        "   x",
    ]
    out = io.StringIO()
    assert moving.peek(broker, {"name": "q"}, as_json=True, out=out) == 0
    assert json.loads(out.getvalue().splitlines()[1])["consumer"] == "t"


def test_what_was_moved_is_said_and_what_stays_fails() -> None:
    for stopped, arguments, code, text in (
        ("", {}, 0, "3 messages moved\n"),
        ("", {"keep": True}, 0, "3 messages copied\n"),
        ("why", {}, 1, "3 messages moved\nthen stopped: why\n"),
    ):
        answer = {"moved": 3, "stopped": stopped}
        broker = AnsweringBroker({"move": answer})
        out = io.StringIO()
        assert moving.move(broker, "move", arguments, as_json=False, out=out) == code
        assert out.getvalue() == text
        out = io.StringIO()
        assert moving.move(broker, "move", arguments, as_json=True, out=out) == code
        assert json.loads(out.getvalue()) == answer


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (
            'Validation failed\n\n<<"a b">> is not a valid maximum length',
            "'a b' is not a valid maximum length",
        ),
        (
            'Validation failed\n\n[{<<"foo">>,<<"x">>},{<<"max">>,5}] are not recognised policy',
            "'foo': 'x','max': 5 are not recognised policy",
        ),
        ("Validation failed\n\n-1 is not a valid queue expiry", "-1 is not a valid queue expiry"),
        ("no queue '[<<'", "no queue '[<<'"),
    ],
)
def test_refusals_are_no_terms_of_erlang(said: str, text: str) -> None:
    class RefusingBroker(AnsweringBroker):
        def ask(self, command: str, /, **arguments: object) -> dict[str, Any]:
            raise Refused(f"{command}: {said}", 406)

    for command, name in (("put policy", "put policy"), ("put queue", "declare queue")):
        with pytest.raises(Refused) as caught:
            changes.change(RefusingBroker(), command, {}, "", as_json=False)
        assert (caught.value.text, caught.value.code) == (f"{name}: {text}", 406)
