"""The pytest plugin, in projects of its users: each test runs pytest on files that it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.integration.broker_process import PROJECT
from tests.integration.plugin_flags import plugin_flags

pytest_plugins = ["pytester"]

PUBLISH = """
import pika

def publish(vhost, body=b"order"):
    connection = pika.BlockingConnection(pika.URLParameters(vhost.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    channel.basic_publish("", "orders", body, pika.BasicProperties(delivery_mode=2))
    connection.close()
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with a module that publishes, and packages that are called like some of ours."""
    pytester.makepyfile(publishing=PUBLISH, server="", store="")
    path = os.pathsep.join((str(PROJECT), str(pytester.path)))
    pytester._monkeypatch.setenv("PYTHONPATH", path)
    for name in ("VOUCHMQ_TEST_URL", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        pytester._monkeypatch.delenv(name, raising=False)
    return pytester


def run(project: pytest.Pytester, *flags: str) -> pytest.RunResult:
    return project.runpytest_subprocess(*plugin_flags(), "-p", "no:cacheprovider", *flags)


def test_each_test_has_a_virtual_host_in_one_broker(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import server, store
        import pytest
        from publishing import publish

        seen = set()

        @pytest.mark.parametrize("name", ["plain", "odd / %"])
        def test_fresh(vouchmq_broker, vouchmq_vhost, name):
            assert vouchmq_vhost.listing("queues") == []
            assert vouchmq_vhost.name.startswith("test_fresh-")
            publish(vouchmq_vhost)
            vouchmq_vhost.queue("orders").wait(messages=1)
            seen.add((vouchmq_broker.pid, vouchmq_vhost.name))

        def test_one_broker(vouchmq_broker):
            assert len(seen) == 2
            assert {pid for pid, _ in seen} == {vouchmq_broker.pid}
            assert vouchmq_broker.listing("queues") == []

        async def _counts(vhost):
            return (await vhost.aio.queue("orders").wait(messages=1))["messages_ready"]

        def test_coroutines(vouchmq_vhost):
            import asyncio
            publish(vouchmq_vhost)
            assert asyncio.run(_counts(vouchmq_vhost)) == 1
        """
    )
    run(project).assert_outcomes(passed=4)


def test_the_next_test_finds_a_broker_that_runs_and_has_no_faults(
    project: pytest.Pytester,
) -> None:
    project.makepyfile(
        """
        from publishing import publish

        def test_killed(vouchmq_broker, vouchmq_vhost):
            publish(vouchmq_vhost)
            vouchmq_broker.kill()

        def test_runs(vouchmq_broker, vouchmq_vhost):
            publish(vouchmq_vhost)
            vouchmq_broker.disk_full().__enter__()

        def test_has_room(vouchmq_vhost):
            publish(vouchmq_vhost)
        """
    )
    run(project).assert_outcomes(passed=3)


def test_settings_come_from_the_configuration_file_or_a_fixture(project: pytest.Pytester) -> None:
    project.makeini(
        "[pytest]\nvouchmq_settings =\n    node = from-ini\n    default_user = tester\n"
    )
    project.makepyfile(
        test_ini="""
        def test_ini(vouchmq_broker):
            assert vouchmq_broker.listing("overview")[0]["node"] == "from-ini"
            assert vouchmq_broker.url.startswith("amqp://tester:guest@")
            assert "durability.fsync_off" in [each["event"] for each in vouchmq_broker.log()]
        """,
        test_fixture="""
        import pytest

        @pytest.fixture(scope="session")
        def vouchmq_settings(vouchmq_settings):
            return vouchmq_settings | {"node": "from-fixture"}

        def test_fixture(vouchmq_broker):
            assert vouchmq_broker.listing("overview")[0]["node"] == "from-fixture"
            assert "durability.fsync_off" not in [each["event"] for each in vouchmq_broker.log()]
        """,
    )
    run(project, "test_ini.py").assert_outcomes(passed=1)
    run(project, "test_fixture.py", "--vouchmq-fsync").assert_outcomes(passed=1)
    project.makeini("[pytest]\nvouchmq_settings =\n    node\n")
    result = run(project, "test_ini.py")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*vouchmq_settings: expected name = value, not 'node'*"])


def test_a_test_that_fails_shows_what_the_broker_has_logged(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pika, pytest

        def test_passes(vouchmq_vhost):
            pass

        def test_fails(vouchmq_vhost):
            wrong = vouchmq_vhost.url.replace("guest:guest", "guest:wrong")
            pika.BlockingConnection(pika.URLParameters(wrong))
        """
    )
    result = run(project)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*VouchMQ log*", '*"event": "login.*"*'])
    result.stdout.no_fnmatch_line('*"event": "journal.recovered"*')


XDIST = """
    import json, pathlib, pytest
    from publishing import publish
    from vouchmq.testing import BrokerError

    @pytest.mark.parametrize("number", range(4))
    def test_uses(vouchmq_broker, vouchmq_vhost, worker_id, number):
        publish(vouchmq_vhost)
        assert len(vouchmq_vhost.listing("queues")) == 1
        port = vouchmq_broker.port
        pathlib.Path(f"used-{worker_id}-{number}").write_text(json.dumps([worker_id, port]))
"""


def ports_by_worker(project: pytest.Pytester) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for path in project.path.glob("used-*"):
        worker, port = json.loads(path.read_text())
        found.setdefault(worker, set()).add(port)
    return found


def test_each_worker_of_xdist_has_a_broker(project: pytest.Pytester) -> None:
    project.makepyfile(XDIST)
    run(project, "-n", "2", "--dist", "each").assert_outcomes(passed=8)
    ports = ports_by_worker(project)
    assert len(ports) == 2
    assert all(len(each) == 1 for each in ports.values())
    assert len(set().union(*ports.values())) == len(ports)


def test_workers_may_share_a_broker(project: pytest.Pytester) -> None:
    project.makepyfile(
        XDIST
        + """
    def test_is_refused(vouchmq_broker, vouchmq_vhost):
        for refused in ("kill", "stop", "restart", "disk_full", "disk_alarm", "held_confirms",
                        "cut_connections", "frozen"):
            with pytest.raises(BrokerError, match=f"{refused}: the tests of other workers"):
                getattr(vouchmq_broker, refused)()
        publish(vouchmq_vhost)
        with vouchmq_vhost.queue("orders").refused_publishes():
            with pytest.raises(Exception):
                publish(vouchmq_vhost)
        assert vouchmq_broker.is_running
    """
    )
    run(project, "-n", "2", "--vouchmq-shared").assert_outcomes(passed=5)
    ports = ports_by_worker(project)
    assert len(set().union(*ports.values())) == 1


def test_who_does_not_use_it_pays_nothing(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import sys

        def test_something_else():
            assert "vouchmq.testing.plugin" in sys.modules
            ours = [name for name in sys.modules if name.startswith("vouchmq")]
            assert sorted(ours) == [
                "vouchmq", "vouchmq.testing", "vouchmq.testing.names", "vouchmq.testing.plugin"
            ]
        """
    )
    run(project).assert_outcomes(passed=1)
    program = (
        "import sys, pytest; before = set(sys.modules); import vouchmq.testing.plugin;"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    more = ["vouchmq", "vouchmq.testing", "vouchmq.testing.names", "vouchmq.testing.plugin"]
    assert done.stdout == f"{more}\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    import vouchmq.testing

    with pytest.raises(AttributeError, match=r"no attribute 'Brocker'"):
        vouchmq.testing.Brocker  # type: ignore[attr-defined]  # noqa: B018
