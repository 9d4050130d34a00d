"""rabbitmqctl's words: options, output, and what is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from vouchmq.server.cli.main import main
from vouchmq.server.cli.rabbitmqctl.main import run, usage
from vouchmq.server.cli.rabbitmqctl.output import Output
from vouchmq.server.cli.rabbitmqctl.words import Mistake, parse

ROWS = [
    {"name": "a\n", "tags": ["x", "y"], "arguments": {"n": 1, "t": {"b": True, "s": 'q"'}}},
    {"name": "é", "tags": [], "arguments": {}},
]


def test_options_stand_before_and_behind_the_command() -> None:
    words = parse(["-q", "-p", "v", "list_queues", "name", "--formatter=json", "messages"])
    assert (words.command, words.arguments) == ("list_queues", ("name", "messages"))
    assert (words.vhost, words.values["formatter"]) == ("v", "json")
    assert words.switches == {"quiet"}
    assert parse(["close_connection", "--", "-x", "-q"]).arguments == ("-x", "-q")
    assert parse(["add_vhost", "-"]).arguments == ("-",)
    assert parse([]).command == ""


@pytest.mark.parametrize("given", [["--longnames"], ["-p"], ["list_queues", "--online"]])
def test_options_that_are_not_there_are_refused(given: list[str]) -> None:
    with pytest.raises(Mistake) as caught:
        parse(given)
    assert caught.value.exit_code == 64


def printed(*options: str, columns: tuple[str, ...] = ("name", "tags", "arguments")) -> str:
    out = io.StringIO()
    output = Output(parse([*options, "list"]), out)
    output.banner("Listing ...")
    output.rows(columns, ROWS)
    return out.getvalue()


def test_a_listing_in_each_format() -> None:
    rows = 'a\\012\t[x, y]\t[{"n",1},{"t",[{"b",true},{"s","q\\""}]}]\né\t[]\t[]\n'
    heads = "name\ttags\targuments\n"
    assert printed() == f"Listing ...\n{heads}{rows}"
    assert printed("-q") == heads + rows
    assert printed("-s") == rows
    assert printed("--no-table-headers") == f"Listing ...\n{rows}"
    text = printed("--formatter", "json", columns=("name", "tags"))
    assert text == '[\n{"name":"a\\n","tags":["x","y"]}\n,{"name":"é","tags":[]}\n]\n'
    assert json.loads(text) == [{"name": "a\n", "tags": ["x", "y"]}, {"name": "é", "tags": []}]
    assert printed("--formatter", "csv", columns=("tags",)) == '"tags"\n"[x, y]"\n"[]"\n'


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["eval", "1+1."], "eval runs Erlang, which this broker does not have"),
        (["dance"], "there is no command 'dance'; see vouchmq rabbitmqctl help"),
        (["add_user", "name"], "add_user takes <username> <password>"),
        (["await_startup", "now"], "await_startup takes no arguments"),
        (["add_user", "-p", "v", "a", "b"], "add_user does not take -p"),
        (["list_users", "--if-empty"], "list_users does not take --if-empty"),
        (
            ["list_vhosts", "nam"],
            "there is no column nam; there are name, description, tags, default_queue_type",
        ),
        (["list_vhosts", "--formatter", "x"], "there is no formatter 'x'; there are table, json,"),
        (["list_vhosts", "-t", "soon"], "--timeout: expected seconds, not 'soon'"),
        (["set_user_tags"], "set_user_tags takes <username> and tags"),
    ],
)
def test_mistakes_are_two_lines_and_64(
    given: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--data-dir", str(tmp_path), *given]) == 64
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"Error:\n{line}")
    assert captured.err.count("\n") == 2


def test_no_broker_is_69(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rabbitmqctl", "--data-dir", str(tmp_path), "-q", "list_queues"]) == 69
    captured: Any = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"Error:\nno broker runs on data directory {tmp_path}")


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rabbitmqctl", "help"]) == 0
    assert capsys.readouterr().out == usage()
    assert main(["rabbitmqctl"]) == 64
    for name in ("add_user", "set_permissions", "list_queues", "close_all_connections"):
        assert f"  {name}\n" in usage()
