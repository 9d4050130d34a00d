"""The image, built and run on a real container engine, as docs/operate/image.md describes it."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pika
import pytest

from tests.deploy.engine import Engine, find_engine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400), pytest.mark.xdist_group("image")]
DATA = "/var/lib/vouchmq"


@pytest.fixture(scope="module")
def built() -> Engine:
    """An engine with the image."""
    engine = find_engine()
    engine.build()
    return engine


@pytest.fixture
def engine(built: Engine) -> Iterator[Engine]:
    """The same; what a test makes is gone after it."""
    own = Engine(built.program)
    yield own
    own.remove_all()


def connected(port: int) -> pika.BlockingConnection:
    """A client from outside the container."""
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))


def published(port: int, *bodies: bytes) -> None:
    """Confirmed messages in the queue `q`."""
    with connected(port) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        for body in bodies:
            channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))


def fetched(port: int) -> list[bytes]:
    """What is in the queue `q`; it stays there."""
    with connected(port) as connection:
        channel = connection.channel()
        found = []
        while (got := channel.basic_get("q"))[0] is not None:
            assert got[2] is not None
            found.append(got[2])
    return found


def test_what_was_confirmed_survives_a_kill_and_a_new_container(engine: Engine) -> None:
    mount = ("-v", f"{engine.volume()}:{DATA}")
    first = engine.start(*mount)
    published(first.wait_ready(), b"one", b"two")
    first.kill()
    first.start_again()
    assert fetched(first.wait_ready(starts=2)) == [b"one", b"two"]
    assert first.stop() == 0
    assert [each["event"] for each in first.events()][-1] == "broker.stopped"
    second = engine.start(*mount)
    assert fetched(second.wait_ready()) == [b"one", b"two"]


def test_it_is_compiled_or_says_that_it_is_not(engine: Engine) -> None:
    """What `--version` says of the build is what the ready line says."""
    container = engine.start()
    container.wait_ready()
    [ready] = [each for each in container.events() if each["event"] == "broker.ready"]
    assert f"({ready['build']})" in container.run_inside("vouchmq", "--version")[1]


def test_http_api_and_metrics_are_there(engine: Engine) -> None:
    """From outside, with the user that was chosen, on a file system that cannot be written."""
    container = engine.start(
        *("--read-only", "-e", "VOUCHMQ_DEFAULT_USER=shop", "-e", "VOUCHMQ_DEFAULT_PASS=secret")
    )
    ready = container.wait_for("management.ready")
    with urlopen(f"http://127.0.0.1:{ready['prometheus_port']}/metrics") as answer:
        assert b"\nrabbitmq_queues 0" in answer.read()
    whoami = Request(f"http://127.0.0.1:{ready['management_port']}/api/whoami")
    whoami.add_header("Authorization", f"Basic {b64encode(b'shop:secret').decode()}")
    with urlopen(whoami) as answer:  # noqa: S310
        assert json.load(answer)["name"] == "shop"


def test_commands_work_inside(engine: Engine) -> None:
    """As the manual writes them: without a path, as the broker's user, beside the broker."""
    container = engine.start("-v", f"{engine.volume()}:{DATA}")
    published(container.wait_ready(), b"one")
    code, output = container.run_inside("vouchmq", "store", "check")
    assert code == 0, output
    assert "no damage" in output
    assert "q" in output
    assert container.run_inside("vouchmq", "store", "check", DATA)[0] == 0
    code, output = container.run_inside("vouchmq", "list", "queues")
    assert (code, "q" in output) == (0, True)
    assert container.run_inside("vouchmq", "ledger", "status")[0] == 0


def test_the_health_check_finds_the_broker_and_writes_no_line(engine: Engine) -> None:
    """On whatever port the broker listens, and with a flag that the check does not know of."""
    container = engine.start(command=("serve", "--port", "0", "--node", "elsewhere"))
    container.wait_for("management.ready")
    before = container.log()
    for _ in range(3):
        assert container.health_check()[0] == 0
    assert container.log() == before
    container.kill()
    assert not container.is_running()


def test_a_recovery_may_take_longer_than_the_check_waits(engine: Engine) -> None:
    """Failed checks do not count until the broker has answered once, half an hour long."""
    assert engine.health_check_facts()["StartPeriod"] == 1800 * 1_000_000_000


def test_each_line_of_the_log_is_json(engine: Engine) -> None:
    container = engine.start("-e", "RABBITMQ_NODENAME=rabbit@here")
    with connected(container.wait_ready()):
        pass
    assert container.stop() == 0
    events = [each["event"] for each in container.events()]
    assert {"image.variable_unused", "broker.ready", "broker.stopped"} <= set(events)


@pytest.mark.parametrize(
    "injected",
    [
        {
            "VOUCHMQ_PORT": "tcp://10.0.0.1:5672",
            "VOUCHMQ_SERVICE_HOST": "10.0.0.1",
            "VOUCHMQ_SERVICE_PORT": "5672",
            "VOUCHMQ_SERVICE_PORT_AMQP": "5672",
            "VOUCHMQ_PORT_5672_TCP": "tcp://10.0.0.1:5672",
            "VOUCHMQ_PORT_5672_TCP_PROTO": "tcp",
            "RABBITMQ_SERVICE_HOST": "10.0.0.2",
            "RABBITMQ_PORT": "tcp://10.0.0.2:5672",
        },
        {"VOUCHMQ_NAME": "/app/vouchmq", "VOUCHMQ_ENV_VOUCHMQ_DEFAULTS": "/etc/x"},
    ],
    ids=["kubernetes", "link"],
)
def test_what_the_platform_injects_is_ignored(engine: Engine, injected: dict[str, str]) -> None:
    container = engine.start(
        *(part for name, value in injected.items() for part in ("-e", f"{name}={value}")),
        command=("serve", "--port", "0"),
    )
    container.wait_ready()
    assert [each for each in container.events() if each["level"] == "warning"] == []


@pytest.mark.parametrize(
    "flags", [("--user", "1000"), ("--user", "1000:0"), ("--read-only",), ("--cap-drop", "ALL")]
)
def test_any_user_may_use_a_new_volume(engine: Engine, flags: tuple[str, ...]) -> None:
    container = engine.start(*flags, "-v", f"{engine.volume()}:{DATA}")
    published(container.wait_ready(), b"one")


def test_a_directory_of_the_host_names_the_user_that_it_needs(
    engine: Engine, tmp_path: Path
) -> None:
    """And with that user, or as the owner of the directory, it works."""
    tmp_path.chmod(0o755)
    mount = ("-v", f"{tmp_path}:{DATA}")
    code, output = engine.once(*mount)
    assert code == 2
    assert f"chown -R 5672:5672 {DATA}" in output
    code, output = engine.once("--user", "1234:1235", *mount)
    assert code == 2
    assert f"chown -R 1234:1235 {DATA}" in output
    owner = tmp_path.stat()
    container = engine.start("--user", f"{owner.st_uid}:{owner.st_gid}", *mount)
    published(container.wait_ready(), b"one")
    assert container.stop() == 0


def test_memory_as_data_directory(engine: Engine) -> None:
    container = engine.start("--user", "5672:0", "--tmpfs", f"{DATA}:mode=0770")
    published(container.wait_ready(), b"one")


def test_a_file_beats_the_defaults_of_the_image(engine: Engine, tmp_path: Path) -> None:
    """And the environment beats the file; clients of this machine come from loopback."""
    file = tmp_path / "vouchmq.toml"
    file.write_text('loopback_users = ["guest"]\nlog_format = "human"\nhost = ["127.0.0.1"]\n')
    container = engine.start(
        *("-v", f"{file}:/etc/vouchmq.toml:ro", "-e", "VOUCHMQ_CONFIG=/etc/vouchmq.toml"),
        *("-e", "VOUCHMQ_LOG_FORMAT=json"),
    )
    container.wait_ready()
    [ready] = [each for each in container.events() if each["event"] == "broker.ready"]
    assert ready["hosts"] == ["127.0.0.1"]


def test_variables_of_rabbitmqs_image(engine: Engine) -> None:
    """Those that carry over do; the others are named, or refused if they protect something."""
    known = {"USER": "shop", "PASS": "secret", "VHOST": "/shop"}
    container = engine.start(
        *(
            part
            for name, value in known.items()
            for part in ("-e", f"RABBITMQ_DEFAULT_{name}={value}")
        ),
        *("-e", "RABBITMQ_ERLANG_COOKIE=c", "-e", "RABBITMQ_VM_MEMORY_HIGH_WATERMARK=0.4"),
    )
    port = container.wait_ready()
    parameters = pika.URLParameters(f"amqp://shop:secret@127.0.0.1:{port}/%2Fshop")
    pika.BlockingConnection(parameters).close()
    told = [each for each in container.events() if each["event"] == "image.variable_unused"]
    assert [each["variable"] for each in told] == [
        "RABBITMQ_ERLANG_COOKIE",
        "RABBITMQ_VM_MEMORY_HIGH_WATERMARK",
    ]
    for refused in (
        "RABBITMQ_DEFAULT_PASS_FILE",
        "RABBITMQ_SSL_CACERTFILE",
        "RABBITMQ_CONFIG_FILE",
    ):
        code, output = engine.once("-e", f"{refused}=/run/secrets/value")
        assert code == 2
        assert f"vouchmq: {refused} is not supported" in output


def test_volumes_of_rabbitmqs_image_are_warned_of(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "rabbitmq.conf").write_text("default_user = shop\n")
    container = engine.start(
        *("-v", f"{engine.volume()}:/var/lib/rabbitmq"),
        *("-v", f"{tmp_path}/rabbitmq.conf:/etc/rabbitmq/rabbitmq.conf:ro"),
    )
    container.wait_ready()
    told = {each["event"]: each for each in container.events() if each["level"] == "warning"}
    assert told["image.volume_unused"]["path"] == "/var/lib/rabbitmq"
    assert "/var/lib/vouchmq" in told["image.volume_unused"]["meaning"]
    assert told["image.configuration_unused"]["path"] == "/etc/rabbitmq"


def test_checks_of_rabbitmqs_image(engine: Engine) -> None:
    """The health checks of compose files and probes that were written for it."""
    container = engine.start("-e", "VOUCHMQ_VM_MEMORY_HIGH_WATERMARK=2MB")
    container.wait_ready()
    for check in (["-q", "ping"], ["-t", "5", "check_running"], ["check_port_connectivity"]):
        assert container.run_inside("rabbitmq-diagnostics", *check)[0] == 0
    code, output = container.run_inside("rabbitmq-diagnostics", "-q", "check_local_alarms")
    assert (code, "memory" in output) == (69, True)
    code, output = container.run_inside("rabbitmq-diagnostics", "-q", "cluster_status")
    assert (code, "vouchmq ping" in output) == (64, True)


def test_rabbitmqctl_is_there(engine: Engine) -> None:
    container = engine.start()
    published(container.wait_ready(), b"one", b"two")
    code, output = container.run_inside("rabbitmqctl", "-q", "list_queues", "name", "messages")
    assert (code, output.split()[-2:]) == (0, ["q", "2"])
    for command in (
        ["add_user", "alice", "secret"],
        ["set_permissions", "alice", ".*", ".*", ".*"],
        ["set_user_tags", "alice", "monitoring"],
    ):
        code, output = container.run_inside("rabbitmqctl", *command)
        assert code == 0, output
    code, output = container.run_inside("rabbitmqctl", "-q", "list_users")
    assert (code, "alice" in output) == (0, True)


def test_a_shell_is_a_shell(engine: Engine) -> None:
    assert engine.once(command=("sh", "-c", "id -u"))[1].strip().splitlines()[-1] == "5672"
