"""The pytest plugin: fixtures `vouchmq_broker` and `vouchmq_vhost`.

pytest loads it in each of its runs in which `vouchmq` is installed, so nothing is imported, and no
broker started, before a test asks for a fixture.

    without pytest-xdist          one broker for the session
    with it                       one for each worker
    with it, --vouchmq-shared     one for all workers, started by the controller
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from vouchmq.testing.broker import Broker
    from vouchmq.testing.vhost import VHost

WORKER_INPUT: Final = "vouchmq_broker"
NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]+")
NAME_CHARACTERS: Final = 60
LOG_LINES: Final = 50

# The broker that the controller of pytest-xdist has started for its workers.
_SHARED: Final[WeakKeyDictionary[pytest.Config, Broker]] = WeakKeyDictionary()
# The broker of a test, and how much it had logged before.
_LOGS: Final[WeakKeyDictionary[pytest.Item, tuple[Broker, int]]] = WeakKeyDictionary()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options and settings, all with our prefix."""
    group = parser.getgroup("vouchmq", "a VouchMQ broker for tests")
    group.addoption(
        "--vouchmq-fsync",
        action="store_true",
        help="the broker syncs before it confirms, as in production",
    )
    group.addoption(
        "--vouchmq-shared",
        action="store_true",
        help="with pytest-xdist: one broker for all workers, which no test may kill",
    )
    parser.addini(
        "vouchmq_settings",
        "settings of `vouchmq serve` for the broker of the tests, a line each: name = value",
        type="linelist",
        default=[],
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist is about to start a worker: tell it of the broker that all share."""
    config: pytest.Config = node.config
    if not config.getoption("--vouchmq-shared"):
        return
    broker = _SHARED.get(config)
    if broker is None:
        broker = _SHARED[config] = _new_broker(config, _settings_of(config), None)
        broker.start()
    node.workerinput[WORKER_INPUT] = {"data_dir": str(broker.data_dir), "port": broker.port}


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the broker that all workers shared."""
    broker = _SHARED.pop(config, None)
    if broker is not None:
        broker.close()


# Of the older kind: whoever has us installed may have an older pytest.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Show what the broker has logged during a test that fails."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    if report.failed and item in _LOGS:
        broker, offset = _LOGS[item]
        lines = [json.dumps(event) for event in broker.log(offset)]
        if lines:
            report.sections.append(("VouchMQ log", "\n".join(lines[-LOG_LINES:])))


def _settings_of(config: pytest.Config) -> dict[str, object]:
    """The settings of the configuration file."""
    settings: dict[str, object] = {}
    for line in config.getini("vouchmq_settings"):
        name, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"vouchmq_settings: expected name = value, not {line!r}")
        settings[name.strip()] = value.strip()
    return settings


def _new_broker(
    config: pytest.Config, settings: dict[str, object], directory: Any | None
) -> Broker:
    from vouchmq.testing.broker import Broker

    fsync = bool(config.getoption("--vouchmq-fsync"))
    return Broker(fsync=fsync, settings=settings, directory=directory)


@pytest.fixture(scope="session")
def vouchmq_settings(pytestconfig: pytest.Config) -> dict[str, object]:
    """Settings of `vouchmq serve` for `vouchmq_broker`; override this fixture to change them."""
    return _settings_of(pytestconfig)


@pytest.fixture(scope="session")
def vouchmq_broker(
    pytestconfig: pytest.Config,
    vouchmq_settings: dict[str, object],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Broker]:
    """A broker for the session, a `vouchmq.testing.Broker`.

    A test that kills it need not start it again, and faults are taken back, if it uses
    `vouchmq_vhost`.
    """
    worker_input = getattr(pytestconfig, "workerinput", {}).get(WORKER_INPUT)
    if worker_input is not None:
        if vouchmq_settings != _settings_of(pytestconfig):
            raise pytest.UsageError(
                "with --vouchmq-shared the broker is started before any fixture: give its settings "
                "as vouchmq_settings in the configuration file"
            )
        from vouchmq.testing.shared import SharedBroker

        yield SharedBroker(worker_input["data_dir"], worker_input["port"], vouchmq_settings)
        return
    with _new_broker(pytestconfig, vouchmq_settings, tmp_path_factory.mktemp("vouchmq")) as broker:
        yield broker


@pytest.fixture
def vouchmq_vhost(request: pytest.FixtureRequest, vouchmq_broker: Broker) -> Iterator[VHost]:
    """A virtual host for this test alone, a `vouchmq.testing.VHost`; `aio` has coroutines.

    It is made in a broker that runs and in which nothing fails, and is gone after the test.
    """
    from vouchmq.testing.vhost import new_name

    vouchmq_broker.start()
    _LOGS[request.node] = (vouchmq_broker, vouchmq_broker.log_size_bytes)
    wanted = NOT_IN_NAMES.sub("-", request.node.name)[:NAME_CHARACTERS].strip("-")
    with vouchmq_broker.new_vhost(new_name(wanted)) as vhost:
        yield vhost
        if vouchmq_broker.is_running:
            vouchmq_broker.heal()
