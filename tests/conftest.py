"""Fixtures every room may use: a broker to talk to, and names that are cleaned up.

By default `broker` is a VouchMQ process of its own for each test module. With `--referee URL`
(or VOUCHMQ_TEST_URL in the environment) the same client tests run against a broker that is
already there; tests that must restart or inspect the process are skipped then.
"""

from __future__ import annotations

import gc
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pika
import pika.exceptions
import pytest
from hypothesis import is_hypothesis_test, settings

from tests.integration.broker_process import Broker, BrokerProcess, RefereeBroker
from tools.certificates import make as make_certificates

# Shrinking an example may take 300 s; a test that is ended before has lost what it found. Many
# histories of the simulation in one test, or rounds of kills, take minutes on a busy machine too.
LONG_LIMIT_S = 400

# An example that takes long on a busy machine is no failure.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that point the client tests at another broker and run the long ones."""
    parser.addoption(
        "--referee",
        metavar="URL",
        default=os.environ.get("VOUCHMQ_TEST_URL"),
        help="run the client tests against the broker at this amqp:// URL",
    )
    parser.addoption("--campaign", action="store_true", help="run the tests marked campaign too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what starts processes by the folder it is in, so that -m can leave it out.

    Tests of properties, the simulation and what is slow have a limit of their own, beside which
    no shorter one counts. With pytest-xdist the tests of a group share a process: those of a file
    that shares a broker, and those that must not run at the same time.
    """
    if not config.getoption("--campaign"):
        too_long = [item for item in items if item.get_closest_marker("campaign")]
        items[:] = [item for item in items if item not in too_long]
        config.hook.pytest_deselected(items=too_long)
    for item in items:
        folder = item.path.parent.name
        is_slow = item.get_closest_marker("slow") is not None
        if folder in ("integration", "fault"):
            item.add_marker(folder)
        if folder in ("integration", "fault", "compatibility"):
            # Loop devices, mounts and campaigns of kills: one at a time.
            is_alone = folder == "fault" and is_slow
            item.add_marker(pytest.mark.xdist_group("disks" if is_alone else item.path.stem))
        if folder in ("engine", "failover"):
            item.add_marker(pytest.mark.xdist_group("engine"))
        is_long = folder in ("property", "simulation") or is_slow
        if is_long or is_hypothesis_test(getattr(item, "obj", None)):
            marked = item.get_closest_marker("timeout")
            if marked is None or marked.args[0] < LONG_LIMIT_S:
                item.add_marker(pytest.mark.timeout(LONG_LIMIT_S), append=False)


def pytest_collection_finish() -> None:
    """Let the garbage collector forget what is there now: modules and tests stay to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def referee_url(request: pytest.FixtureRequest) -> str | None:
    """The URL given on the command line, or None when VouchMQ is under test."""
    url: str | None = request.config.getoption("--referee")
    return url


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the certificates of tools/certificates.py."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl program is not installed")
    directory = tmp_path_factory.mktemp("certificates")
    make_certificates(directory)
    return directory


@pytest.fixture(scope="module")
def module_path(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A directory for what the tests of a module share; it goes with them if none has failed.

    A journal takes 64 MiB from the start: those of all tests together would fill a small disk.
    """
    failed = request.session.testsfailed
    directory = tmp_path_factory.mktemp(request.path.stem)
    yield directory
    if request.session.testsfailed == failed:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def broker(
    request: pytest.FixtureRequest, referee_url: str | None, module_path: Path
) -> Iterator[Broker]:
    """The broker under test, one per module; a VouchMQ must end cleanly and without a traceback.

    A module that needs settings other than the default ones says so with `BROKER_FLAGS`.
    """
    if referee_url is not None:
        yield RefereeBroker(referee_url)
        return
    flags = getattr(request.module, "BROKER_FLAGS", ())
    process = BrokerProcess(module_path, flags=flags)
    process.start()
    try:
        yield process
        assert process.is_running, f"the broker died:\n{process.output()}"
        assert process.stop() == 0, process.output()
        assert process.complaints() == []
    finally:
        process.kill9()


@pytest.fixture(scope="module")
def url(broker: Broker) -> str:
    """Where the broker under test listens, as an amqp:// URL with its virtual host spelt out."""
    return broker.url


@pytest.fixture
def own_broker(
    request: pytest.FixtureRequest, referee_url: str | None, tmp_path: Path
) -> Iterator[BrokerProcess]:
    """A VouchMQ process for this test alone, which may be killed; takes flags as parameter."""
    if referee_url is not None:
        pytest.skip("needs a broker that the test may kill")
    process = BrokerProcess(tmp_path, flags=getattr(request, "param", ()))
    process.start()
    try:
        yield process
        assert process.complaints() == []
    finally:
        process.kill9()


class Names:
    """Makes names that no other test uses and deletes what was declared under them."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._made: list[str] = []

    def __call__(self, kind: str = "q") -> str:
        """A fresh name, the same string for a queue or an exchange."""
        name = f"{self._prefix}.{kind}.{uuid.uuid4().hex[:8]}"
        self._made.append(name)
        return name

    def also(self, name: str) -> None:
        """A name that something else has made of one of these."""
        self._made.append(name)

    def delete_all(self, url: str) -> None:
        """Delete queues and exchanges of all names made; missing ones are no error."""
        if not self._made:
            return
        connection = pika.BlockingConnection(pika.URLParameters(url))
        for name in self._made:
            # An exclusive queue of a connection that is still open goes with that connection.
            with suppress(pika.exceptions.ChannelClosedByBroker):
                connection.channel().queue_delete(name)
            connection.channel().exchange_delete(name)
        connection.close()


@pytest.fixture
def names(request: pytest.FixtureRequest, url: str) -> Iterator[Names]:
    """A factory of names whose queues and exchanges are deleted after the test."""
    made = Names(request.node.name.split("[")[0][:60])
    yield made
    made.delete_all(url)
