"""Commands with `--url`: a broker asked over HTTP answers as over its socket."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.integration.broker_process import clean_environment
from tests.integration.management import ManagedBroker, managed_broker
from tests.waiting import LIMIT_S
from vouchmq.server.admin.frames import frame
from vouchmq.server.cli.main import program

CONFIGURATION = """
[[users]]
name = "guest"
password = "guest"
tags = ["administrator"]
vhosts = ["/"]
[[users]]
name = "limited"
password = "limited"
tags = ["management"]
vhosts = ["/"]
[[users]]
name = "monitor"
password = "monitor"
tags = ["monitoring"]
vhosts = ["/"]
[[users]]
name = "plain"
password = "plain"
"""


@pytest.fixture(scope="module")
def managed(module_path: Path) -> Iterator[ManagedBroker]:
    (module_path / "c.toml").write_text(CONFIGURATION)
    flags = ("--config", str(module_path / "c.toml"), "--log-level", "info")
    with managed_broker(module_path, *flags) as broker:
        yield broker


def url(managed: ManagedBroker, login: str = "guest:guest@") -> str:
    return f"http://{login}127.0.0.1:{managed.port}"


def run(*words: str, env: Mapping[str, str | None] | None = None) -> Result:
    return CliRunner().invoke(program, [*words], env=env)


def remotely(managed: ManagedBroker, *words: str) -> Result:
    return run(*words, "--url", url(managed))


def done(managed: ManagedBroker, *words: str) -> str:
    """The output of a command that succeeds over HTTP."""
    result = remotely(managed, *words)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def refused(exit_code: int, *words: str, env: Mapping[str, str | None] | None = None) -> str:
    """What is said, in one line, by a command that fails."""
    result = run(*words, env=env)
    assert (result.exit_code, result.stdout) == (exit_code, ""), result.output
    [line] = result.stderr.splitlines()
    return line.removeprefix("vouchmq: ")


@pytest.fixture
def two_messages(managed: ManagedBroker) -> Iterator[None]:
    done(managed, "declare", "queue", "orders")
    done(managed, "publish", "--routing-key", "orders", "--property", 'headers={"a":1}', "first")
    done(managed, "publish", "--routing-key", "orders", "--file", os.devnull)
    yield
    done(managed, "delete", "queue", "orders")


@pytest.mark.parametrize(
    "words",
    [
        ["list", "queues"],
        ["list", "queues", "--sort", "messages_ready", "--columns", "name,messages_ready"],
        ["list", "exchanges"],
        ["list", "bindings"],
        ["list", "vhosts"],
        ["list", "users"],
        ["list", "permissions"],
        ["list", "policies"],
        ["list", "parameters"],
        ["list", "alarms"],
        ["list", "connections"],
        ["show", "queue", "orders"],
        ["show", "vhost", "/"],
        ["peek", "orders"],
        ["peek", "orders", "--state", "unacknowledged"],
        ["get", "orders", "--count", "5"],
        ["ledger", "status"],
        ["show", "queue", "missing"],
        ["get", "missing"],
        ["delete", "user", "missing"],
        ["list", "queues", "--columns", "cats"],
    ],
)
@pytest.mark.usefixtures("two_messages")
def test_the_same_is_shown_as_over_the_socket(managed: ManagedBroker, words: list[str]) -> None:
    # Then both times the messages are redelivered ones.
    done(managed, "get", "orders", "--count", "2")
    for flags in ([], ["--json"]):
        here = run(*words, *flags, "--data-dir", str(managed.process.data_dir))
        there = remotely(managed, *words, *flags)
        if "alarms" in words:
            # They have measurements, which differ from look to look.
            assert len(there.stdout.splitlines()) == len(here.stdout.splitlines())
        else:
            assert there.stdout == here.stdout
        assert (there.exit_code, there.stderr) == (here.exit_code, here.stderr)


def test_status_is_that_of_the_broker(managed: ManagedBroker) -> None:
    document = json.loads(done(managed, "status", "--json"))
    assert document["pid"] == managed.process.pid
    assert f"process         {managed.process.pid}, up " in done(managed, "status")


def test_changes_are_made_for_the_user(managed: ManagedBroker, tmp_path: Path) -> None:
    assert done(managed, "put", "user", "eve", "--password", "x") == "user 'eve' set\n"
    assert done(managed, "delete", "user", "eve") == "user 'eve' deleted\n"
    done(managed, "declare", "queue", "from")
    done(managed, "declare", "queue", "to")
    body = bytes(range(256)) * 400
    (tmp_path / "body").write_bytes(body)
    done(managed, "publish", "--routing-key", "from", "--file", str(tmp_path / "body"))
    assert done(managed, "move", "from", "--to-queue", "to") == "1 message moved\n"
    [shown] = map(json.loads, done(managed, "get", "to", "--ack", "--json").splitlines())
    assert shown["size"] == len(body)
    assert done(managed, "purge", "to") == "0 messages deleted\n"
    done(managed, "delete", "queue", "from")
    done(managed, "delete", "queue", "to")
    logged = managed.process.output()
    assert '"user": "guest"' in logged
    assert '"origin": "127.0.0.1"' in logged


def test_what_happens_is_watched(managed: ManagedBroker) -> None:
    command = [sys.executable, "-m", "vouchmq", "watch", "queue", "--json", "--url", url(managed)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=clean_environment()
    ) as watching:
        assert watching.stdout is not None
        at = 0
        # It does not say when it begins to listen.
        while not select.select([watching.stdout], [], [], 0.2)[0] and at < LIMIT_S * 5:
            at += 1
            done(managed, "declare", "queue", f"watched{at}")
        event = json.loads(watching.stdout.readline())
        watching.terminate()
    assert event["event"] == "queue.created"
    for each in range(1, at + 1):
        done(managed, "delete", "queue", f"watched{each}")


def test_tags_decide_what_is_shown(managed: ManagedBroker) -> None:
    of = {name: url(managed, f"{name}:{name}@") for name in ("limited", "monitor", "plain")}
    line = refused(1, "status", "--url", of["limited"])
    assert line == "status: user 'limited' may not do this (Not monitor user)"
    assert run("status", "--url", of["monitor"]).exit_code == 0
    line = refused(1, "list", "users", "--url", of["monitor"])
    assert line == "list users: user 'monitor' may not do this (Not administrator user)"
    assert "Not policymaker" in refused(1, "list", "policies", "--url", of["monitor"])
    assert "may not do this (Not management user)" in refused(1, "get", "q", "--url", of["plain"])
    # Their permissions are looked at by the broker.
    assert run("declare", "queue", "theirs", "--url", of["limited"]).exit_code == 0
    assert run("delete", "queue", "theirs", "--url", of["limited"]).exit_code == 0
    line = refused(1, "put", "user", "x", "--url", of["limited"])
    assert line == "put user: user 'limited' may not do this"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ({"command": "drain"}, "'drain' cannot be asked for over HTTP"),
        ({"command": "backup begin"}, "'backup begin' cannot be asked for over HTTP"),
        ({"command": "authenticate", "user": "x"}, "expected a command, and not who asks"),
        ({"command": "put queue", "name": "q", "user": None}, "expected a command, and not"),
        ({}, "expected a command"),
    ],
)
def test_what_is_no_business_of_others_is_refused(
    managed: ManagedBroker, command: dict[str, Any], reason: str
) -> None:
    got = managed.ask("POST", "/commands", frame(command))
    assert (got.status, reason in got.body["reason"]) == (400, True), got


def test_logins_come_from_elsewhere_too(managed: ManagedBroker, tmp_path: Path) -> None:
    bare = url(managed, "")
    names = ("VOUCHMQ_URL", "VOUCHMQ_URL_USER", "VOUCHMQ_URL_PASSWORD")
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login guest password guest\n")
    netrc.chmod(0o600)
    nobody = {**dict.fromkeys(names, None), "NETRC": str(tmp_path / "none")}
    for env in (
        {"VOUCHMQ_URL_USER": "guest", "VOUCHMQ_URL_PASSWORD": "guest"},
        {"NETRC": str(netrc)},
        {"NETRC": str(netrc), "VOUCHMQ_URL_USER": "guest"},
    ):
        assert run("status", "--url", bare, env={**nobody, **env}).exit_code == 0
    assert run("status", env={**nobody, "VOUCHMQ_URL": url(managed)}).exit_code == 0
    directory = str(managed.process.data_dir)
    elsewhere = {**nobody, "VOUCHMQ_URL": "http://x:x@127.0.0.1:1"}
    assert run("status", "--data-dir", directory, env=elsewhere).exit_code == 0
    line = refused(2, "status", "--url", bare, env=nobody)
    assert line.startswith("no login at 127.0.0.1: put one into the URL, into VOUCHMQ_URL_USER")
    line = refused(2, "status", "--url", url(managed, "eve@"), env={**nobody, "NETRC": str(netrc)})
    assert line.startswith("no password for user 'eve' at 127.0.0.1: ")
    netrc.write_text("what\n")
    line = refused(2, "status", "--url", bare, env={**nobody, "NETRC": str(netrc)})
    assert line == f"{netrc}: bad toplevel token 'what'"


def test_wrong_passwords_are_not_repeated(managed: ManagedBroker) -> None:
    line = refused(1, "status", "--url", url(managed, "guest:secret@"))
    assert line.endswith(": wrong password for user 'guest', or no such user")
    assert "secret" not in line


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--url", "ftp://a:b@h"], "expected a URL such as http://user@host:15672"),
        (["--url", "host:15672"], "expected a URL such as http://user@host:15672"),
        (["--url", "http://a:b@h:99999"], "expected a URL such as http://user@host:15672"),
        (
            ["--url", "http://a:b@h", "--insecure"],
            "--ca-file and --insecure need https in the URL",
        ),
        (["--insecure"], "--ca-file and --insecure need --url; see vouchmq status --help"),
        (
            ["--url", "http://a:b@h", "--data-dir", "d"],
            "expected --url or --data-dir, not both; see vouchmq status --help",
        ),
        (
            ["--url", "https://a:b@h", "--ca-file", "/missing"],
            "--ca-file /missing: No such file or directory",
        ),
    ],
)
def test_mistakes(words: list[str], line: str) -> None:
    assert refused(2, "status", *words) == line


@pytest.mark.parametrize(
    "words",
    [
        ["drain"],
        ["doctor"],
        ["ping"],
        ["store", "check"],
        ["store", "dump"],
        ["store", "backup", "t"],
        ["store", "restore", "b", "t"],
    ],
)
def test_what_is_done_on_the_machine_of_the_broker_takes_no_url(words: list[str]) -> None:
    line = refused(2, *words, "--url", "http://a:b@h")
    assert line.startswith("it works on the machine of the broker only, without --url; see vouchmq")


def test_nobody_at_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    line = refused(2, "list", "queues", "--url", f"http://a:b@127.0.0.1:{port}")
    assert line == f"no answer from http://127.0.0.1:{port}: Connection refused"


class Handler(BaseHTTPRequestHandler):
    """Knows no path."""

    def do_POST(self) -> None:
        """Answer."""
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def served(context: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of a server that has no such path."""
    server = HTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_another_server_is_told_from_a_broker() -> None:
    with served() as port:
        line = refused(2, "status", "--url", f"http://a:b@127.0.0.1:{port}/some/api")
    there = f"http://127.0.0.1:{port}/some/api/commands"
    assert line == f"{there} is no HTTP API of VouchMQ: it answers 404 Not Found"


def test_certificates_are_checked(certificates: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    with served(context) as port:
        there = f"https://a:b@localhost:{port}"
        line = refused(2, "status", "--url", there)
        assert line.startswith(f"https://localhost:{port}: its certificate is not trusted (")
        assert line.endswith("; --ca-file names an authority, --insecure trusts any")
        line = refused(2, "status", "--url", there, "--ca-file", str(certificates / "ca.pem"))
        assert line.endswith("it answers 404 Not Found")
        line = refused(2, "status", "--url", there, "--insecure")
        assert line.endswith("it answers 404 Not Found")
        line = refused(2, "status", "--url", there, "--ca-file", str(certificates / "server.key"))
        assert line.endswith("server.key: no certificates in it")
    with served() as port:
        line = refused(2, "status", "--url", f"https://a:b@127.0.0.1:{port}", "--insecure")
    assert line.startswith(f"https://127.0.0.1:{port}: no TLS there (")


def test_a_broker_that_goes_meanwhile(tmp_path: Path) -> None:
    managed = ManagedBroker(tmp_path)
    command = [sys.executable, "-m", "vouchmq", "watch", "--url", url(managed)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    try:
        with subprocess.Popen(command, env=clean_environment(), **pipes) as watching:
            managed.process.wait_until(lambda: _has_peer(managed.port))
            managed.process.kill9()
            _, said = watching.communicate(timeout=LIMIT_S)
    finally:
        managed.process.kill9()
    assert watching.returncode == 2
    assert said.startswith(f"vouchmq: http://127.0.0.1:{managed.port}")
    assert len(said.splitlines()) == 1


def _has_peer(port: int) -> bool:
    """Whether somebody is connected to a port of this machine."""
    wanted = f":{port:04X}"
    rows = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    return any(row.split()[1].endswith(wanted) and row.split()[3] == "01" for row in rows)


def test_definitions_go_from_one_broker_to_another(managed: ManagedBroker, tmp_path: Path) -> None:
    done(managed, "put", "vhost", "origin")
    done(managed, "declare", "queue", "kept", "--vhost", "origin", "--argument", "x-max-length=7")
    done(managed, "declare", "exchange", "events", "--vhost", "origin")
    done(managed, "declare", "binding", "events", "kept", "--vhost", "origin")
    everything = json.loads(done(managed, "definitions", "export"))
    assert {"guest", "limited"} <= {user["name"] for user in everything["users"]}
    directory = str(managed.process.data_dir)
    here = run("definitions", "export", "--running", "--data-dir", directory)
    on_disk = run("definitions", "export", "--data-dir", directory)
    # On disk there are versions, too.
    assert json.loads(on_disk.stdout) | everything == json.loads(on_disk.stdout)
    assert json.loads(here.stdout) == everything
    file = tmp_path / "one.json"
    file.write_text(done(managed, "definitions", "export", "--vhost", "origin"))
    assert "users" not in json.loads(file.read_text())
    done(managed, "put", "vhost", "copy")
    words = ["definitions", "import", str(file), "--vhost", "copy"]
    assert done(managed, *words) == "definitions imported\n"
    [queue] = json.loads(done(managed, "definitions", "export", "--vhost", "copy"))["queues"]
    assert (queue["name"], queue["arguments"]["x-max-length"]) == ("kept", 7)
    assert len(done(managed, "list", "bindings", "--vhost", "copy").splitlines()) == 2
    file.write_text('{"federation-upstreams": [1]}')
    assert json.loads(done(managed, *words, "--json")) == {"skipped": ["federation-upstreams"]}
    file.write_text('{"queues": 5}')
    line = refused(1, *words, "--url", url(managed))
    assert line.endswith("queues: expected a list, not a number")
    assert line.startswith(f"{file}: ")
    # Line and column as an editor shows them, which hides a byte order mark.
    file.write_text('\ufeff{"queues": [],\n "bindings": [}', "utf-8")
    line = refused(1, *words, "--url", url(managed))
    assert line.startswith(f"{file}: ")
    assert "line 2 column 15" in line
    file.write_bytes(b"\xff")
    assert refused(2, *words, "--url", url(managed)) == f"{file}: not UTF-8"
    line = refused(2, "definitions", "import", "/missing", "--url", url(managed))
    assert line == "FILE /missing: No such file or directory"
    line = refused(2, "definitions", "export", "--vhost", "x", "--data-dir", directory)
    assert line.startswith("--vhost needs --running or --url")
    for vhost in ("origin", "copy"):
        done(managed, "delete", "vhost", vhost)


def test_status_says_where_the_management_process_is(managed: ManagedBroker) -> None:
    [first] = json.loads(done(managed, "status", "--json"))["management"]
    assert (first["port"], first["metrics_port"]) == (managed.port, managed.metrics_port)
    os.kill(first["pid"], signal.SIGKILL)
    managed.wait_ready()

    def is_there() -> bool:
        shown = run("status", "--json", "--data-dir", str(managed.process.data_dir))
        return [each["port"] for each in json.loads(shown.stdout)["management"]] == [managed.port]

    managed.process.wait_until(is_there)
