"""Definitions applied to a broker: all of a file or nothing, and what is exported again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from tests import wire
from tests.unit.server.amqp_client import declare, publish
from tests.unit.server.auth.accounts import logged_in
from tests.unit.server.broker.policy.laid_down import lay_down
from tests.unit.server.definitions.entries import BINDING, POLICY, QUEUE
from tests.unit.server.in_memory import World, closes_channel
from vouchmq.protocol.errors import AccessRefused, NotAllowed
from vouchmq.protocol.fields import Field, longstr
from vouchmq.server.auth.authenticator import LoginError
from vouchmq.server.broker.broker import Broker
from vouchmq.server.broker.queues.spec import QueueLike
from vouchmq.server.definitions import document
from vouchmq.server.definitions.document import DefinitionsError
from vouchmq.server.definitions.export import exported
from vouchmq.server.definitions.file import Content, read_content, reading
from vouchmq.server.definitions.importer import (
    Importer,
    PartlyAppliedError,
    dry_run_of,
    empty_dry_run,
)

EXCHANGE = {"vhost": "/", "name": "x", "type": "topic", "durable": True, "arguments": {}}


@pytest.fixture
def world() -> World:
    """A broker."""
    return World()


def load(world: World, **document: Any) -> None:
    """Apply a file to it."""
    importer = Importer(world.broker, world.auth)
    importer.apply(read_content(json.dumps(document)))
    world.sync()


def test_everything_is_made(world: World) -> None:
    load(
        world,
        vhosts=[{"name": "v"}],
        policies=[POLICY],
        exchanges=[EXCHANGE, EXCHANGE | {"vhost": "v", "name": "y"}],
        queues=[QUEUE, QUEUE | {"vhost": "v", "arguments": {"x-max-priority": 3}}],
        bindings=[BINDING, BINDING | {"destination_type": "exchange", "destination": "amq.topic"}],
        parameters=[
            {
                "component": "vhost-limits",
                "vhost": "v",
                "value": {"max-queues": 1, "max-exchanges": 9},
            }
        ],
    )
    assert world.vhost.queues["q"].features.number("max-length") == 1
    other = world.broker.vhosts["v"]
    assert other.queues["q"].features.number("max-priority") == 3
    assert (other.queue_limit, other.exchange_limit) == (1, 9)
    assert "y" in other.exchanges
    assert [each.destination for each in world.vhost.bindings] == ["q", "amq.topic"]


def test_the_default_queue_type_is_set_and_stays(world: World) -> None:
    """VHOST-03."""
    load(world, vhosts=[{"name": "v", "default_queue_type": "stream"}, {"name": "w"}])
    types = {name: vhost.default_queue_type for name, vhost in world.broker.vhosts.items()}
    assert types == {"/": "", "v": "stream", "w": ""}
    load(world, vhosts=[{"name": "v"}, {"name": "w", "metadata": {"default_queue_type": "quorum"}}])
    types = {name: vhost.default_queue_type for name, vhost in world.broker.vhosts.items()}
    assert types == {"/": "", "v": "stream", "w": "quorum"}
    # It is that of queues in the file as well, unless they say what they are (QUORUM-07).
    load(
        world,
        queues=[
            QUEUE | {"vhost": "v"},
            QUEUE | {"vhost": "v", "name": "said", "type": "classic"},
            QUEUE | {"vhost": "v", "name": "short", "auto_delete": True},
        ],
    )
    queues = world.broker.vhosts["v"].queues
    types = {name: queue.features.type for name, queue in queues.items()}
    assert types == {"q": "stream", "said": "classic", "short": "classic"}


def test_twice_is_as_good_as_once(world: World) -> None:
    """HTTP-41: nothing is logged the second time."""
    document = {"exchanges": [EXCHANGE], "queues": [QUEUE], "bindings": [BINDING]}
    load(world, policies=[POLICY], **document)
    records = list(world.calls.records)
    load(world, policies=[POLICY], **document)
    assert world.calls.records == records


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (
            {"policies": [POLICY | {"definition": {"max-length": -1}}]},
            "policies[0]: -1 is not a valid maximum length",
        ),
        ({"policies": [POLICY | {"vhost": "w"}]}, "policies[0].vhost: no vhost 'w'"),
        ({"exchanges": [EXCHANGE | {"type": "y"}]}, "exchanges[0]: unknown exchange type 'y'"),
        (
            {"exchanges": [EXCHANGE | {"name": "amq.x"}]},
            "exchanges[0]: exchange name 'amq.x' contains reserved prefix 'amq.*'",
        ),
        (
            {"exchanges": [EXCHANGE | {"name": "amq.topic", "type": "fanout"}]},
            "exchanges[0]: inequivalent arg 'type' for exchange 'amq.topic' in vhost '/': "
            "received 'fanout' but current is 'topic'",
        ),
        (
            {"queues": [QUEUE | {"arguments": {"x-max-length": -1}}]},
            "queues[0]: invalid arg 'x-max-length' for queue 'q' in vhost '/': {value_negative,-1}",
        ),
        (
            {"queues": [QUEUE | {"name": "there"}]},
            "queues[0]: inequivalent arg 'durable' for queue 'there' in vhost '/': "
            "received 'true' but current is 'false'",
        ),
        (
            {"queues": [QUEUE | {"name": "amq.x"}]},
            "queues[0]: queue name 'amq.x' contains reserved prefix 'amq.*'",
        ),
        (
            {"bindings": [BINDING | {"source": "amq.topic", "destination": "nowhere"}]},
            "bindings[0]: no queue 'nowhere' in vhost '/'",
        ),
        (
            {
                "permissions": [
                    {"user": "nobody", "vhost": "/", "configure": "", "write": "", "read": ""}
                ]
            },
            "permissions[0].user: no user 'nobody'",
        ),
        (
            {
                "permissions": [
                    {"user": "guest", "vhost": "/", "configure": "(", "write": "", "read": ""}
                ]
            },
            "permissions[0]: '(' is not a regular expression: missing ) at position 1",
        ),
        (
            {"users": [{"name": "u", "password_hash": "x"}]},
            "users[0]: password_hash is not base64",
        ),
    ],
)
def test_a_fault_anywhere_changes_nothing(
    world: World, document: dict[str, Any], text: str
) -> None:
    """HTTP-42."""
    client = world.connect()
    client.open()
    declare(client, "there")
    before = (list(world.calls.records), set(world.broker.vhosts), set(world.vhost.queues))
    whole: dict[str, list[Any]] = {
        "users": [{"name": "new", "password": "new"}],
        "vhosts": [{"name": "v"}],
        "policies": [POLICY | {"name": "fine"}],
        "queues": [QUEUE | {"name": "fine"}],
    }
    for key, rows in document.items():
        whole[key] = [*rows, *whole.get(key, [])]
    with pytest.raises(DefinitionsError) as refused:
        load(world, **whole)
    assert str(refused.value) == text
    assert not list(world.vhost.policy_engine.policies)
    assert world.auth.find("new") is None
    assert (
        list(world.calls.records),
        set(world.broker.vhosts),
        set(world.vhost.queues),
    ) == before


def test_all_that_the_broker_refuses_is_told_at_once(world: World) -> None:
    before = list(world.calls.records)
    with pytest.raises(DefinitionsError) as refused:
        load(
            world,
            permissions=[{"user": "nx", "vhost": "w", "configure": "", "write": "", "read": ""}],
            policies=[POLICY | {"definition": {"max-length": -1}}],
            exchanges=[
                {"vhost": "w", "name": "x", "type": "topic"},
                {"vhost": "/", "name": "x", "type": "y"},
            ],
            queues=[QUEUE | {"vhost": "w"}, QUEUE | {"name": "amq.q"}],
            bindings=[BINDING | {"vhost": "w"}],
        )
    assert refused.value.args == (
        "permissions[0].user: no user 'nx'",
        "permissions[0].vhost: no vhost 'w'",
        "policies[0]: -1 is not a valid maximum length",
        "exchanges[0].vhost: no vhost 'w'",
        "exchanges[1]: unknown exchange type 'y'",
        "queues[0].vhost: no vhost 'w'",
        "queues[1]: queue name 'amq.q' contains reserved prefix 'amq.*'",
        "bindings[0].vhost: no vhost 'w'",
    )
    assert list(world.calls.records) == before


def test_what_rabbitmq_exports_and_passes_over_itself_is_skipped(world: World) -> None:
    """HTTP-41: queues of clients, and bindings of internal exchanges that it leaves out."""
    content = read_content(
        json.dumps(
            {
                "queues": [QUEUE, QUEUE | {"name": "amq.gen-x"}],
                "bindings": [
                    BINDING | {"source": "amq.topic", "destination": "amq.gen-x"},
                    BINDING | {"source": "internal"},
                    BINDING
                    | {"source": "amq.topic"}
                    | {"destination": "internal"}
                    | {"destination_type": "exchange"},
                    BINDING | {"source": "amq.topic"},
                ],
            }
        )
    )
    Importer(world.broker, world.auth).apply(content)
    assert list(world.vhost.queues) == ["q"]
    assert [each.source for each in world.vhost.bindings] == ["amq.topic"]
    assert content.skipped == [
        "bindings[0] 'amq.gen-x'",
        "queues[1] 'amq.gen-x'",
        "bindings[1] of exchange 'internal'",
        "bindings[2] of exchange 'internal'",
    ]


def test_what_an_export_of_rabbitmq_has_from_plugins_is_skipped(world: World) -> None:
    """HTTP-41: as RabbitMQ 4.3.6 writes it, with everything that hangs on it; nothing else goes."""
    log = "amq.rabbitmq.log"
    delayed = {"x-delayed-type": "x-random"}
    content = read_content(
        json.dumps(
            {
                "exchanges": [
                    EXCHANGE | {"name": log},
                    EXCHANGE | {"name": "near", "type": "x-local-random"},
                    EXCHANGE | {"name": "hash", "type": "x-modulus-hash"},
                    EXCHANGE | {"name": "late", "type": "x-delayed-message", "arguments": delayed},
                    EXCHANGE | {"name": "ring", "type": "x-consistent-hash"},
                    EXCHANGE | {"name": "amq.topic"},
                    EXCHANGE,
                ],
                "queues": [
                    QUEUE | {"type": "classic"},
                    QUEUE | {"name": "other", "type": "jms", "arguments": {"x-queue-type": "jms"}},
                    QUEUE | {"name": "amq.rabbitmq.trace", "type": "classic"},
                ],
                "bindings": [
                    BINDING,
                    BINDING | {"source": "near"},
                    BINDING | {"destination": "hash", "destination_type": "exchange"},
                    BINDING | {"source": log},
                    BINDING | {"destination": "other"},
                    BINDING | {"source": "ring", "routing_key": "2"},
                    BINDING | {"source": "late"},
                ],
                "policies": [
                    POLICY | {"name": "shards", "definition": {"shards-per-node": 2}},
                    POLICY | {"definition": {"routing-key": "1", "max-length": 7}},
                ],
                "parameters": [
                    {"vhost": "/", "component": "shovel", "name": "s", "value": {"dest-uri": "a"}},
                    {"vhost": "/", "component": "federation-upstream", "name": "u", "value": {}},
                ],
                "global_parameters": [{"name": "cluster_tags", "value": []}],
            }
        )
    )
    Importer(world.broker, world.auth).apply(content)
    assert {"x", "ring"} <= world.vhost.exchanges.keys()
    assert not {log, "near", "hash", "late"} & world.vhost.exchanges.keys()
    assert list(world.vhost.queues) == ["q"]
    assert [each.source for each in world.vhost.bindings.each()] == ["x", "ring"]
    [policy] = world.vhost.policy_engine.policies
    assert policy.definition == {"max-length": 7}
    assert content.skipped == [
        "exchanges[0] 'amq.rabbitmq.log'",
        "exchanges[1] 'near' of type 'x-local-random'",
        "exchanges[2] 'hash' of type 'x-modulus-hash'",
        "exchanges[3] 'late' of type 'x-random'",
        "parameters[0] of component 'shovel'",
        "parameters[1] of component 'federation-upstream'",
        "policies[0].definition.shards-per-node",
        "policies[1].definition.routing-key",
        "queues[1] 'other' of type 'jms'",
        "queues[2] 'amq.rabbitmq.trace'",
        "bindings[1] of exchange 'near'",
        "bindings[2] of exchange 'hash'",
        "bindings[3] of exchange 'amq.rabbitmq.log'",
        "bindings[4] of queue 'other'",
        "bindings[6] of exchange 'late'",
    ]


def test_what_lavinmq_calls_otherwise_or_makes_itself_is_known(world: World) -> None:
    """HTTP-41: as 2.9.1 exports it, the default exchange included."""
    content = read_content(
        json.dumps(
            {
                "exchanges": [
                    EXCHANGE | {"name": "", "type": "direct"},
                    EXCHANGE,
                    EXCHANGE
                    | {"name": "late", "type": "x-delayed-exchange"}
                    | {"arguments": {"x-delayed-type": "topic"}},
                ],
                "queues": [QUEUE, QUEUE | {"name": "amq.delayed-x"}],
                "bindings": [
                    BINDING | {"source": "", "routing_key": "q"},
                    BINDING | {"properties_key": "~"},
                ],
                "lavinmq_version": "2.9.1",
            }
        )
    )
    Importer(world.broker, world.auth).apply(content)
    assert content.skipped == ["queues[1] 'amq.delayed-x'"]
    assert world.vhost.exchanges["late"].type == "x-delayed-message"
    assert [each.source for each in world.vhost.bindings.each()] == ["x"]
    with pytest.raises(DefinitionsError, match=r"bindings\[0\]"):
        load(world, bindings=[BINDING | {"source": "", "routing_key": "other"}])


def test_a_mistake_is_not_taken_for_something_of_a_plugin(world: World) -> None:
    """HTTP-42: what nobody exports is refused, also a binding to a queue that is just missing."""
    document = {
        "exchanges": [EXCHANGE, EXCHANGE | {"name": "y", "type": "topick"}],
        "queues": [QUEUE | {"arguments": {"x-queue-type": "qurum"}}],
        "bindings": [BINDING | {"destination": "nx"}],
    }
    with pytest.raises(DefinitionsError) as refused:
        load(world, **document)
    assert [line.partition(":")[0] for line in refused.value.args] == [
        *("exchanges[1]", "queues[0]", "bindings[0]"),
    ]


def test_a_binding_to_a_skipped_queue_is_made_where_it_exists(world: World) -> None:
    """Somebody has made one in its place."""
    world.vhost.declare_queue(
        "other", durable=True, exclusive_owner=None, auto_delete=False, arguments={}
    )
    load(
        world,
        exchanges=[EXCHANGE],
        queues=[QUEUE | {"name": "other", "type": "jms"}],
        bindings=[BINDING | {"destination": "other"}],
    )
    assert [each.destination for each in world.vhost.bindings.each()] == ["other"]


def test_a_byte_order_mark_is_skipped(world: World) -> None:
    content = read_content("\ufeff" + json.dumps({"queues": [QUEUE]}))
    assert [queue.name for queue in content.queues] == ["q"]
    with pytest.raises(DefinitionsError, match="line 1 column 2 "):
        read_content("\ufeff{")


def test_numbers_that_json_has_not_are_left_out_of_an_export(world: World) -> None:
    load(world, queues=[QUEUE])
    for key, number in (("fine", 1.5), ("odd", float("inf"))):
        arguments = {"n": Field("d", number)}
        world.vhost.bind("amq.headers", "queue", "q", key, arguments, None)
    text, left_out = exported(world.broker)
    assert [each["routing_key"] for each in json.loads(text)["bindings"]] == ["fine"]
    assert len(left_out) == 1
    assert "'routing_key': 'odd'" in left_out[0]


def test_what_is_no_utf8_in_an_export_is_what_it_was(world: World) -> None:
    """FRAME-58: shown as text in the export, and told from another text by what is there."""
    odd = b"\xff".decode("utf-8", "surrogateescape")
    world.vhost.declare_exchange(
        "x",
        "direct",
        durable=True,
        auto_delete=False,
        internal=False,
        arguments={"alternate-exchange": longstr(odd)},
    )
    arguments = {"x-dead-letter-exchange": longstr(odd), "x-max-length": Field("l", 5)}
    world.vhost.declare_queue(
        "only", durable=True, exclusive_owner=None, auto_delete=False, arguments=arguments
    )
    text, left_out = exported(world.broker)
    assert left_out == []
    load(world, **json.loads(text))
    assert world.vhost.queues["only"].spec.arguments == arguments
    assert world.vhost.exchanges["x"].arguments == {"alternate-exchange": longstr(odd)}
    other = json.loads(text)
    other["queues"][0]["arguments"]["x-max-length"] = 6
    with pytest.raises(DefinitionsError, match="inequivalent arg"):
        load(world, **other)


class TestPoliciesOfTheFile:
    """POLICY-04: the file is the word of an operator, who may take it back."""

    def test_changed_and_taken_back(self, world: World) -> None:
        client = world.connect()
        client.open()
        declare(client, "q")
        publish(client, "q", b"a", b"b", b"c")
        load(world, policies=[POLICY | {"definition": {"max-length": 2}}])
        assert client.message_count("q") == 2
        load(world, policies=[POLICY])
        assert client.message_count("q") == 1
        load(world)
        assert not list(world.vhost.policy_engine.policies)
        publish(client, "q", b"d")
        assert client.message_count("q") == 2

    def test_others_stay(self, world: World) -> None:
        lay_down(world, "by hand", max_length=9)
        load(world, policies=[POLICY], operator_policies=[POLICY])
        load(world, operator_policies=[POLICY])
        found = {(each.name, each.is_operator) for each in world.vhost.policy_engine.policies}
        assert found == {("by hand", False), ("p", True)}

    def test_nothing_else_is_deleted(self, world: World) -> None:
        load(
            world, queues=[QUEUE], exchanges=[EXCHANGE], bindings=[BINDING], vhosts=[{"name": "v"}]
        )
        load(world)
        assert "q" in world.vhost.queues
        assert "x" in world.vhost.exchanges
        assert "v" in world.broker.vhosts
        assert len(world.vhost.bindings) == 1


class TestUsers:
    """AUTH-02, AUTH-06, AUTH-07."""

    def test_new_user(self, world: World) -> None:
        row = {"name": "u", "password": "secret", "tags": ["impersonator"]}
        permission = {"user": "u", "vhost": "/", "configure": "", "write": "^w", "read": ".*"}
        load(world, users=[row], permissions=[permission])
        user = logged_in(world.auth, "u", "secret")
        assert user.is_impersonator
        assert user.may("write", "well", "/")
        assert not user.may("write", "ill", "/")
        assert not user.may("configure", "well", "/")

    def test_changed_password(self, world: World) -> None:
        load(world, users=[{"name": "guest", "password": "other"}])
        with pytest.raises(LoginError):
            world.auth.log_in("guest", "guest", is_loopback=True)
        assert logged_in(world.auth, "guest", "other", is_loopback=True).may_enter("/")

    def test_permissions_change_for_those_who_are_logged_in(self, world: World) -> None:
        client = world.connect()
        client.open()
        declare(client, "q")
        publish(client, "q", b"a")
        permission = {"user": "guest", "vhost": "/", "configure": "", "write": "^w", "read": ".*"}
        load(world, permissions=[permission])
        text = (
            "ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' refused for "
            "user 'guest'"
        )
        with closes_channel(client, 403, text, (60, 40)):
            publish(client, "q", b"b")

    def test_topic_permissions_are_in_force_for_those_who_are_logged_in(self, world: World) -> None:
        """PERM-10: every key of a publish, and the keys of bindings."""
        client = world.connect()
        client.open()
        declare(client, "q")
        client.ask(1, commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="#"))
        client.send(wire.publish(1, "closed", b"a", exchange="amq.topic"))
        topics = {"user": "guest", "vhost": "/", "exchange": "amq.topic"}
        load(world, topic_permissions=[topics | {"write": "^open", "read": "^{username}$"}])
        text = (
            "ACCESS_REFUSED - {} access to topic '{}' in exchange 'amq.topic' in vhost '/' "
            "refused for user 'guest'"
        )
        client.send(wire.publish(1, "open", b"b", exchange="amq.topic"))
        client.ask(1, commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="guest"))
        with closes_channel(client, 403, text.format("write", "closed"), (60, 40)):
            client.send(wire.publish(1, "closed", b"c", exchange="amq.topic"))
        client.open(2)
        copied = commands.Basic.Properties(headers={"CC": ["closed.too"]})
        with closes_channel(client, 403, text.format("write", "closed.too"), (60, 40), 2):
            client.send(wire.publish(2, "open", b"d", copied, exchange="amq.topic"))
        client.open(3)
        for method, ids in ((commands.Queue.Bind, (50, 20)), (commands.Queue.Unbind, (50, 50))):
            with closes_channel(client, 403, text.format("read", "#"), ids, 3):
                client.method(3, method(queue="q", exchange="amq.topic", routing_key="#"))
            client.open(3)

    def test_topic_permissions_of_nobody_are_refused(self, world: World) -> None:
        topics = {"user": "nx", "vhost": "/", "exchange": "", "write": "", "read": ""}
        with pytest.raises(DefinitionsError, match=r"topic_permissions\[0\].user: no user 'nx'"):
            load(world, topic_permissions=[topics])
        bad = topics | {"user": "guest", "write": "("}
        with pytest.raises(DefinitionsError, match=r"topic_permissions\[0\]: .*not a regular"):
            load(world, topic_permissions=[bad])

    def test_without_a_password_nobody_gets_in(self, world: World) -> None:
        load(world, users=[{"name": "u"}])
        with pytest.raises(LoginError):
            world.auth.log_in("u", "", is_loopback=True)

    def test_limits_of_connections(self, world: World) -> None:
        limits = {"component": "vhost-limits", "vhost": "/", "value": {"max-connections": 0}}
        load(world, parameters=[limits])
        with pytest.raises(NotAllowed):
            world.connection_limits.check_vhost("/", "guest", world.vhost.connection_limit)

    def test_removed_default_user(self, world: World) -> None:
        world.auth.delete("guest")
        with pytest.raises(LoginError):
            world.auth.log_in("guest", "guest", is_loopback=True)


class TestExport:
    """HTTP-40."""

    def test_what_is_exported_makes_the_same_again(self, world: World) -> None:
        load(
            world,
            vhosts=[{"name": "v"}],
            policies=[POLICY],
            operator_policies=[POLICY | {"definition": {"expires": 9}, "priority": 3}],
            exchanges=[
                EXCHANGE | {"arguments": {"alternate-exchange": "y"}, "auto_delete": True},
                EXCHANGE | {"name": "later", "arguments": {"x-delayed-exchange": True}},
            ],
            queues=[QUEUE | {"arguments": {"x-queue-type": "quorum", "nested": {"a": [1, None]}}}],
            bindings=[BINDING | {"arguments": {"n": 1.5}}],
        )
        client = world.connect()
        client.open()
        declare(client, "transient")
        client.declare("mine", durable=True, exclusive=True)
        text = exported(world.broker)[0]
        assert "transient" not in text
        assert "mine" not in text
        assert "delayed" not in text.replace("x-delayed-exchange", "")
        copy = World()
        load(copy, **json.loads(text))
        assert exported(copy.broker)[0] == text

    def test_from_records(self, world: World) -> None:
        """A data directory without a broker."""
        load(world, queues=[QUEUE], policies=[POLICY])
        dry_run: Broker[QueueLike] = empty_dry_run()
        dry_run.restore(world.broker.definitions() + world.calls.records)
        assert exported(dry_run)[0] == exported(world.broker)[0]


def test_a_dry_run_refuses_nothing_that_a_queue_would_take() -> None:
    vhost, _ = empty_dry_run().create_vhost("/")
    queue, _ = vhost.declare_queue(
        "q", durable=True, exclusive_owner=None, auto_delete=False, arguments={}
    )
    queue.used()
    assert queue.purge() == 0
    with pytest.raises(AccessRefused):
        vhost.declare_exchange(
            "amq.x", "topic", durable=True, auto_delete=False, internal=False, arguments={}
        )
    vhost.delete_queue("q", None)
    assert not vhost.queues


class TestUnchanged:
    """A file that is read again: what is there already costs next to nothing (LIMIT-23)."""

    FILE: ClassVar[dict[str, Any]] = {
        "exchanges": [EXCHANGE],
        "queues": [QUEUE | {"name": f"q{number}"} for number in range(50)],
        "bindings": [
            {
                "vhost": "/",
                "source": "x",
                "destination": f"q{number}",
                "destination_type": "queue",
                "routing_key": f"k{number}",
                "arguments": {"a": number},
            }
            for number in range(50)
        ],
    }

    def left(self, world: World, **document: Any) -> Content:
        """What is left of a file to apply."""
        content = read_content(json.dumps(document))
        steps = list(Importer(world.broker, world.auth).leave_out(content))
        assert len(steps) == sum(map(len, document.values()))
        return content

    def test_what_is_there_is_left_out(self, world: World) -> None:
        load(world, **self.FILE)
        content = self.left(world, **self.FILE)
        assert (content.exchanges, content.queues, content.bindings) == ([], [], [])

    def test_what_has_changed_is_left(self, world: World) -> None:
        load(world, **self.FILE)
        changed = json.loads(json.dumps(self.FILE))
        changed["exchanges"][0]["internal"] = True
        changed["queues"][3]["arguments"] = {"x-max-length": 5}
        changed["queues"][4]["durable"] = False
        changed["queues"][5]["auto_delete"] = True
        changed["queues"][6]["vhost"] = "elsewhere"
        changed["bindings"][7]["arguments"] = {"a": "7"}
        changed["bindings"][8]["routing_key"] = "k7"
        content = self.left(world, **changed)
        assert [each.where for each in content.exchanges] == ["exchanges[0]"]
        assert [each.where for each in content.queues] == [f"queues[{n}]" for n in (3, 4, 5, 6)]
        assert [each.where for each in content.bindings] == ["bindings[7]", "bindings[8]"]

    def test_a_rest_is_applied_as_a_whole_file_is(self, world: World) -> None:
        load(world, **self.FILE)
        changed = json.loads(json.dumps(self.FILE))
        changed["queues"].append(QUEUE | {"name": "new"})
        changed["bindings"].append(changed["bindings"][0] | {"destination": "new"})
        content = self.left(world, **changed)
        importer = Importer(world.broker, world.auth)
        importer.apply(content)
        assert "new" in world.vhost.queues
        x = world.vhost.exchanges["x"]
        found = filter(None, x.router.match(["k0"], {}))
        names = [binding.destination for binding in found]
        assert names == ["q0", "new"]

    def test_a_fault_in_the_rest_changes_nothing(self, world: World) -> None:
        load(world, **self.FILE)
        changed = json.loads(json.dumps(self.FILE))
        changed["bindings"].append(changed["bindings"][0] | {"routing_key": "more"})
        changed["bindings"].append(changed["bindings"][0] | {"destination": "nowhere"})
        content = self.left(world, **changed)
        with pytest.raises(DefinitionsError, match=r"bindings\[51\]"):
            Importer(world.broker, world.auth).apply(content)
        assert not list(world.vhost.exchanges["x"].router.match(["more"], {}))

    def test_the_rehearsal_copies_no_queue(self, world: World) -> None:
        load(world, **self.FILE)
        dry_run = dry_run_of(world.broker, Content())
        assert dry_run.vhosts["/"].queues["q7"] is world.vhost.queues["q7"]

    def test_a_file_is_read_entry_by_entry(self) -> None:
        content = Content()
        steps = reading(json.dumps(self.FILE), content)
        while not content.exchanges:
            next(steps)
        assert len(content.exchanges) == 1
        assert content.queues == []
        assert len(list(steps)) == 100


class TestStepByStep:
    """Clients are served while a file is applied (LIMIT-23)."""

    COUNT: ClassVar[int] = 20
    FILE: ClassVar[dict[str, Any]] = {
        "exchanges": [EXCHANGE | {"name": f"x{n}"} for n in range(COUNT)],
        "queues": [QUEUE | {"name": f"q{n}"} for n in range(COUNT)],
        "bindings": [BINDING | {"source": f"x{n}", "destination": f"q{n}"} for n in range(COUNT)],
    }

    def test_the_text_is_parsed_step_by_step(self) -> None:
        content = Content()
        text = json.dumps({**self.FILE, "vhosts": [], "rabbit_version": "3.10"}, indent=1)
        steps = reading(text, content)
        parsed = 0
        while not content.exchanges:
            next(steps)
            parsed += 1
        assert parsed >= 3 * self.COUNT
        for _ in steps:
            pass
        assert [each.name for each in content.queues] == [f"q{n}" for n in range(self.COUNT)]

    def test_no_step_makes_more_than_one_thing(self, world: World) -> None:
        content = read_content(json.dumps(self.FILE))
        vhost = world.vhost
        before = len(vhost.exchanges) + len(vhost.queues) + len(vhost.bindings)
        steps = 0
        for _ in Importer(world.broker, world.auth).applying(content):
            steps += 1
            there = len(vhost.exchanges) + len(vhost.queues) + len(vhost.bindings)
            assert there - before <= 1
            before = there
        # Each is validated and made.
        assert steps >= 2 * 3 * self.COUNT

    def test_what_clients_change_meanwhile_is_told_and_the_rest_is_applied(
        self, world: World
    ) -> None:
        steps = Importer(world.broker, world.auth).applying(read_content(json.dumps(self.FILE)))
        while "x3" not in world.vhost.exchanges:
            next(steps)
        client = world.connect()
        client.open()
        declare(client, "q7", durable=False)
        world.vhost.delete_exchange("x3")
        with pytest.raises(PartlyAppliedError, match=r"queues\[7\].*durable"):
            for _ in steps:
                pass
        assert not world.vhost.queues["q7"].spec.durable
        assert "q19" in world.vhost.queues
        bound = {each.source for each in world.vhost.bindings}
        assert bound == {f"x{n}" for n in range(self.COUNT)} - {"x3"}

    def test_a_vhost_that_goes_meanwhile_is_told(self, world: World) -> None:
        document = {
            "vhosts": [{"name": "v"}],
            "users": [{"name": "u", "password": "secret", "tags": []}],
            "permissions": [{"vhost": "v", "user": "u", "configure": "", "write": "", "read": ""}],
            "queues": [QUEUE, QUEUE | {"vhost": "v"}],
            "parameters": [{"vhost": "v", "component": "c", "name": "n", "value": 1}],
        }
        steps = Importer(world.broker, world.auth).applying(read_content(json.dumps(document)))
        while "q" not in world.vhost.queues:
            next(steps)
        world.broker.delete_vhost("v")
        with pytest.raises(PartlyAppliedError) as told:
            for _ in steps:
                pass
        places = [line.split(":")[0] for line in told.value.args]
        assert places == ["queues[1].vhost", "permissions[0].vhost", "parameters[0].vhost"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=12,
    ),
    st.sampled_from([None, 2]),
    st.data(),
)
def test_parsing_step_by_step_is_parsing(value: object, indent: int | None, data: Any) -> None:
    """Whatever the text is, whole or cut somewhere: the same document, or the same fault."""
    text = json.dumps(value, indent=indent)
    text = text[: data.draw(st.integers(0, len(text)))] if data.draw(st.booleans()) else text

    def outcome(parse: Callable[[], object]) -> object:
        try:
            return parse()
        except DefinitionsError as error:
            return str(error)

    def step_by_step() -> object:
        steps = document.parsing(text, [])
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value

    assert outcome(step_by_step) == outcome(lambda: document._parsed(text, []))
