"""The command line as an operator meets it: starting, stopping, settings, and mistakes."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pamqp.commands as amqp
import pika
import pika.exceptions
import psutil
import pytest

from tests.integration.broker_process import PROJECT, BrokerProcess, clean_environment, run_command
from tests.integration.moving import blocking
from tests.integration.raw_client import RawClient, content, method
from tests.integration.start_up import assert_one_clear_line, serve
from tests.waiting import LIMIT_S, wait_until
from vouchmq.server.settings.settings import Settings

READY_LIMIT_S = 5.0
EXIT_LIMIT_S = 5.0


@pytest.fixture(autouse=True)
def _ours_only(referee_url: str | None) -> None:
    if referee_url is not None:
        pytest.skip("VouchMQ's own command line")


def tune_of(url: str) -> tuple[int, int, int]:
    """channel_max, frame_max and heartbeat that the broker offers."""
    with RawClient(url).handshake() as client:
        assert client.tune is not None
        return client.tune.channel_max, client.tune.frame_max, client.tune.heartbeat


def started(directory: Path, *flags: str, **environment: str) -> Iterator[BrokerProcess]:
    """A broker with these flags and variables, ended afterwards."""
    process = BrokerProcess(directory, flags=flags, environment=environment)
    process.start()
    try:
        yield process
        assert process.stop() == 0, process.output()
        assert process.complaints() == []
    finally:
        process.kill9()


def test_ready_file_says_where_the_broker_is_and_goes_with_it(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    for process in started(tmp_path, "--ready-file", str(ready)):
        facts = json.loads(ready.read_text(encoding="utf-8"))
        assert (facts["port"], facts["pid"]) == (process.port, process.pid)
    assert not ready.exists()


def test_ready_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    target = tmp_path / "missing" / "ready.json"
    data = str(tmp_path / "data")
    done = serve("--port", "0", "--data-dir", data, "--ready-file", str(target))
    assert_one_clear_line(done, "ready_file", str(target))


def spent_s(broker: BrokerProcess) -> float:
    """Of the processor: on a busy machine the clock says nothing about this process."""
    spent = psutil.Process(broker.pid).cpu_times()
    return spent.user + spent.system


def test_port_zero_takes_a_free_port_and_prints_it(tmp_path: Path) -> None:
    first, second = (BrokerProcess(tmp_path / name, flags=("--port", "0")) for name in "12")
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    try:
        for process in (first, second):
            process.start()
            assert spent_s(process) < READY_LIMIT_S
            lines = [line for line in process.output().splitlines() if "ready" in line]
            assert lines == [f"VouchMQ ready on 127.0.0.1:{process.port}"]
            tune_of(process.url)
        assert first.port != second.port
    finally:
        first.kill9()
        second.kill9()


@pytest.mark.parametrize(
    ("flags", "first", "clients"),
    [
        ((), "127.0.0.1", ("127.0.0.1", "::1")),
        (("--host", "::"), "[::]", ("127.0.0.1", "::1")),
        (("--host", "127.0.0.2,::1"), "127.0.0.2", ("127.0.0.2", "::1")),
        (("--host", "::1", "--host", "127.0.0.2"), "[::1]", ("127.0.0.2", "::1")),
    ],
)
def test_clients_come_by_every_address_that_was_asked_for(
    tmp_path: Path, flags: tuple[str, ...], first: str, clients: tuple[str, ...]
) -> None:
    for process in started(tmp_path, *flags):
        assert f"VouchMQ ready on {first}:{process.port}\n" in process.output()
        for host in clients:
            parameters = pika.ConnectionParameters(host, process.port)
            with pika.BlockingConnection(parameters) as connection:
                connection.channel().queue_declare("q")
        refused = {"127.0.0.1", "127.0.0.2"} - {*clients} if first != "[::]" else set()
        for host in refused:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, process.port))
        ping = [sys.executable, "-m", "vouchmq", "ping", "--port", str(process.port), *flags]
        assert subprocess.run(ping, cwd=PROJECT, env=clean_environment()).returncode == 0


def is_in(process: BrokerProcess, text: str) -> bool:
    return text in process.output()


def test_ping_asks_the_broker_of_the_data_directory_where_it_listens(tmp_path: Path) -> None:
    """The port is no setting that the other process could know."""
    for process in started(tmp_path, "--log-level", "info"):
        asked = run_command("ping", "--data-dir", str(process.data_dir))
        assert (asked.returncode, asked.stdout) == (0, "")
        asked = run_command("ping", "--data-dir", str(process.data_dir), "--json")
        found = {"host": "127.0.0.1", "port": process.port, "ok": True, "reason": ""}
        assert json.loads(asked.stdout) == found
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.port)):
            pass
        wait_until(partial(is_in, process, "connection.closed"))
        # A health check every ten seconds must not fill the log.
        assert "connection.lost" not in process.output()


def test_the_ready_line_is_json_where_the_log_is(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    command = [sys.executable, "-m", "vouchmq", "serve", "--port", "0", "--log-format", "json"]
    with subprocess.Popen(
        [*command, "--data-dir", str(data_dir)],
        cwd=PROJECT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as broker:
        assert broker.stdout is not None
        told = json.loads(broker.stdout.readline())
        assert told["event"] == "broker.ready"
        assert (told["host"], told["hosts"]) == ("127.0.0.1", ["127.0.0.1", "::1"])
        with pika.BlockingConnection(pika.ConnectionParameters(told["host"], told["port"])):
            pass
        broker.terminate()
    assert broker.returncode == 0


def test_ready_again_in_time_with_messages_on_disk(own_broker: BrokerProcess) -> None:
    with RawClient(own_broker.url).handshake() as client:
        client.open_channel()
        client.call(1, amqp.Queue.Declare(queue="stock", durable=True), amqp.Queue.DeclareOk)
        client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        client.send(content(1, "", "stock", bytes(1000), persistent=True) * 5000)
        client.confirmed_up_to(5000)
    own_broker.kill9()
    own_broker.restart()
    assert spent_s(own_broker) < READY_LIMIT_S
    with RawClient(own_broker.url).handshake() as client:
        client.open_channel()
        assert client.ready_count("stock") == 5000


@pytest.mark.parametrize("own_broker", [("--shutdown-timeout-s", "600")], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_with_zero_in_time(own_broker: BrokerProcess, number: int) -> None:
    helpers = psutil.Process(own_broker.pid).children()
    with pika.BlockingConnection(pika.URLParameters(own_broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("idle")
        os.kill(own_broker.pid, number)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
            connection.process_data_events(time_limit=LIMIT_S)
        assert caught.value.reply_code == 320
        assert caught.value.reply_text == (
            "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
        )
        # A client that answers is waited for as long as that takes, and no longer.
        assert own_broker.wait() == 0
    _, alive = psutil.wait_procs(helpers, timeout=LIMIT_S)
    assert alive == []


@pytest.mark.parametrize("own_broker", [("--auth-failures-window-s", "86400")], indirect=True)
def test_a_password_cannot_be_guessed_at_speed(own_broker: BrokerProcess) -> None:
    def logs_in(password: str, host: str) -> bool:
        credentials = pika.PlainCredentials("guest", password)
        parameters = pika.ConnectionParameters(host, own_broker.port, credentials=credentials)
        try:
            pika.BlockingConnection(parameters).close()
        except pika.exceptions.ProbableAuthenticationError:
            return False
        return True

    # As many as the settings allow, and then no more, the right one neither.
    guesses = ["wrong"] * 20 + ["guest"] + ["wrong"] * 20
    assert not any(logs_in(password, "127.0.0.1") for password in guesses)
    assert logs_in("guest", "::1")
    assert own_broker.output().count('"event": "login.refused"') == 20
    assert own_broker.output().count("too many have failed from this address") == 1


def test_other_signals_are_no_end(own_broker: BrokerProcess) -> None:
    helpers = psutil.Process(own_broker.pid).children()
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        for pid in (own_broker.pid, *(each.pid for each in helpers)):
            os.kill(pid, number)
        while f'"signal": "{signal.Signals(number).name}"' not in own_broker.output():
            assert own_broker.is_running, own_broker.output()
            time.sleep(0.01)
    with RawClient(own_broker.url).handshake() as client:
        client.open_channel()
        # The helper that syncs is there, too.
        client.call(1, amqp.Queue.Declare(queue="durable", durable=True), amqp.Queue.DeclareOk)
    assert own_broker.output().count('"event": "signal.ignored"') == 2


@pytest.mark.parametrize("own_broker", [("--shutdown-timeout-s", "600")], indirect=True)
def test_a_second_signal_ends_it_at_once(own_broker: BrokerProcess) -> None:
    with RawClient(own_broker.url).handshake() as mute:
        mute.open_channel()
        os.kill(own_broker.pid, signal.SIGTERM)
        mute.expect_close()
        assert own_broker.is_running
        time.sleep(0.3)
        os.kill(own_broker.pid, signal.SIGINT)
        assert own_broker.wait() == 1, own_broker.output()
    assert '"event": "broker.stop_forced"' in own_broker.output()
    own_broker.start()


def test_what_to_try_next_is_told_on_a_terminal_only(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "vouchmq", "serve", "--port", "0", "--log-level", "error"]
    process = subprocess.Popen(
        [*command, "--data-dir", str(tmp_path / "data")],
        cwd=PROJECT,
        env=clean_environment(),
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    text = b""
    try:
        while b"Ctrl-C" not in text:
            text += os.read(ours, 4096)
        process.send_signal(signal.SIGTERM)
        with suppress(OSError):
            while more := os.read(ours, 4096):
                text += more
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    lines = text.decode().split("\r\n")
    assert lines[0].startswith("VouchMQ ready on 127.0.0.1:")
    assert text.count(b"pip install pika") == 1


def test_a_client_that_does_not_answer_holds_the_end_up_for_less_than_five_seconds(
    own_broker: BrokerProcess,
) -> None:
    assert Settings().shutdown_timeout_s < EXIT_LIMIT_S
    with RawClient(own_broker.url).handshake() as mute, RawClient(own_broker.url) as halfway:
        mute.open_channel()
        halfway.send(b"AMQP")
        os.kill(own_broker.pid, signal.SIGTERM)
        assert own_broker.wait() == 0, own_broker.output()


def test_drain_confirms_what_it_has_taken(own_broker: BrokerProcess) -> None:
    with RawClient(own_broker.url).handshake() as client:
        client.open_channel()
        client.call(1, amqp.Queue.Declare(queue="drained", durable=True), amqp.Queue.DeclareOk)
        client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        client.send(content(1, "", "drained", bytes(500), persistent=True) * 2000)
        os.kill(own_broker.pid, signal.SIGTERM)
        confirmed = 0
        while True:
            _, value = client.read()
            if isinstance(value, amqp.Basic.Ack):
                confirmed = max(confirmed, value.delivery_tag)
            if isinstance(value, amqp.Connection.Close):
                assert value.reply_code == 320
                break
        client.send(method(0, amqp.Connection.CloseOk()))
    assert own_broker.wait() == 0
    own_broker.start()
    with RawClient(own_broker.url).handshake() as client:
        client.open_channel()
        kept = client.ready_count("drained")
    # All acks of one channel and kind come in order: what was confirmed is a prefix.
    assert kept >= confirmed
    assert kept == confirmed, f"{kept} are stored, the publisher was told of {confirmed} only"


def test_no_new_client_is_let_in_while_it_stops(own_broker: BrokerProcess) -> None:
    port = own_broker.port
    with RawClient(own_broker.url).handshake() as client:
        os.kill(own_broker.pid, signal.SIGTERM)
        client.expect_close()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), timeout=2).close()
        client.send(method(0, amqp.Connection.CloseOk()))
    assert own_broker.wait() == 0


def test_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = serve("--port", port, "--data-dir", str(tmp_path / "data"))
    assert_one_clear_line(done, port, "in use")


def test_starts_that_fail_leave_the_data_directory_alone(tmp_path: Path) -> None:
    """DURABLE-22, DURABLE-27: a supervisor may try again for ever, whatever the reason is."""
    faulty, refused, ready = (tmp_path / name for name in ("faulty", "refused", "ready"))
    faulty.write_text("{")
    queue = {"vhost": "/", "name": "q", "durable": True, "auto_delete": False, "arguments": {}}
    refused.write_text(json.dumps({"queues": [queue | {"arguments": {"x-max-length": -1}}]}))
    ready.mkdir()
    seen = {}
    for process in started(tmp_path):
        data = process.data_dir
        with RawClient(process.url).handshake() as client:
            told = client.server_properties
            seen = {"data-directory": told["data_directory_id"], "start": told["start_id"]}
        with blocking(process) as connection:
            connection.channel().queue_declare("kept", durable=True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        causes = (
            (("--port", port), "in use"),
            (("--port", "0", "--load-definitions", str(tmp_path / "missing")), "missing"),
            (("--port", "0", "--load-definitions", str(faulty)), "not JSON"),
            (("--port", "0", "--load-definitions", str(refused)), "x-max-length"),
            (("--port", "0", "--ready-file", str(ready)), "ready_file"),
        )
        before: dict[str, bytes] = {}
        for flags, word in causes + causes:
            assert_one_clear_line(serve("--data-dir", str(data), *flags), word)
            files = {each.name: each.read_bytes().rstrip(b"\0") for each in data.glob("*.journal")}
            assert files == (before or files)
            before = files
    assert json.loads(run_command("store", "check", str(data), "--json").stdout)["is_sealed"]
    assert not ready.with_name("ready.new").exists()
    for process in started(tmp_path, "--log-level", "info"):
        assert '"clean": true' in process.output()
        with blocking(process) as connection:
            position = connection.channel().queue_declare(
                "amq.vouchmq.position", passive=True, arguments=seen | {"lsn": 1}
            )
            assert position.method.message_count


def test_confirms_that_wait_for_a_standby_need_a_shared_log(tmp_path: Path) -> None:
    data = tmp_path / "data"
    done = serve("--port", "0", "--data-dir", str(data), "--ha-confirm", "log+standby")
    assert_one_clear_line(done, "ha_confirm", "set ha_log")
    assert not data.exists()


def test_data_dir_that_is_a_file_is_one_clear_line(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("not a directory")
    assert_one_clear_line(serve("--port", "0", "--data-dir", str(place)), str(place))
    assert_one_clear_line(serve("--port", "0", "--data-dir", str(place / "below")), str(place))
    assert place.read_text() == "not a directory"


def test_data_dir_of_a_running_broker_is_one_clear_line(own_broker: BrokerProcess) -> None:
    place = str(own_broker.data_dir)
    assert_one_clear_line(serve("--port", "0", "--data-dir", place), place)
    tune_of(own_broker.url)
    # The lock dies with its holder, however that ends.
    own_broker.kill9()
    own_broker.restart()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port", "many"], ["--port", "many"]),
        (["--port", "70000"], ["--port", "70000"]),
        (["--heartbeat-s", "-1"], ["--heartbeat-s", "-1"]),
        (["--log-level", "loud"], ["--log-level", "loud"]),
        (["--durability-fsync", "perhaps"], ["--durability-fsync", "perhaps"]),
        (["--no-such-flag", "1"], ["--no-such-flag"]),
        (["--por", "0"], ["--por"]),
        (["--port"], ["--port"]),
        (["--config", "/no/such/file.toml"], ["/no/such/file.toml"]),
        (["stray"], ["stray"]),
    ],
)
def test_bad_flag_is_one_clear_line(flags: list[str], words: list[str], tmp_path: Path) -> None:
    assert_one_clear_line(serve("--data-dir", str(tmp_path / "data"), *flags), *words)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("VOUCHMQ_PORT", "x"),
        ("VOUCHMQ_CHANNEL_MAX", "-2"),
        ("VOUCHMQ_NO_SUCH_SETTING", "1"),
        ("VOUCHMQ_CONFIG", "/no/such/file.toml"),
    ],
)
def test_bad_variable_is_one_clear_line(variable: str, value: str, tmp_path: Path) -> None:
    done = serve("--data-dir", str(tmp_path / "data"), environment={variable: value})
    assert_one_clear_line(done, value if variable == "VOUCHMQ_CONFIG" else variable)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("port = 'x'\n", "port"),
        ("porto = 1\n", "porto"),
        ("port = \n", "line 1"),
        ("[compat]\nproduct = 3\n", "product"),
        ("[[users]]\nname = 1\n", "users"),
    ],
)
def test_bad_file_is_one_clear_line(text: str, word: str, tmp_path: Path) -> None:
    config = tmp_path / "vouchmq.toml"
    config.write_text(text)
    done = serve("--config", str(config), "--data-dir", str(tmp_path / "data"))
    assert_one_clear_line(done, str(config), word)


def test_flag_beats_variable_beats_file(tmp_path: Path) -> None:
    config = tmp_path / "vouchmq.toml"
    config.write_text("channel_max = 11\nframe_max = 11000\nheartbeat_s = 11\n")
    for process in started(tmp_path, "--config", str(config)):
        assert tune_of(process.url) == (11, 11000, 11)
    variables = {"VOUCHMQ_FRAME_MAX": "22000", "VOUCHMQ_HEARTBEAT_S": "22"}
    for process in started(tmp_path, "--config", str(config), **variables):
        assert tune_of(process.url) == (11, 22000, 22)
    flags = ("--config", str(config), "--heartbeat-s", "33")
    for process in started(tmp_path, *flags, **variables):
        assert tune_of(process.url) == (11, 22000, 33)
    variables["VOUCHMQ_CONFIG"] = str(config)
    for process in started(tmp_path, **variables):
        assert tune_of(process.url) == (11, 22000, 22)


def test_defaults_are_those_of_the_specification(own_broker: BrokerProcess) -> None:
    assert tune_of(own_broker.url) == (2047, 131072, 60)


def test_variables_of_rabbitmqs_image_are_honoured(tmp_path: Path) -> None:
    variables = {
        "RABBITMQ_DEFAULT_USER": "carol",
        "RABBITMQ_DEFAULT_PASS": "s3cret",
        "RABBITMQ_DEFAULT_VHOST": "shop",
    }
    for process in started(tmp_path, **variables):
        good = f"amqp://carol:s3cret@127.0.0.1:{process.port}/shop"
        with pika.BlockingConnection(pika.URLParameters(good)) as connection:
            channel = connection.channel()
            channel.queue_declare("mine", exclusive=True)
            channel.confirm_delivery()
            channel.basic_publish("", "mine", b"x", mandatory=True)
        for bad, refusal in (
            (process.url, pika.exceptions.ProbableAuthenticationError),
            (good.replace("s3cret", "wrong"), pika.exceptions.ProbableAuthenticationError),
            (good.replace("/shop", "/%2F"), pika.exceptions.ProbableAccessDeniedError),
        ):
            with pytest.raises(refusal):
                pika.BlockingConnection(pika.URLParameters(bad))
        assert "s3cret" not in process.output()
    # The default user is made on an empty data directory only.
    (tmp_path / "other").mkdir()
    for process in started(tmp_path / "other", VOUCHMQ_DEFAULT_USER="dave", **variables):
        both = f"amqp://dave:s3cret@127.0.0.1:{process.port}/shop"
        with pika.BlockingConnection(pika.URLParameters(both)) as connection:
            assert connection.is_open


def test_logs_are_json_when_nobody_watches(tmp_path: Path) -> None:
    for process in started(tmp_path, "--log-level", "debug"):
        with RawClient(process.url).handshake():
            pass
        pika.BlockingConnection(pika.URLParameters(process.url)).close()
        bad = pika.URLParameters(process.url.replace(":guest@", ":pa55word@"))
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            pika.BlockingConnection(bad)
    lines = [line for line in process.output().splitlines() if "VouchMQ ready" not in line]
    events = [json.loads(line) for line in lines]
    named = {event["event"] for event in events}
    assert {"connection.opened", "connection.closed", "connection.lost", "login.refused"} <= named
    for event in events:
        assert {"event", "level", "timestamp"} <= set(event)
    assert "pa55word" not in process.output()


def test_logs_are_for_eyes_when_asked(tmp_path: Path) -> None:
    for process in started(tmp_path, "--log-format", "human", "--log-level", "info"):
        with RawClient(process.url).handshake():
            pass
    assert "connection.opened" in process.output()
    assert '{"' not in process.output()


def test_help_and_version_answer_at_once() -> None:
    for flags, word in (
        (["--help"], "serve"),
        (["--version"], "vouchmq"),
        (["serve", "-h"], "--port"),
    ):
        before = os.times()
        done = subprocess.run(
            [sys.executable, "-m", "vouchmq", *flags],
            cwd=PROJECT,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
        assert word in done.stdout
        assert done.stderr == ""
        after = os.times()
        spent = after.children_user + after.children_system
        assert spent - before.children_user - before.children_system < 2.0


def test_idle_broker_is_small(own_broker: BrokerProcess) -> None:
    process = psutil.Process(own_broker.pid)
    everyone = [process, *process.children(recursive=True)]
    unique = sum(each.memory_full_info().uss for each in everyone)
    assert process.memory_info().rss <= 60 * 1024 * 1024
    assert unique <= 60 * 1024 * 1024
