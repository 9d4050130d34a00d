"""A queue whose policies change under it, over power cuts: nothing is lost and nobody stumbles.

The policies here change how messages are kept — limits that are not reached, times that do not run
out, delayed retries, dead letters that are taken — so each message that was confirmed is settled,
in its queue or in the queue of dead letters in the end, and never in two places.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from server.broker.policies import Policy
from tests import wire
from tests.unit.server.in_memory import Client
from tests.unit.server.on_disk import DiskWorld

PERSISTENT = commands.Basic.Properties(delivery_mode=2)
RETRIES = {"delayed-retry-type": "all", "delayed-retry-min": 100}
LETTERS = {"dead-letter-exchange": "", "dead-letter-routing-key": "grave"}
definitions = st.sampled_from(
    [
        {"max-length": 1000},
        {"max-length-bytes": 100_000, "overflow": "reject-publish"},
        {"max-length": 1000, "max-length-bytes": 100_000, "overflow": "reject-publish-dlx"},
        {"message-ttl": 3_600_000, "expires": 7_200_000},
        RETRIES,
        RETRIES | {"delivery-limit": 50, "message-ttl": 3_600_000},
        LETTERS,
        LETTERS | {"dead-letter-strategy": "at-least-once", "max-length-bytes": 100_000},
        {"delivery-limit": 50},
        {"delivery-limit": -1, "consumer-timeout": 3_600_000},
    ]
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from(["p", "q"]), definitions, st.integers(0, 1)),
        st.tuples(st.just("clear"), st.sampled_from(["p", "q"])),
        st.tuples(st.just("publish"), st.integers(1, 4)),
        st.tuples(st.just("get"), st.sampled_from(["ack", "requeue", "reject", "hold"])),
        st.tuples(st.just("sleep"), st.sampled_from([0.05, 0.3, 5.0])),
        st.tuples(st.just("power cut")),
    ),
    max_size=30,
)


class Stage:
    """A broker, a client, and what became of each message."""

    def __init__(self) -> None:
        self.world = DiskWorld(rings=True)
        self.client = self.connect()
        for queue in ("work", "grave"):
            self.client.declare(queue, durable=True)
        self.count = 0
        self.acked: set[bytes] = set()

    def connect(self) -> Client:
        client = self.world.connect()
        client.open()
        return client

    def govern(self, name: str, definition: dict[str, object], priority: int) -> None:
        policy = Policy(name, "^work$", definition, priority=priority)
        self.world.vhost.government.set_policy(policy)
        self.world.sync()

    def clear(self, name: str) -> None:
        self.world.vhost.government.delete_policy(name)
        self.world.sync()

    def publish(self, messages: int) -> None:
        for _ in range(messages):
            self.count += 1
            self.client.send(wire.publish(1, "work", b"%d" % self.count, PERSISTENT))
        self.world.sync()

    def get(self, queue: str) -> tuple[int, bytes] | None:
        self.client.method(1, commands.Basic.Get(queue=queue))
        ((_, what),) = self.client.hear()
        if not isinstance(what, wire.Content):
            return None
        assert isinstance(what.method, commands.Basic.GetOk)
        return what.method.delivery_tag or 0, what.body

    def take(self, fate: str) -> None:
        got = self.get("work")
        if got is None or fate == "hold":
            return
        tag, body = got
        if fate == "ack":
            self.acked.add(body)
            self.client.method(1, commands.Basic.Ack(tag))
        else:
            if (
                fate == "reject"
                and not self.world.vhost.queues["work"].features.dead_letter_exchange
            ):
                self.acked.add(body)
            self.client.method(1, commands.Basic.Reject(tag, requeue=fate == "requeue"))
        self.world.sync()

    def power_cut(self) -> None:
        self.world = self.world.after_power_cut()
        self.client = self.connect()

    def judge(self) -> None:
        """Everything is somewhere, once."""
        self.power_cut()
        self.world.pass_time(60.0)
        left: Counter[bytes] = Counter()
        for queue in ("work", "grave"):
            while (got := self.get(queue)) is not None:
                left[got[1]] += 1
        assert max(left.values(), default=1) == 1
        wanted = {b"%d" % number for number in range(1, self.count + 1)}
        assert wanted - self.acked <= set(left), "a message is lost"


@settings(max_examples=60)
@given(steps)
def test_nothing_is_lost_while_policies_change(changes: list[tuple[object, ...]]) -> None:
    stage = Stage()
    for change in changes:
        match change:
            case ("set", str(name), dict(definition), int(priority)):
                stage.govern(name, definition, priority)
            case ("clear", str(name)):
                stage.clear(name)
            case ("publish", int(messages)):
                stage.publish(messages)
            case ("get", str(fate)):
                stage.take(fate)
            case ("sleep", float(seconds)):
                stage.world.pass_time(seconds)
            case ("power cut",):
                stage.power_cut()
    stage.judge()
