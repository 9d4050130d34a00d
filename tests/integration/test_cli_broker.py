"""Commands that ask a running broker, as an operator gives them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pika
import pytest
from click.testing import CliRunner, Result
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.broker_process import PROJECT, BrokerProcess, clean_environment
from tests.waiting import LIMIT_S
from vouchmq.server.cli.main import program


@pytest.fixture
def channel(broker: BrokerProcess) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        yield connection.channel()


def run(broker: BrokerProcess, *words: str) -> Result:
    """A command at this broker."""
    return CliRunner().invoke(program, [*words, "--data-dir", str(broker.data_dir)])


def done(broker: BrokerProcess, *words: str) -> str:
    """The output of a command that succeeds."""
    result = run(broker, *words)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def as_json(broker: BrokerProcess, *words: str) -> Any:
    return json.loads(done(broker, *words, "--json"))


def test_status_shows_this_broker(broker: BrokerProcess) -> None:
    text = done(broker, "status")
    assert f"\nprocess         {broker.pid}, up " in text
    assert f"127.0.0.1:{broker.port}" in text
    document = as_json(broker, "status")
    assert document["pid"] == broker.pid
    assert document["settings"]["data_dir"] == str(broker.data_dir)
    assert document["uptime_s"] > 0
    assert [alarm["name"] for alarm in document["alarms"]] == ["memory", "disk", "storage"]


def test_secrets_are_not_among_the_settings_that_are_shown(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path, environment={"VOUCHMQ_DEFAULT_PASS": "hidden-word"})
    process.start()
    try:
        text = done(process, "status")
        assert "default_pass = (hidden)" in text
        assert "hidden-word" not in text + done(process, "status", "--json")
    finally:
        process.kill9()


def test_a_queue_is_shown_with_what_belongs_to_it(
    broker: BrokerProcess, channel: BlockingChannel
) -> None:
    channel.queue_declare("shown")
    channel.queue_declare("other")
    channel.queue_bind("shown", "amq.topic", "a.*")
    channel.queue_bind("other", "amq.topic", "b.*")
    channel.basic_consume("shown", lambda *_: None)
    channel.basic_publish("", "other", b"x")
    text = done(broker, "show", "queue", "shown")
    assert text.startswith("queue shown\n")
    queue = as_json(broker, "show", "queue", "shown")
    assert (queue["name"], queue["consumers"][0]["queue"]) == ("shown", "shown")
    assert [binding["routing_key"] for binding in queue["bindings"]] == ["a.*"]
    exchange = as_json(broker, "show", "exchange", "amq.topic")
    assert {each["destination"] for each in exchange["bindings"]} == {"shown", "other"}
    name = queue["consumers"][0]["connection"]
    connection = as_json(broker, "show", "connection", name)
    assert [each["number"] for each in connection["channels"]] == [channel.channel_number]
    assert [each["queue"] for each in connection["consumers"]] == ["shown"]
    assert as_json(broker, "show", "vhost", "/")["name"] == "/"
    for queue_name in ("shown", "other"):
        channel.queue_delete(queue_name)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["show", "queue", "nowhere"], "there is no queue 'nowhere' in virtual host '/'"),
        (["show", "queue", "q", "--vhost", "v"], "there is no queue 'q' in virtual host 'v'"),
        (["show", "connection", "c"], "there is no connection 'c'"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(
    broker: BrokerProcess, words: list[str], line: str
) -> None:
    result = run(broker, *words)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"vouchmq: {line}\n")


def test_a_listing_of_one_virtual_host_with_some_columns_sorted(
    broker: BrokerProcess, channel: BlockingChannel
) -> None:
    for name, count in (("few", 1), ("many", 3), ("some", 2)):
        channel.queue_declare(name)
        for _ in range(count):
            channel.basic_publish("", name, b"x")
    channel.queue_declare("few", passive=True)
    words = ["list", "queues", "--columns", "messages,name", "--sort", "messages"]
    assert done(broker, *words) == "messages\tname\n1\tfew\n2\tsome\n3\tmany\n"
    assert done(broker, *words, "--vhost", "none") == "messages\tname\n"
    lines = done(broker, *words, "--reverse", "--json", "--vhost", "/").splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["many", "some", "few"]
    result = run(broker, "list", "queues", "--columns", "name,")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    for name in ("few", "many", "some"):
        channel.queue_delete(name)


def test_top_prints_once_and_needs_a_terminal_otherwise(
    broker: BrokerProcess, channel: BlockingChannel
) -> None:
    channel.queue_declare("busy")
    document = as_json(broker, "top", "--once", "--interval", "0.1", "--sort", "queue")
    assert "busy" in [row["queue"] for row in document["queues"]]
    text = done(broker, "top", "--once", "--interval", "0.1", "--show", "connections")
    assert "guest" in text
    channel.queue_delete("busy")
    for words, line in (
        ((), "top needs a terminal; elsewhere use --once; see vouchmq top --help"),
        (("--json",), "--json needs --once; see vouchmq top --help"),
    ):
        result = run(broker, "top", *words)
        assert (result.exit_code, result.stderr) == (2, f"vouchmq: {line}\n")
    result = run(broker, "top", "--once", "--sort", "in")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "no column 'in'; there are vhost, queue, ready, unacked" in result.stderr


def test_top_is_drawn_on_a_terminal_until_q(
    broker: BrokerProcess, channel: BlockingChannel
) -> None:
    channel.queue_declare("drawn")
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 160))
    command = [sys.executable, "-m", "vouchmq", "top", "--data-dir", str(broker.data_dir)]
    process = subprocess.Popen(
        command,
        cwd=PROJECT,
        env=clean_environment({"TERM": "xterm"}),
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    try:
        for key, text in ((b"", b"drawn"), (b"t", b"guest")):
            os.write(master, key)
            shown = b""
            while text not in shown:
                shown += os.read(master, 65536)
        os.write(master, b"q")
        # The terminal is gone with the process.
        with suppress(OSError):
            while os.read(master, 65536):
                pass
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    channel.queue_delete("drawn")
