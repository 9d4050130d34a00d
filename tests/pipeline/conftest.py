"""What the tests of the pipeline share: one Spark session, a broker of ours, and the referee.

Sessions and brokers are started by the first test that asks for them, once for the whole run.
"""

from __future__ import annotations

import contextlib
import io
import os
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.integration.broker_process import Broker, BrokerProcess, RefereeBroker
from tests.pipeline import peer
from tests.waiting import wait_until
from tools import referee

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
TIMEOUT_S = 300

# Half of what a short-lived JVM does is compile itself. Programs that tests start inherit these.
LEAN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(name, LEAN)
# RabbitMQ's schedulers look for work a while before they sleep, on cores that others could use.
IDLE = "+sbwt none +sbwtdcpu none +sbwtdio none"
os.environ.setdefault("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", IDLE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A first query starts a JVM and its Python workers: it has more time than other tests.

    Who needs the referee is marked so, and who needs a JVM as slow. One JVM at a time is enough,
    and so is one RabbitMQ.
    """
    for item in items:
        if HERE not in item.path.parents:
            continue
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
        chosen = getattr(item, "callspec", None)
        brokers = {chosen.params.get(name) for name in ("either", "broker")} if chosen else set()
        fixtures = getattr(item, "fixturenames", ())
        group = item.path.stem
        if "rabbit" in brokers or "rabbit" in fixtures:
            item.add_marker("referee")
            group = "referee"
        if "spark" in fixtures:
            item.add_marker("slow")
        if item.get_closest_marker("slow") is not None:
            group = "jvm"
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of all tests in this process: two cores, 1 GiB of heap, nothing but loopback."""
    pytest.importorskip("pyspark")
    import vouchmq.spark
    from vouchmq.spark.session import session

    more = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    with warnings.catch_warnings():
        # Sockets to the JVM that py4j leaves to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        with session("tests", cores=2, memory="1g", more=more) as spark:
            vouchmq.spark.register(spark)
            yield spark


class Referee(RefereeBroker):
    """A RabbitMQ of ours, which can be told things by its operator's tool."""

    def __init__(self, directory: Path, port: int) -> None:
        super().__init__(f"amqp://guest:guest@127.0.0.1:{port}/%2F")
        self._directory = directory
        self._port = port

    def control(self, *words: str) -> None:
        """Say these words to its rabbitmqctl."""
        # The tool is given our standard error as its output, so that must be a file.
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
            assert referee.control(self._directory, self._port, words) == 0


@pytest.fixture(scope="session")
def vouch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A VouchMQ of all tests in this process; who kills one starts one of their own.

    Like the referee it has a user `limited`, who may log in and nothing else.
    """
    directory = tmp_path_factory.mktemp("vouch")
    definitions = directory / "definitions.json"
    definitions.write_text(peer.limited_user())
    process = BrokerProcess(directory, flags=["--load-definitions", str(definitions)])
    # Beside Spark a start may take its time.
    process.start(limit_s=60)
    try:
        yield process
        assert process.is_running, f"the broker died:\n{process.output()}"
        assert process.stop() == 0, process.output()
        assert process.complaints() == []
    finally:
        process.kill9()


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Referee]:
    """A RabbitMQ of all tests in this process; tests that ask for it are skipped without it."""
    if not Path(referee.SERVER).exists():
        pytest.skip("rabbitmq-server is not installed")
    directory = tmp_path_factory.mktemp("referee")
    port = _free_port()
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = referee.start(directory, port)
        if status:
            pytest.skip(f"rabbitmq-server does not start: {said.getvalue().strip()[-300:]}")
        definitions = directory / "definitions.json"
        definitions.write_text(peer.limited_user())
        made = Referee(directory, port)
        made.control("import_definitions", str(definitions))
        # The node goes on by itself after the command has ended.
        wait_until(lambda: peer.knows(made.url, "limited"))
        yield made
    finally:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            referee.stop(directory)


@pytest.fixture(params=["vouch", "rabbit"])
def either(request: pytest.FixtureRequest) -> BrokerProcess | Referee:
    """The test runs against our broker and against the referee."""
    broker: BrokerProcess | Referee = request.getfixturevalue(request.param)
    return broker


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """Makes names that no other test uses."""
    return lambda kind: f"{kind}.{uuid.uuid4().hex[:10]}"


def _free_port() -> int:
    """A port whose neighbours the referee's own uses can have: it adds 20000 for the nodes."""
    taken = {used.laddr.port for used in psutil.net_connections("inet") if used.laddr}
    # Each process of pytest-xdist looks from another one on, so that two never find the same.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 21673 + 350 * (worker % 20)
    return next(
        port for port in range(first, 29000, 7) if not taken & {port, port + 1, port + 20000}
    )


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Broker:
    """VouchMQ, unless the test says otherwise."""
    found: Broker = request.getfixturevalue(getattr(request, "param", "vouch"))
    return found


@pytest.fixture
def queue(broker: Broker, fresh: Callable[[str], str]) -> Iterator[str]:
    """A queue at the broker of the test."""
    from tests.pipeline import source_world

    name = fresh("source")
    source_world.declare(broker.url, name)
    yield name
    with source_world.channel_to(broker.url) as channel:
        channel.delete(name)
