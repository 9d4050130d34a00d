"""`vouchmq rabbitmqctl` at a broker: output and exit codes are those of RabbitMQ 3.10.8.

What is expected here was printed by Debian's rabbitmqctl for the same words.
"""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr
from pathlib import Path

import pamqp.commands as amqp
import pika
import pytest

from tests.integration.broker_process import BrokerProcess
from tests.integration.raw_client import RawClient
from vouchmq.server.cli.rabbitmqctl.main import run


def say(broker: BrokerProcess, *words: str) -> tuple[int, str, str]:
    """Exit code, output and what is printed as an error."""
    out, error = io.StringIO(), io.StringIO()
    with redirect_stderr(error):
        code = run(["--data-dir", str(broker.data_dir), *words], out)
    return code, out.getvalue(), error.getvalue()


def said(broker: BrokerProcess, *words: str) -> str:
    code, out, error = say(broker, *words)
    assert (code, error) == (0, "")
    return out


def test_users_and_permissions(broker: BrokerProcess) -> None:
    assert said(broker, "add_user", "u1", "secret") == (
        'Adding user "u1" ...\n'
        "Done. Don't forget to grant the user permissions to some virtual hosts! "
        "See 'rabbitmqctl help set_permissions' to learn more.\n"
    )
    assert say(broker, "add_user", "u1", "secret") == (
        70,
        'Adding user "u1" ...\n',
        'Error:\nUser "u1" already exists\n',
    )
    changing = 'Changing password for user "u1" ...\n'
    assert said(broker, "change_password", "u1", "other") == changing
    missing = 'Error:\nUser "nobody" does not exist\n'
    assert say(broker, "-q", "change_password", "nobody", "x") == (67, "", missing)
    assert said(broker, "authenticate_user", "u1", "other").endswith("Success\n")
    assert say(broker, "-q", "authenticate_user", "u1", "secret")[0] == 65
    assert said(broker, "set_user_tags", "u1", "administrator", "monitoring") == (
        'Setting tags for user "u1" to [administrator, monitoring] ...\n'
    )
    assert said(broker, "list_users").splitlines() == [
        "Listing users ...",
        "user\ttags",
        "guest\t[administrator]",
        "u1\t[administrator, monitoring]",
    ]
    assert said(broker, "add_vhost", "v1") == 'Adding vhost "v1" ...\n'
    assert said(broker, "add_vhost", "v1") == 'Adding vhost "v1" ...\n'
    assert said(broker, "list_vhosts") == "Listing vhosts ...\nname\n/\nv1\n"
    assert said(broker, "set_permissions", "-p", "v1", "u1", ".*", "a.*", ".*") == (
        'Setting permissions for user "u1" in vhost "v1" ...\n'
    )
    assert said(broker, "list_permissions", "-p", "v1") == (
        'Listing permissions for vhost "v1" ...\nuser\tconfigure\twrite\tread\nu1\t.*\ta.*\t.*\n'
    )
    assert said(broker, "-q", "list_user_permissions", "u1") == (
        "vhost\tconfigure\twrite\tread\nv1\t.*\ta.*\t.*\n"
    )
    parameters = pika.ConnectionParameters(
        "127.0.0.1", broker.port, "v1", pika.PlainCredentials("u1", "other")
    )
    with pika.BlockingConnection(parameters):
        pass
    said(broker, "clear_permissions", "-p", "v1", "u1")
    assert said(broker, "-q", "list_permissions", "-p", "v1") == ""
    said(broker, "delete_user", "u1")
    assert say(broker, "-q", "delete_user", "u1")[0] == 67
    said(broker, "delete_vhost", "v1")
    assert say(broker, "-q", "delete_vhost", "v1")[0] == 65


def test_policies_and_limits(broker: BrokerProcess) -> None:
    definition = '{"max-length":5}'
    words = ("--priority", "3", "--apply-to", "queues", "p1", "^q", definition)
    assert said(broker, "set_policy", *words) == (
        f'Setting policy "p1" for pattern "^q" to "{definition}" with priority "3" '
        'for vhost "/" ...\n'
    )
    assert said(broker, "list_policies") == (
        'Listing policies for vhost "/" ...\n'
        "vhost\tname\tpattern\tapply-to\tdefinition\tpriority\n"
        f"/\tp1\t^q\tqueues\t{definition}\t3\n"
    )
    assert said(broker, "clear_policy", "p1") == 'Clearing policy "p1" on vhost "/" ...\n'
    missing = "Error:\nParameter does not exist\n"
    assert say(broker, "-q", "clear_policy", "p1") == (69, "", missing)
    assert say(broker, "-q", "set_policy", "p1", "^q", "{")[0] == 69
    code, _, error = say(broker, "-q", "set_policy", "p1", "^q", '{"max-lenght": 5}')
    assert (code, error[:7]) == (70, "Error:\n")
    said(broker, "add_vhost", "limited")
    said(broker, "set_vhost_limits", "-p", "limited", '{"max-queues": 0}')
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        connection.channel()
    said(broker, "set_vhost_limits", "-p", "limited", '{"max-queues": -1}')
    said(broker, "delete_vhost", "limited")


def test_queues_and_what_is_around_them(broker: BrokerProcess) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        arguments = {"x-max-length": 5, "x-dead-letter-exchange": "d"}
        channel.queue_declare("q1", durable=True, arguments=arguments)
        channel.queue_declare("q2")
        channel.queue_bind("q1", "amq.topic", "a.#")
        for _ in range(3):
            channel.basic_publish("", "q2", b"x")
        channel.basic_qos(prefetch_count=7)
        channel.basic_consume("q1", lambda *_: None, consumer_tag="t1")
        assert said(broker, "list_queues") == (
            "Timeout: 60.0 seconds ...\nListing queues for vhost / ...\n"
            "name\tmessages\nq1\t0\nq2\t3\n"
        )
        assert said(broker, "list_queues", "-s", "name", "arguments", "durable") == (
            'q1\t[{"x-max-length",5},{"x-dead-letter-exchange","d"}]\ttrue\nq2\t[]\tfalse\n'
        )
        assert said(broker, "list_queues", "--formatter", "json") == (
            '[\n{"name":"q1","messages":0}\n,{"name":"q2","messages":3}\n]\n'
        )
        assert said(broker, "list_queues", "-q", "-p", "nowhere") == ""
        assert said(broker, "list_bindings", "-q") == (
            "source_name\tsource_kind\tdestination_name\tdestination_kind\trouting_key\t"
            "arguments\n\texchange\tq1\tqueue\tq1\t[]\n\texchange\tq2\tqueue\tq2\t[]\n"
            "amq.topic\texchange\tq1\tqueue\ta.#\t[]\n"
        )
        head, line = said(broker, "list_consumers", "-q").splitlines()
        row = dict(zip(head.split("\t"), line.split("\t"), strict=True))
        assert (row["queue_name"], row["consumer_tag"], row["prefetch_count"]) == ("q1", "t1", "7")
        pid = said(broker, "-s", "list_channels", "pid").strip()
        assert row["channel_pid"] == pid
        assert said(broker, "purge_queue", "q2") == "Purging queue 'q2' in vhost '/' ...\n"
        assert say(broker, "-q", "purge_queue", "nope") == (69, "", "Error:\nnot_found\n")
        assert said(broker, "delete_queue", "q2") == (
            "Deleting queue 'q2' on vhost '/' ...\n"
            "Queue was successfully deleted with 0 ready messages\n"
        )
        assert say(broker, "-q", "delete_queue", "q1", "--if-unused")[0] == 70
        assert say(broker, "-q", "delete_queue", "q2")[0] == 64
        channel.queue_delete("q1")


def test_connections_are_listed_and_closed(broker: BrokerProcess) -> None:
    assert said(broker, "list_connections") == "Listing connections ...\n"
    with RawClient(broker.url).handshake() as client, RawClient(broker.url).handshake() as other:
        port = str(client.local_port)
        rows = said(broker, "-s", "list_connections", "peer_port", "pid", "user").splitlines()
        pids = {row.split("\t")[0]: row.split("\t")[1] for row in rows}
        assert pids.keys() == {port, str(other.local_port)}
        shown = said(broker, "-s", "list_connections", "auth_mechanism", "client_properties")
        mechanism, properties = shown.splitlines()[0].split("\t")
        assert (mechanism, properties[0], properties[-1]) == ("PLAIN", "[", "]")
        assert said(broker, "close_connection", pids[port], "bye") == (
            f"Closing connection {pids[port]}, reason: bye...\n"
        )
        assert "bye" in client.expect(amqp.Connection.Close).reply_text
        client.send(b"")
        said(broker, "close_all_connections", "over")
        assert "over" in other.expect(amqp.Connection.Close).reply_text


def test_the_node_is_the_one_that_is_named(broker: BrokerProcess) -> None:
    assert said(broker, "await_startup") == ""
    assert said(broker, "-n", "vouchmq@localhost", "-q", "status").startswith("VouchMQ ")
    code, out, error = say(broker, "-n", "rabbit@localhost", "list_queues")
    assert (code, out) == (69, "")
    assert "is node vouchmq@localhost, not rabbit@localhost" in error


@pytest.mark.parametrize("words", [("purge_queue", "q"), ("list_permissions",)])
def test_a_virtual_host_that_is_not_there(broker: BrokerProcess, words: tuple[str, ...]) -> None:
    assert say(broker, "-q", "-p", "none", *words)[0] in {65, 69}


def test_definitions_are_exported_and_imported(broker: BrokerProcess, tmp_path: Path) -> None:
    said(broker, "add_vhost", "exported")
    file = tmp_path / "definitions.json"
    assert said(broker, "export_definitions", str(file)) == (
        f"Exporting definitions in JSON to a file at {str(file)!r} ...\n"
    )
    assert file.stat().st_mode & 0o777 == 0o600
    assert "exported" in {each["name"] for each in json.loads(file.read_text())["vhosts"]}
    assert json.loads(said(broker, "export_definitions", "-")) == json.loads(file.read_text())
    said(broker, "delete_vhost", "exported")
    document = json.loads(file.read_text())
    log = {"vhost": "/", "name": "amq.rabbitmq.log", "type": "topic", "durable": True}
    file.write_text(json.dumps(document | {"exchanges": [log]}), "utf-8-sig")
    skipped = said(broker, "-q", "import_definitions", str(file))
    assert skipped == "skipped: exchanges[0] 'amq.rabbitmq.log'\n"
    assert "exported" in said(broker, "-q", "list_vhosts").split()
    said(broker, "delete_vhost", "exported")
    code, _, error = say(broker, "export_definitions", str(tmp_path))
    assert (code, error) == (65, f"Error:\n{tmp_path}: Is a directory\n")
