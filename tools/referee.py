"""Start and stop a private RabbitMQ node, the referee that conformance and bench measure against.

Needs Debian's `rabbitmq-server` package. The node gets its own name, port, data and log
directory, so that several may run beside each other and beside a system-wide one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
CONTROL = "/usr/lib/rabbitmq/bin/rabbitmqctl"
START_LIMIT_S = 90
LOAD_S = 1.0


def environment(directory: Path, port: int) -> dict[str, str]:
    """The node's environment: nothing of it touches the machine-wide defaults."""
    return {
        **os.environ,
        "HOME": str(directory),
        "RABBITMQ_NODENAME": f"referee{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(port + 20000),
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }


# Clients may show a certificate, and log in with it where the plugin for EXTERNAL is enabled.
TLS = """
listeners.ssl.1 = 127.0.0.1:{port}
ssl_options.cacertfile = {files}/ca.pem
ssl_options.certfile = {files}/server.pem
ssl_options.keyfile = {files}/server.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = AMQPLAIN
auth_mechanisms.3 = EXTERNAL
"""


# What it counts is told after a second.
MANAGEMENT = """
management.tcp.ip = 127.0.0.1
management.tcp.port = {port}
collect_statistics_interval = 1000
"""


def start(
    directory: Path,
    port: int,
    plugins: Sequence[str] = (),
    tls_files: Path | None = None,
    management_port: int = 0,
) -> int:
    """Start the node with these plugins and wait until it speaks AMQP; print its URL."""
    if not Path(SERVER).exists():
        print("rabbitmq-server is not installed: apt-get install rabbitmq-server", file=sys.stderr)
        return 2
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
    (directory / "rabbitmq.conf").write_text(
        "loopback_users = none\nlog.file.level = warning\ndisk_free_limit.absolute = 50MB\n"
        + (TLS.format(port=port + 1, files=tls_files.resolve()) if tls_files else "")
        + (MANAGEMENT.format(port=management_port) if management_port else "")
    )
    with (directory / "output.log").open("ab") as output:
        process = subprocess.Popen(
            [SERVER],
            env=environment(directory, port),
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    (directory / "group").write_text(str(process.pid))
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            print(f"rabbitmq-server ended early: see {directory / 'output.log'}", file=sys.stderr)
            return 1
        if speaks_amqp(port):
            print(f"amqp://guest:guest@127.0.0.1:{port}/")
            # It outlives this function on purpose: no warning of a child that is left alone.
            process.returncode = 0
            return 0
        time.sleep(0.2)
    print(f"rabbitmq-server not ready in {START_LIMIT_S} s: see {directory}", file=sys.stderr)
    return 1


def control(directory: Path, port: int, words: Sequence[str]) -> int:
    """Say these words to the node's rabbitmqctl; its exit code."""
    command = [CONTROL, "--quiet", "-n", f"referee{port}@localhost", *words]
    done = subprocess.run(command, env=environment(directory, port), stdout=sys.stderr, check=False)
    return done.returncode


def load(directory: Path, port: int, definitions: Path) -> int:
    """Give the running node the users, virtual hosts and policies of a definitions file."""
    code = control(directory, port, ["import_definitions", str(definitions)])
    # The node goes on by itself after the command has ended, and does not say when it is through.
    time.sleep(LOAD_S)
    return code


def speaks_amqp(port: int) -> bool:
    """True when the port answers a protocol header with a method frame."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as peer:
            peer.sendall(b"AMQP\x00\x00\x09\x01")
            return peer.recv(1) == b"\x01"
    except OSError:
        return False


def stop(directory: Path) -> int:
    """End the node's whole process group."""
    group = directory / "group"
    if not group.exists():
        return 0
    leader = int(group.read_text())
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(leader, number)
        except ProcessLookupError:
            break
        for _ in range(50):
            time.sleep(0.1)
            with suppress(ChildProcessError):
                # A child of ours stays in its group until somebody has asked how it ended.
                os.waitpid(leader, os.WNOHANG)
            try:
                os.killpg(leader, 0)
            except ProcessLookupError:
                break
    group.unlink()
    return 0


def main() -> int:
    """Start, stop or control a RabbitMQ node; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="`control -- WORDS` says WORDS to the node's rabbitmqctl."
    )
    parser.add_argument("verb", choices=["start", "stop", "control"])
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--port", type=int, default=5673)
    parser.add_argument(
        "--enable",
        action="append",
        default=[],
        metavar="PLUGIN",
        help="a plugin of the package, e.g. rabbitmq_consistent_hash_exchange; may be repeated",
    )
    parser.add_argument(
        "--definitions",
        type=Path,
        metavar="FILE",
        help="users and policies to give the node, e.g. conformance/prepared/definitions.json",
    )
    parser.add_argument(
        "--tls",
        type=Path,
        metavar="FILES",
        help="speak TLS on the next port, with what certificates.py has made there",
    )
    parser.add_argument("--wipe", action="store_true", help="remove the directory afterwards")
    given, words = sys.argv[1:], []
    if "--" in given:
        at = given.index("--")
        given, words = given[:at], given[at + 1 :]
    options = parser.parse_args(given)
    if options.verb == "start":
        code = start(options.dir, options.port, options.enable, options.tls)
        if code == 0 and options.definitions:
            code = load(options.dir, options.port, options.definitions)
        return code
    if options.verb == "control":
        return control(options.dir, options.port, words)
    code = stop(options.dir)
    if options.wipe:
        shutil.rmtree(options.dir, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
