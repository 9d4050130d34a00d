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

from tests import wire
from tests.unit.server.in_memory import Client
from tests.unit.server.on_disk import DiskWorld
from vouchmq.server.broker.policy.policies import Policy

PERSISTENT = commands.Basic.Properties(delivery_mode=2)
RETRIES = {"delayed-retry-type": "all", "delayed-retry-min": 100}
DEAD_LETTERED = {"dead-letter-exchange": "", "dead-letter-routing-key": "grave"}
definitions = st.sampled_from(
    [
        {"max-length": 1000},
        {"max-length-bytes": 100_000, "overflow": "reject-publish"},
        {"max-length": 1000, "max-length-bytes": 100_000, "overflow": "reject-publish-dlx"},
        {"message-ttl": 3_600_000, "expires": 7_200_000},
        *(RETRIES, RETRIES, RETRIES),
        RETRIES | {"delivery-limit": 50, "message-ttl": 3_600_000},
        DEAD_LETTERED,
        DEAD_LETTERED | {"dead-letter-strategy": "at-least-once", "max-length-bytes": 100_000},
        {"delivery-limit": 50},
        {"delivery-limit": -1, "consumer-timeout": 3_600_000},
    ]
)
outcomes = st.sampled_from(["requeue", "requeue", "reject", "ack", "hold"])
# Each round: a policy or none, somebody works, and sometimes time passes or the power goes.
rounds = st.lists(
    st.tuples(
        st.one_of(st.none(), definitions),
        st.lists(outcomes, min_size=1, max_size=4),
        st.sampled_from([0.0, 0.0, 0.0, 0.05, 5.0]),
        st.sampled_from([False] * 6 + [True]),
    ),
    min_size=2,
    max_size=6,
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
        self.was_cut = False

    def connect(self) -> Client:
        client = self.world.connect()
        client.open()
        return client

    def set_policy(self, definition: dict[str, object] | None) -> None:
        policy_engine = self.world.vhost.policy_engine
        if definition is None:
            policy_engine.delete_policy("p")
        else:
            policy_engine.set_policy(Policy("p", "^work$", definition))
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

    def take(self, outcome: str) -> None:
        got = self.get("work")
        if got is None or outcome == "hold":
            return
        tag, body = got
        if outcome == "ack":
            self.acked.add(body)
            self.client.method(1, commands.Basic.Ack(tag))
        else:
            exchange = self.world.vhost.queues["work"].features.text("dead-letter-exchange")
            if outcome == "reject" and exchange is None:
                self.acked.add(body)
            self.client.method(1, commands.Basic.Reject(tag, requeue=outcome == "requeue"))
        self.world.sync()

    def power_cut(self) -> None:
        self.was_cut = True
        self.world = self.world.after_power_cut()
        self.client = self.connect()

    def judge(self) -> None:
        """Everything is somewhere, once: in this life of the broker, and in the next one."""
        self.client.method(1, commands.Channel.Close(200, "", 0, 0))
        assert self.client.names()[-1] == "Channel.CloseOk"
        self.client.open()
        left = self.take_all()
        # Acks ask for no sync: a cut may bring back what was acked.
        assert self.was_cut or not self.acked & left, "a message came back from the dead"
        self.power_cut()
        assert self.take_all() >= left

    def take_all(self) -> set[bytes]:
        """What can be had, when all that is delayed is due."""
        self.world.pass_time(60.0)
        left: Counter[bytes] = Counter()
        for queue in ("work", "grave"):
            while (got := self.get(queue)) is not None:
                left[got[1]] += 1
        assert max(left.values(), default=1) == 1
        wanted = {b"%d" % number for number in range(1, self.count + 1)}
        assert wanted - self.acked <= set(left), "a message is lost"
        return set(left)


@settings(max_examples=100)
@given(rounds)
def test_nothing_is_lost_while_policies_change(
    changes: list[tuple[dict[str, object] | None, list[str], float, bool]],
) -> None:
    stage = Stage()
    for definition, work, seconds, is_cut in changes:
        stage.set_policy(definition)
        stage.publish(2)
        for outcome in work:
            stage.take(outcome)
        if seconds:
            stage.world.pass_time(seconds)
        if is_cut:
            stage.power_cut()
    stage.judge()
