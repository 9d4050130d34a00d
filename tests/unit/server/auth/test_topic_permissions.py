"""Where topic permissions are asked, and where not: what docs/reference/configuration.md says."""

from __future__ import annotations

import pytest
from pamqp import base, commands

from tests import wire
from tests.unit.server.amqp_client import declare, got, reject
from tests.unit.server.in_memory import Client, World, closes_channel

TOPIC = "amq.topic"


@pytest.fixture
def client() -> Client:
    """One who may use keys that begin with `yes` at amq.topic; `all` gets what goes there."""
    world = World()
    client = world.connect()
    client.open()
    declare(client, "all")
    client.ask(1, commands.Queue.Bind(queue="all", exchange=TOPIC, routing_key="#"))
    world.auth.permit_topics("guest", "/", TOPIC, "^yes", "^yes")
    return client


def refused(permission: str) -> str:
    return (
        f"ACCESS_REFUSED - {permission} access to topic 'no' in exchange '{TOPIC}' in vhost '/' "
        "refused for user 'guest'"
    )


@pytest.mark.parametrize(
    ("method", "ids"),
    [
        (commands.Queue.Bind(queue="all", exchange=TOPIC, routing_key="no"), (50, 20)),
        (commands.Queue.Unbind(queue="all", exchange=TOPIC, routing_key="no"), (50, 50)),
        (commands.Exchange.Bind(0, "amq.fanout", TOPIC, "no"), (40, 30)),
        (commands.Exchange.Unbind(0, "amq.fanout", TOPIC, "no"), (40, 40)),
    ],
)
def test_bindings_from_the_exchange_are_asked_about(
    client: Client, method: base.Frame, ids: tuple[int, int]
) -> None:
    with closes_channel(client, 403, refused("read"), ids):
        client.method(1, method)


@pytest.mark.parametrize("headers", [{"CC": ["no"]}, {"BCC": ["no"]}])
def test_every_key_of_a_publish_is_asked_about(client: Client, headers: dict[str, object]) -> None:
    block = commands.Basic.Properties(headers=headers)  # type: ignore[arg-type]
    with closes_channel(client, 403, refused("write"), (60, 40)):
        client.send(wire.publish(1, "yes", b"x", block, exchange=TOPIC))


def test_a_binding_to_the_exchange_is_not(client: Client) -> None:
    _, said = client.ask(1, commands.Exchange.Bind(0, TOPIC, "amq.fanout", "no"))
    assert isinstance(said, commands.Exchange.BindOk)
    # Nor is a message that comes by it.
    client.send(wire.publish(1, "no", b"x", exchange="amq.fanout"))
    client.world.run_turns()
    message = got(client, "all")
    assert message is not None
    assert message.method.routing_key == "no"


def test_an_alternate_exchange_is_not_asked_about(client: Client) -> None:
    arguments = {"alternate-exchange": TOPIC}
    declared = commands.Exchange.Declare(exchange="x", arguments=arguments)  # type: ignore[arg-type]
    client.ask(1, declared)
    client.send(wire.publish(1, "no", b"x", exchange="x"))
    client.world.run_turns()
    assert got(client, "all") is not None


def test_a_dead_letter_is_not_asked_about(client: Client) -> None:
    declare(client, "work", dead_letter_exchange=TOPIC, dead_letter_routing_key="no")
    client.send(wire.publish(1, "work", b"x"))
    client.world.run_turns()
    reject(client, "work")
    message = got(client, "all")
    assert message is not None
    assert message.method.routing_key == "no"
