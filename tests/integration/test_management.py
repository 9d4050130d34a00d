"""The management process: it is started, watched and ended by its broker; logins; errors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pika
import psutil
import pytest

from tests.integration.broker_process import PROJECT, BrokerProcess, clean_environment
from tests.integration.management import READY, ManagedBroker, ask, login, managed_broker
from tests.waiting import LIMIT_S, wait_until

PROGRAM = "vouchmq.management"


@pytest.fixture(scope="module")
def managed(module_path: Path) -> Iterator[ManagedBroker]:
    with managed_broker(module_path, "--auth-failures-max", "3") as broker:
        yield broker


def management_of(process: BrokerProcess) -> psutil.Process:
    """The management process of a broker."""
    children = psutil.Process(process.pid).children()
    [found] = [each for each in children if PROGRAM in each.cmdline()]
    return found


def test_it_comes_back_when_it_is_killed_and_messaging_goes_on(managed: ManagedBroker) -> None:
    with pika.BlockingConnection(pika.URLParameters(managed.process.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", exclusive=True)
        management_of(managed.process).kill()
        channel.basic_publish("", "q", b"x")
        assert channel.basic_get("q", auto_ack=True)[2] == b"x"
        managed.wait_ready()
    assert managed.get("/whoami")["name"] == "guest"
    managed.process.wait_for_log("management.ended", '"exit_code": -9')


def test_a_signal_ends_it(managed: ManagedBroker) -> None:
    """The broker has it blocked, and a child inherits that."""
    before = management_of(managed.process)
    before.terminate()
    before.wait(LIMIT_S)
    managed.process.wait_for_log("management.ended", '"exit_code": 0')
    managed.wait_ready()


@pytest.mark.parametrize("how", ["stop", "kill9"])
def test_it_ends_with_its_broker(tmp_path: Path, how: str) -> None:
    broker = ManagedBroker(tmp_path)
    child = management_of(broker.process)
    getattr(broker.process, how)()
    wait_until(lambda: not child.is_running(), broker.process.output)
    assert "management.ended" not in broker.process.output()


def test_a_port_that_is_taken_is_told_and_tried_again(
    managed: ManagedBroker, tmp_path: Path
) -> None:
    flags = ("--management", "on", "--management-port", str(managed.port))
    broker = BrokerProcess(tmp_path, flags=(*flags, "--prometheus-port", "0"))
    broker.start()
    try:
        broker.wait_for_log("management.listen_failed", "in use")
        broker.wait_for_log("management.ended", '"exit_code": 1', '"delay_s": 1.0')
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            assert connection.channel().is_open
        assert broker.stop() == 0
    finally:
        broker.kill9()


def test_a_management_process_of_a_broker_that_runs_already(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    command = [sys.executable, "-m", "vouchmq", "manage", "--broker", str(broker.data_dir)]
    with (tmp_path / "manage.log").open("wb") as output:
        process = subprocess.Popen(
            [*command, "--management-port", "0", "--prometheus-port", "0"],
            cwd=PROJECT,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        log = tmp_path / "manage.log"
        wait_until(lambda: READY.search(log.read_text()), log.read_text)
        found = READY.search(log.read_text())
        assert found is not None
        port = int(found[1])
        headers = login("guest", "guest")
        assert ask(port, "GET", "/api/whoami", headers=headers).body["name"] == "guest"
        # A broker that has gone is told; one that has come back is asked.
        broker.kill9()
        gone = ask(port, "GET", "/api/whoami", headers=headers)
        assert (gone.status, gone.body["error"]) == (503, "service_unavailable")
        wait_until(lambda: "management.broker_awaited" in log.read_text(), log.read_text)
        broker.start()
        assert ask(port, "GET", "/api/whoami", headers=headers).status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
        broker.kill9()


def test_logins(managed: ManagedBroker) -> None:
    assert managed.get("/whoami")["tags"] == ["administrator"]
    missing = managed.ask("GET", "/whoami", user=None)
    assert (missing.status, missing.body) == (401, "")
    assert missing.headers["www-authenticate"].startswith('Basic realm="')
    wrong = managed.ask("GET", "/whoami", user="nobody", password="x")
    assert (wrong.status, wrong.body) == (
        401,
        {"error": "not_authorized", "reason": "Login failed"},
    )
    for header in ("Basic %%%", "Basic Zm9v", "Basic /w=="):
        got = managed.ask("GET", "/whoami", user=None, headers={"Authorization": header})
        assert (got.status, got.body) == (wrong.status, wrong.body)
    other = managed.ask("GET", "/whoami", user=None, headers={"Authorization": "Bearer x"})
    assert (other.status, other.body) == (401, "")


def test_failed_logins_are_counted_as_those_of_amqp(tmp_path: Path) -> None:
    broker = ManagedBroker(tmp_path, "--auth-failures-max", "2")
    try:
        for _ in range(2):
            assert broker.ask("GET", "/whoami", password="wrong").status == 401
        # The right one is not tried any more.
        assert broker.ask("GET", "/whoami").status == 429
        broker.process.wait_for_log("management.login_failed", "refused unchecked")
        assert broker.process.output().count("management.login_failed") == 2
        assert broker.process.stop() == 0
    finally:
        broker.process.kill9()


def test_paths_and_methods(managed: ManagedBroker) -> None:
    unknown = managed.ask("GET", "/nothing")
    assert (unknown.status, unknown.body) == (
        404,
        {"error": "Object Not Found", "reason": "Not Found"},
    )
    wrong = managed.ask("PUT", "/whoami", {})
    assert (wrong.status, wrong.headers["allow"]) == (405, "HEAD, GET, OPTIONS")
    options = managed.ask("OPTIONS", "/whoami", user=None)
    assert (options.status, options.headers["allow"]) == (200, "HEAD, GET, OPTIONS")
    head = managed.ask("HEAD", "/whoami")
    assert (head.status, head.body) == (200, "")
    assert int(head.headers["content-length"]) > 0


def test_what_a_scrape_tells(managed: ManagedBroker) -> None:
    text = managed.metrics()
    assert "\nrabbitmq_connections 0.0\n" in text
    assert "\n# TYPE rabbitmq_connections_opened_total counter\n" in text


def test_json_log(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vouchmq", "serve", "--port", "0"]
    process = subprocess.Popen(
        [
            *command,
            *("--data-dir", str(tmp_path / "d"), "--management", "on", "--management-port", "0"),
            *("--prometheus-port", "0", "--log-format", "json"),
        ],
        cwd=PROJECT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert [line["event"] for line in lines] == ["broker.ready", "management.ready"]
        assert lines[1]["management_port"] and lines[1]["prometheus_port"]
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.slow
def test_a_broker_that_is_stopped_is_told_and_then_goes_on(managed: ManagedBroker) -> None:
    """What takes seconds of real time; `tests/unit/management/test_pulse.py` has the rest."""
    paths = ("/overview", "/queues", "/health/checks/alarms", "/health/checks/is-in-service")
    broker = psutil.Process(managed.process.pid)
    managed.get("/overview")
    broker.suspend()
    try:
        for path in paths:
            got = managed.ask("GET", path)
            assert (got.status, got.body["reason"]) == (503, "the broker does not answer"), path
            assert got.body["last_answer_ms"] > 0
        assert ask(managed.metrics_port, "GET", "/metrics").status == 503
    finally:
        broker.resume()
    # The first request may still be told that it hangs.
    wait_until(lambda: managed.ask("GET", paths[0]).status == 200)
    assert [managed.ask("GET", path).status for path in paths] == [200] * len(paths)
    assert "rabbitmq_connections" in managed.metrics()
