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

import pamqp.commands as amqp
import pika
import pytest
from click.testing import CliRunner, Result
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.broker_process import PROJECT, BrokerProcess, clean_environment
from tests.integration.raw_client import RawClient
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
    missing = run(broker, *words, "--vhost", "none")
    assert (missing.exit_code, missing.stderr) == (1, "vouchmq: there is no virtual host 'none'\n")
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
    # High enough for the queues of all tests that use this broker.
    termios.tcsetwinsize(slave, (200, 160))
    # A process of pytest-xdist has them, and they count for more than the terminal.
    environment = clean_environment({"TERM": "xterm"})
    for name in ("COLUMNS", "LINES"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "vouchmq", "top", "--data-dir", str(broker.data_dir)]
    process = subprocess.Popen(
        command,
        cwd=PROJECT,
        env=environment,
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


def test_objects_are_declared_and_deleted(broker: BrokerProcess) -> None:
    queue = ("queue", "made", "--argument", "x-max-length=9", "--type", "quorum")
    assert done(broker, "declare", *queue) == "queue 'made' declared\n"
    assert done(broker, "declare", *queue) == "queue 'made' exists already\n"
    assert as_json(broker, "show", "queue", "made")["arguments"] == {
        "x-max-length": 9,
        "x-queue-type": "quorum",
    }
    done(broker, "declare", "exchange", "made", "--type", "topic", "--internal")
    exchange = as_json(broker, "show", "exchange", "made")
    assert (exchange["type"], exchange["internal"], exchange["durable"]) == ("topic", True, True)
    binding = ("binding", "amq.headers", "made", "--to-exchange", "--argument", "x-match=any")
    done(broker, "declare", *binding, "--routing-key", "k")
    done(broker, "declare", "binding", "made", "made", "--routing-key", "a.#")
    found = as_json(broker, "show", "exchange", "made")["bindings"]
    assert [(each["source"], each["destination_type"], each["routing_key"]) for each in found] == [
        ("amq.headers", "exchange", "k"),
        ("made", "queue", "a.#"),
    ]
    done(broker, "delete", *binding, "--routing-key", "k")
    result = run(broker, "delete", *binding, "--routing-key", "k")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert done(broker, "delete", "exchange", "made") == "exchange 'made' deleted\n"
    done(broker, "publish", "--routing-key", "made", "x")
    result = run(broker, "delete", "queue", "made", "--if-empty")
    assert "PRECONDITION_FAILED" in result.stderr
    assert done(broker, "delete", "queue", "made") == "queue 'made' deleted, with 1 message\n"


def test_messages_are_published_shown_and_taken(broker: BrokerProcess, tmp_path: Path) -> None:
    done(broker, "declare", "queue", "inbox")
    to = ("--routing-key", "inbox")
    file = tmp_path / "body"
    file.write_bytes(b"\x00\xff")
    properties = ("--property", "content_type=text/plain", "--property", 'headers={"n": 1}')
    assert done(broker, "publish", *to, *properties, "héllo") == "published and confirmed\n"
    assert as_json(broker, "publish", *to, "--file", str(file), "--transient") == {"routed": True}
    assert run(broker, "publish", "--routing-key", "nowhere", "x").exit_code == 1
    words = ("get", "inbox", "--count", "5", "--json")
    first, second = map(json.loads, done(broker, *words).splitlines())
    assert (first["body"], first["redelivered"], first["messages"]) == ("héllo", False, 1)
    assert first["properties"] == {
        "content_type": "text/plain",
        "headers": {"n": 1},
        "delivery_mode": 2,
    }
    assert (second["body"], second["body_encoding"]) == ("AP8=", "base64")
    assert second["properties"] == {"delivery_mode": 1}
    assert "redelivered" in done(broker, "get", "inbox", "--ack")
    assert done(broker, "purge", "inbox") == "1 message deleted\n"
    assert done(broker, "get", "inbox") == ""
    done(broker, "delete", "queue", "inbox")


def test_a_connection_is_closed(broker: BrokerProcess) -> None:
    with RawClient(broker.url).handshake() as client:
        [connection] = as_rows(broker, "list", "connections")
        name = str(connection["name"])
        assert done(broker, "close", "connection", name, "--reason", "bye") == (
            f"connection '{name}' closed\n"
        )
        closed = client.expect(amqp.Connection.Close)
        assert "bye" in closed.reply_text
    result = run(broker, "close", "connection", name)
    assert result.exit_code == 1


def test_the_prefetch_of_a_consumer_is_changed(broker: BrokerProcess) -> None:
    with RawClient(broker.url).handshake() as client:
        client.open_channel()
        client.call(1, amqp.Queue.Declare(queue="taken"), amqp.Queue.DeclareOk)
        client.call(1, amqp.Basic.Consume(queue="taken", consumer_tag="c"), amqp.Basic.ConsumeOk)
        [consumer] = as_rows(broker, "list", "consumers")
        words = ("put", "prefetch", str(consumer["connection"]), "1", "c")
        assert done(broker, *words, "5") == "prefetch of 'c' changed from 0 to 5\n"
        assert as_rows(broker, "list", "consumers")[0]["prefetch"] == 5
        assert json.loads(done(broker, *words, "0", "--json")) == {"before": 5}
        result = run(broker, *words, "65536")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        client.call(1, amqp.Queue.Delete(queue="taken"), amqp.Queue.DeleteOk)


def as_rows(broker: BrokerProcess, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done(broker, *words, "--json").splitlines()]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("publish",), "expected either BODY or --file; see vouchmq publish --help"),
        (("publish", "--file", "/none"), "--file /none: No such file or directory"),
        (
            ("get", "q", "--ack", "--reject"),
            "expected --ack or --reject, not both; see",
        ),
        (("declare", "queue", "q", "--argument", "x"), "expected NAME=VALUE, not 'x'; see vouchmq"),
        (("close", "channel", "c", "0"), "0 is not in the range 1<=x<=65535; see vouchmq close"),
    ],
)
def test_mistakes_of_these_commands(
    broker: BrokerProcess, words: tuple[str, ...], line: str
) -> None:
    result = run(broker, *words)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert line in result.stderr


def test_doctor_looks_at_the_broker_that_runs(broker: BrokerProcess) -> None:
    result = run(broker, "doctor", "--json")
    found = {each["subject"]: each for each in json.loads(result.stdout)["findings"]}
    assert found["broker"]["level"] == "ok"
    assert f"process {broker.pid}, " in found["broker"]["text"]
    assert "ports" not in found
    assert found["durability"]["level"] == "ok"


def test_doctor_tells_the_limits_of_the_broker_that_runs(broker: BrokerProcess) -> None:
    """Not those that it would have with the settings of whoever asks."""

    def told(*flags: str) -> list[str]:
        found = json.loads(run(broker, "doctor", "--json", *flags).stdout)["findings"]
        return [each["text"] for each in found if each["subject"] in {"memory", "disk space"}]

    own = told()
    assert "for the broker, the alarm is at" in own[-1]
    others = told("--vm-memory-high-watermark", "1234567890", "--disk-free-limit", "1MB")
    # The free space changes while it is looked at.
    assert [each.partition("are free")[2] or each for each in others] == [
        each.partition("are free")[2] or each for each in own
    ]


def test_users_hosts_and_policies_are_set_and_deleted(broker: BrokerProcess) -> None:
    words = ("put", "user", "alice", "--password", "s1", "--tags", "administrator,dev")
    assert done(broker, *words) == "user 'alice' set\n"
    assert done(broker, "put", "vhost", "v", "--default-queue-type", "quorum") == (
        "virtual host 'v' set\n"
    )
    rules = ("--configure", "^$", "--write", "a.*", "--read", "b.*")
    done(broker, "put", "permissions", "alice", "--vhost", "v", *rules)
    done(broker, "put", "topic-permissions", "alice", "amq.topic", "--write", "w", "--read", "r")
    done(broker, "put", "user-limit", "alice", "max-channels", "7")
    done(broker, "put", "vhost-limit", "v", "max-queues", "5")
    policy = ("p", "^q", "--set", "max-length=5", "--set", "overflow=reject-publish")
    done(
        broker, "put", "policy", *policy, "--apply-to", "queues", "--priority", "2", "--vhost", "v"
    )
    done(broker, "put", "policy", "o", "^q", "--set", "max-length=9", "--operator", "--vhost", "v")
    done(broker, "put", "parameter", "c", "n", '{"a": 1}', "--vhost", "v")
    done(broker, "put", "global-parameter", "g", "[1]")
    done(broker, "put", "user", "alice", "--tags", "dev")
    [user] = [row for row in as_rows(broker, "list", "users") if row["name"] == "alice"]
    assert (user["tags"], user["max_channels"], user["has_password"]) == (["dev"], 7, True)
    assert as_rows(broker, "list", "permissions", "--vhost", "v") == [
        {"user": "alice", "vhost": "v", "configure": "^$", "write": "a.*", "read": "b.*"}
    ]
    host = as_json(broker, "show", "vhost", "v")
    assert (host["default_queue_type"], host["max_queues"]) == ("quorum", 5)
    [found] = as_rows(broker, "list", "policies", "--vhost", "v")
    assert found["definition"] == {"max-length": 5, "overflow": "reject-publish"}
    assert (found["apply_to"], found["priority"]) == ("queues", 2)
    [found] = as_rows(broker, "list", "operator-policies", "--vhost", "v")
    assert found["definition"] == {"max-length": 9}
    [found] = as_rows(broker, "list", "parameters", "--vhost", "v")
    assert found["value"] == {"a": 1}
    parameters = pika.ConnectionParameters(
        "127.0.0.1", broker.port, "v", pika.PlainCredentials("alice", "s1")
    )
    with pika.BlockingConnection(parameters):
        pass
    for named in (
        ("topic-permissions", "alice"),
        ("user-limit", "alice", "max-channels"),
        ("vhost-limit", "v", "max-queues"),
        ("policy", "p", "--vhost", "v"),
        ("policy", "o", "--operator", "--vhost", "v"),
        ("parameter", "c", "n", "--vhost", "v"),
        ("global-parameter", "g"),
        ("permissions", "alice", "--vhost", "v"),
    ):
        assert "deleted" in done(broker, "delete", *named)
    for listing in ("permissions", "policies", "operator-policies", "parameters"):
        assert as_rows(broker, "list", listing, "--vhost", "v") == []
    assert "g" not in [row["name"] for row in as_rows(broker, "list", "global-parameters")]
    assert done(broker, "delete", "user", "alice") == "user 'alice' deleted\n"
    assert done(broker, "delete", "vhost", "v") == "virtual host 'v' deleted\n"
    result = run(broker, "delete", "user", "alice")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)


def test_a_password_comes_from_the_input(broker: BrokerProcess) -> None:
    command = ["put", "user", "bob", "--password-stdin", "--data-dir", str(broker.data_dir)]
    result = CliRunner().invoke(program, command, input="p w\n")
    assert result.exit_code == 0, result.stderr
    done(
        broker, "put", "permissions", "bob", *("--configure", ".*", "--write", ".*", "--read", ".*")
    )
    parameters = pika.ConnectionParameters(
        "127.0.0.1", broker.port, "/", pika.PlainCredentials("bob", "p w")
    )
    with pika.BlockingConnection(parameters):
        pass
    done(broker, "delete", "user", "bob")


def test_a_reason_with_several_lines_is_one(broker: BrokerProcess) -> None:
    result = run(broker, "put", "policy", "p", "^q", "--set", "max-lenght=5")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr == (
        "vouchmq: put policy: 'max-lenght': 5 are not recognised policy settings\n"
    )


def test_a_refusal_names_the_command_that_was_typed(broker: BrokerProcess) -> None:
    done(broker, "declare", "queue", "durable")
    result = run(broker, "declare", "queue", "durable", "--transient")
    assert result.stderr.startswith("vouchmq: declare queue: PRECONDITION_FAILED - inequivalent")
    result = run(broker, "declare", "binding", "nowhere", "durable")
    assert result.stderr.startswith("vouchmq: declare binding: NOT_FOUND - no exchange 'nowhere'")


def test_a_user_who_is_there_is_changed(broker: BrokerProcess) -> None:
    assert run(broker, "put", "user", "eve").stdout == "user 'eve' set\n"
    changed = run(broker, "put", "user", "eve", "--tags", "monitoring")
    assert changed.stdout == "user 'eve' changed\n"
    done(broker, "delete", "user", "eve")


def test_a_broker_without_a_shared_log_says_so(broker: BrokerProcess) -> None:
    for command in ("status", "handover"):
        result = run(broker, "ha", command)
        text = f"vouchmq: ha {command}: this broker has no shared log: ha_log is not set\n"
        assert (result.exit_code, result.stderr) == (1, text)


def test_an_integer_of_more_than_64_bits(broker: BrokerProcess) -> None:
    result = run(broker, "put", "policy", "p", "^q", "--set", f"max-length={2**64}")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "an integer takes more than 64 bits" in result.stderr


def test_a_queue_is_paused_and_resumed(broker: BrokerProcess, channel: BlockingChannel) -> None:
    channel.queue_declare("slept")
    assert done(broker, "pause", "slept") == "queue 'slept' paused\n"
    channel.basic_publish("", "slept", b"x")
    got: list[bytes] = []
    channel.basic_consume("slept", lambda _, __, ___, body: got.append(body), auto_ack=True)
    channel.queue_declare("slept", passive=True)
    channel.connection.process_data_events(0)
    assert got == []
    assert done(broker, "resume", "slept") == "queue 'slept' resumed\n"
    while not got:
        channel.connection.process_data_events(1)
    channel.queue_delete("slept")


def test_a_broker_is_drained(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path)
    process.start()
    try:
        with pika.BlockingConnection(pika.URLParameters(process.url)) as connection:
            channel = connection.channel()
            channel.queue_declare("kept", durable=True)
            result = run(process, "drain", "--timeout", "0")
            assert (result.exit_code, result.stdout) == (1, "waiting for 1 connection\n")
            assert "1 connection left; the broker stops when there is none" in result.stderr
            with pytest.raises(pika.exceptions.AMQPConnectionError):
                pika.BlockingConnection(pika.URLParameters(process.url))
            # Who was connected is served.
            channel.confirm_delivery()
            channel.basic_publish("", "kept", b"x", pika.BasicProperties(delivery_mode=2))
            draining = subprocess.Popen(
                [sys.executable, "-m", "vouchmq", "drain", "--data-dir", str(process.data_dir)],
                cwd=PROJECT,
                env=clean_environment(),
                stdout=subprocess.PIPE,
                text=True,
            )
            assert draining.stdout is not None
            assert draining.stdout.readline() == "waiting for 1 connection\n"
        output, _ = draining.communicate(timeout=LIMIT_S)
        assert output.splitlines()[-1] == "the broker has stopped"
        assert draining.returncode == 0
        assert process.wait() == 0
    finally:
        process.kill9()
