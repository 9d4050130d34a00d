"""Other people's clients of RabbitMQ's HTTP API: AMQPStorm's, and Celery Flower's broker page.

Debian's rabbitmqadmin is in test_management_writes.py.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import amqpstorm
import pika
import pytest
from amqpstorm.management import ApiConnectionError, ApiError, ManagementApi
from flower.utils.broker import Broker as FlowerBroker

from tests.integration.broker_process import KeptPort
from tests.integration.frameworks import celery_apps
from tests.integration.frameworks.celery_client import Celery
from tests.integration.frameworks.worker_process import WorkerProcess
from tests.integration.management import ManagedBroker, managed_broker
from tests.waiting import LIMIT_S, wait_until


@pytest.fixture(scope="module")
def managed(module_path: Path) -> Iterator[ManagedBroker]:
    with managed_broker(module_path) as broker:
        yield broker


class TestAmqpStorm:
    """Every method of its ManagementApi."""

    @pytest.fixture
    def api(self, managed: ManagedBroker) -> Iterator[ManagementApi]:
        address = f"http://127.0.0.1:{managed.port}"
        with ManagementApi(address, "guest", "guest", timeout=LIMIT_S) as api:
            yield api

    def test_broker(self, api: ManagementApi) -> None:
        assert api.aliveness_test("/") == {"status": "ok"}
        who = api.whoami()
        assert (who["name"], who["tags"]) == ("guest", ["administrator"])
        overview = api.overview()
        [node] = api.nodes()
        assert node["name"] == overview["node"]
        assert api.node(node["name"])["running"] is True
        assert api.cluster_name()["name"] == node["name"]
        assert api.healthchecks.get() == {"status": "ok"}
        assert api.healthchecks.get(node["name"]) == {"status": "ok"}

    def test_top_is_of_a_plugin_that_is_not_there(self, api: ManagementApi) -> None:
        """Of Erlang's processes; RabbitMQ without `rabbitmq_top` answers the same."""
        with pytest.raises(ApiError) as refused:
            api.top()
        assert refused.value.error_code == 404

    def test_queues(self, api: ManagementApi) -> None:
        api.queue.declare("a b", durable=True, arguments={"x-max-length": 9})
        api.queue.declare("c", durable=True)
        # It asks passively by a GET.
        assert api.queue.declare("a b", passive=True)["arguments"] == {"x-max-length": 9}
        assert api.queue.get("a b")["durable"] is True
        assert {"a b", "c"} <= {each["name"] for each in api.queue.list()}
        assert [each["name"] for each in api.queue.list(show_all=True, name="a ")] == ["a b"]
        # A page at a time.
        paged = api.queue.list(name="^(a b|c)$", use_regex=True, page_size=1)
        assert [each["name"] for each in paged] == ["a b", "c"]
        with pytest.raises(ApiError) as missing:
            api.queue.get("nothing")
        assert missing.value.error_code == 404
        with pytest.raises(ApiError) as other:
            api.queue.declare("c", durable=True, arguments={"x-max-length": 1})
        assert other.value.error_code == 400
        for name in ("a b", "c"):
            api.queue.delete(name)
        assert not {"a b", "c"} & {each["name"] for each in api.queue.list()}

    def test_exchanges_and_bindings(self, api: ManagementApi) -> None:
        api.exchange.declare("x", "topic", durable=True)
        api.exchange.declare("y", "fanout", durable=True)
        assert api.exchange.declare("x", passive=True)["type"] == "topic"
        assert {"x", "y"} < {each["name"] for each in api.exchange.list()}
        assert [each["name"] for each in api.exchange.list(show_all=True, name="x")] == ["x"]
        api.queue.declare("q", durable=True)
        api.queue.bind("q", "x", "a.#", "/", arguments={"n": 1})
        [_, bound] = sorted(api.queue.bindings("q"), key=lambda each: str(each["source"]))
        assert (bound["source"], bound["routing_key"], bound["arguments"]) == ("x", "a.#", {"n": 1})
        api.exchange.bind("y", "x", "e", "/")
        assert {each["destination"] for each in api.exchange.bindings("x")} == {"q", "y"}
        api.queue.unbind("q", "x", "a.#", "/", bound["properties_key"])
        api.exchange.unbind("y", "x", "e", "/")
        assert api.exchange.bindings("x") == []
        api.exchange.delete("x")
        api.exchange.delete("y")
        api.queue.delete("q")

    def test_messages(self, api: ManagementApi) -> None:
        api.queue.declare("q", durable=True)
        properties = {"delivery_mode": 2, "headers": {"n": 1}, "content_type": "text/plain"}
        for number in range(4):
            sent = api.basic.publish(f"body {number}", "q", properties=properties)
            assert sent == {"routed": True}
        assert api.basic.publish("x", "nothing") == {"routed": False}
        [first, second] = api.basic.get("q", requeue=True, count=2)
        assert isinstance(first, amqpstorm.Message)
        assert isinstance(second, amqpstorm.Message)
        assert (first.body, second.body) == ("body 0", "body 1")
        assert first.properties["headers"] == {"n": 1}
        [again] = api.basic.get("q", to_dict=True, truncate=4, encoding="base64")
        assert isinstance(again, dict)
        assert (again["payload"], again["payload_bytes"]) == ("Ym9keQ==", 6)
        assert (again["redelivered"], again["message_count"]) == (True, 3)
        assert api.queue.get("q")["messages"] == 3
        api.queue.purge("q")
        assert api.queue.get("q")["messages"] == 0
        assert api.basic.get("q") == []
        api.queue.delete("q")

    def test_connections_and_channels(self, managed: ManagedBroker, api: ManagementApi) -> None:
        with amqpstorm.Connection("127.0.0.1", "guest", "guest", managed.process.port) as client:
            client.channel()
            [connection] = api.connection.list()
            [channel] = api.channel.list()
            assert api.connection.get(connection["name"])["user"] == "guest"
            assert api.channel.get(channel["name"])["number"] == 1
            assert api.channel.list(name="nothing", page_size=10) == []
            api.connection.close(connection["name"], reason="enough")
            wait_until(lambda: client.is_closed)
            with pytest.raises(amqpstorm.AMQPConnectionError, match="enough"):
                client.check_for_errors()
        assert api.connection.list() == []
        with pytest.raises(ApiError):
            api.connection.get(connection["name"])

    def test_users_virtual_hosts_and_permissions(
        self, managed: ManagedBroker, api: ManagementApi
    ) -> None:
        api.virtual_host.create("shop/1")
        assert api.virtual_host.get("shop/1")["name"] == "shop/1"
        assert {"/", "shop/1"} == {each["name"] for each in api.virtual_host.list()}
        api.user.create("eve", "secret", tags="monitoring")
        api.user.create("bob", "secret", tags=["management"])
        assert api.user.get("eve")["tags"] == ["monitoring"]
        assert {"eve", "bob"} < {each["name"] for each in api.user.list()}
        api.user.set_permission("eve", "shop/1", configure_regex="^$", write_regex="^e")
        found = {"configure": "^$", "write": "^e", "read": ".*"}
        expected = {"user": "eve", "vhost": "shop/1", **found}
        assert api.user.get_permission("eve", "shop/1") == expected
        assert api.user.get_permissions("eve") == [expected]
        assert expected in api.virtual_host.get_permissions("shop/1")
        address = f"http://127.0.0.1:{managed.port}"
        with ManagementApi(address, "eve", "secret") as eves:
            with pytest.raises(ApiError) as refused:
                eves.queue.declare("e", "shop/1", durable=True)
            assert refused.value.error_code == 401
        api.user.delete_permission("eve", "shop/1")
        assert api.user.get_permissions("eve") == []
        api.user.delete("eve")
        api.user.delete(["bob"])
        assert [each["name"] for each in api.user.list()] == ["guest"]
        api.virtual_host.delete("shop/1")
        with pytest.raises(ApiError):
            api.virtual_host.get("shop/1")

    def test_what_it_says_of_a_wrong_login_and_of_nobody(self, managed: ManagedBroker) -> None:
        with (
            ManagementApi(f"http://127.0.0.1:{managed.port}", "guest", "wrong") as api,
            pytest.raises(ApiError) as refused,
        ):
            api.whoami()
        assert refused.value.error_code == 401
        nobody = KeptPort()
        with (
            ManagementApi(f"http://127.0.0.1:{nobody.port}", "guest", "guest") as api,
            pytest.raises(ApiConnectionError),
        ):
            api.whoami()


class TestFlower:
    """Its broker page shows the queues of the workers, which it asks the HTTP API for."""

    @pytest.fixture
    def celery(self, managed: ManagedBroker, tmp_path: Path) -> Iterator[Celery]:
        made = Celery(managed.process.url, tmp_path)
        yield made
        made.close()

    def test_queues(self, managed: ManagedBroker) -> None:
        with pika.BlockingConnection(pika.URLParameters(managed.process.url)) as connection:
            channel = connection.channel()
            for name in ("flower 1", "flower 2", "other"):
                channel.queue_declare(name, durable=True)
            channel.confirm_delivery()
            for _ in range(3):
                channel.basic_publish("", "flower 1", b"x")
            channel.basic_get("flower 1")
            channel.basic_consume("flower 2", lambda *_: None)
            connection.process_data_events(0)
            found = asyncio.run(self.asked(managed, ["flower 1", "flower 2", "nothing"]))
        shown = {
            each["name"]: [each[name] for name in ("messages", "messages_ready", "consumers")]
            for each in found
        }
        # The columns of its table.
        assert shown == {"flower 1": [3, 2, 0], "flower 2": [0, 0, 1]}
        assert found[0]["messages_unacknowledged"] == 1

    async def asked(self, managed: ManagedBroker, names: list[str]) -> list[dict[str, Any]]:
        # It takes the URL that Celery prints.
        url = managed.process.url.replace("%2F", "/")
        http_api = f"http://guest:guest@127.0.0.1:{managed.port}/api/"
        found: list[dict[str, Any]] = await FlowerBroker(url, http_api=http_api).queues(names)
        return found

    def test_its_page_with_a_worker(
        self, managed: ManagedBroker, celery: Celery, tmp_path: Path
    ) -> None:
        kept = KeptPort()
        kept.give()
        flower = [sys.executable, "-m", "celery", "-A", f"{celery_apps.__name__}:quickstart"]
        with (
            celery.worker("quickstart"),
            WorkerProcess(
                [
                    *(*flower, "flower", "--address=127.0.0.1", f"--port={kept.port}"),
                    f"--broker-api=http://guest:guest@127.0.0.1:{managed.port}/api/",
                ],
                tmp_path / f"flower.{uuid.uuid4().hex[:8]}.log",
                environment=celery.environment,
                ready="Connected to amqp",
            ) as process,
        ):
            # Workers are known once they have answered.
            queue = f"{celery.prefix}.quickstart"
            wait_until(lambda: queue in self.page(kept.port, "broker"), process.text)
            assert "API call failed" not in process.text()

    def page(self, port: int, path: str) -> str:
        try:
            with urlopen(f"http://127.0.0.1:{port}/{path}", timeout=LIMIT_S) as got:
                return str(got.read().decode())
        except OSError:
            return ""
