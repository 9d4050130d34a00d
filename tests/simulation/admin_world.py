"""A broker that is administered while everything else befalls it, for `feature_world.py`.

    a change is asked for ─▶ what it does to the running broker is noted ─▶ perhaps it is answered
    a crash ─▶ of each thing: as the last answer says, or as something says that was asked later

What a crash may leave is judged by the snapshots of `feature_states.py` as well: all definitions
must be those of one block, which is none older than the last answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from tests.simulation.clients import Client
from tests.simulation.feature_world import FeatureWorld
from tests.simulation.ledger import Violation
from tests.simulation.operators import OperatedBooks, OperatorActor
from tests.simulation.sim_disk import SimDisk
from vouchmq.server.admin.accounts.administration import Administration
from vouchmq.server.admin.commands import ControlCommands
from vouchmq.server.admin.listing import RowSender
from vouchmq.server.auth.passwords import SHA256
from vouchmq.server.edge.control.commands import register_account_commands
from vouchmq.server.runtime.runtime import BrokerRuntime

Key = tuple[str, ...]
State = dict[Key, object]

USERS = ("u0", "u1", "u2")
VHOSTS = ("v0", "v1")
NAMES = ("a", "b")
PATTERNS = ("", ".*", "^a")
ADMIN_RATE = 0.2
OPERATE_RATE = 0.2
# What a command may be refused with here: nothing of that name, protected, no disk.
REFUSALS = frozenset({404, 412, 503, 541})


def state_of(runtime: BrokerRuntime) -> State:
    """Everything that an administrator has laid down."""
    accounts, state = runtime.broker.accounts, State()
    for user in accounts.users.values():
        limits = (user.max_connections, user.max_channels)
        state["user", user.user] = (user.password_hash, tuple(user.tags), *limits)
    for permissions in accounts.permissions.values():
        for each in permissions.values():
            state["permission", each.user, each.vhost] = (each.configure, each.write, each.read)
    for topics in accounts.topic_permissions.values():
        for topic in topics.values():
            state["topic", topic.user, topic.vhost, topic.exchange] = (topic.write, topic.read)
    for parameter in accounts.parameters.values():
        place = (parameter.vhost, parameter.component, parameter.name)
        state["parameter", *place] = str(parameter.value)
    for name, one in accounts.global_parameters.items():
        state["global", name] = str(one.value)
    for vhost in runtime.broker.vhosts.values():
        settings = vhost.settings()
        state["vhost", vhost.name] = str(settings)
        for policy in vhost.policy_engine.policies:
            state["policy", vhost.name, policy.name, str(policy.is_operator)] = str(policy)
        if vhost.name != "/":
            for queue in vhost.queues.values():
                state["queue", vhost.name, queue.spec.name] = queue.spec.queue_id
    return state


class AnswerBook:
    """What was asked for, in order, and what of it was answered, through all restarts."""

    def __init__(self) -> None:
        self._asked: list[State] = []  # by number, what each has changed; None: it is gone
        self._answered: dict[Key, int] = {}  # the last that was answered
        self.count = 0

    def asked(self, before: State, after: State) -> int:
        """Note what a change did; gives its number."""
        keys = before.keys() | after.keys()
        changed = {key: after.get(key) for key in keys if before.get(key) != after.get(key)}
        self._asked.append(changed)
        return len(self._asked) - 1

    def answered(self, number: int) -> None:
        """Whoever asked was told that it is so, for good."""
        self.count += 1
        for key in self._asked[number]:
            self._answered[key] = max(number, self._answered.get(key, 0))

    def judge(self, found: State) -> None:
        """Compare with what a restarted broker has.

        Raises:
            Violation: something that was answered is lost
        """
        for key, answered in self._answered.items():
            allowed = [self._asked[answered][key]]
            allowed += [each[key] for each in self._asked[answered + 1 :] if key in each]
            if found.get(key) not in allowed:
                raise Violation(f"answered, and lost: {key} is {found.get(key)}, not {allowed}")

    def restarted(self, found: State) -> None:
        """What was asked for, and is not there, will not come any more."""
        self._asked = [found]
        self._answered = dict.fromkeys(found, 0)


class Answer:
    """Where the answer to a change goes; a `Reply`."""

    is_open = True
    is_full = False

    def __init__(self, told: Callable[[Mapping[str, object]], None]) -> None:
        self._told = told

    def __call__(self, facts: Mapping[str, object], /) -> None:
        self._told(facts)

    def send(self, content: Mapping[str, object], /) -> None:
        raise AssertionError(content)

    def when_writable(self, job: Callable[[], None], /) -> None:
        raise AssertionError(job)

    def when_gone(self, job: Callable[[], None], /) -> None:
        raise AssertionError(job)


class Administrator:
    """Whoever asks one process for changes."""

    def __init__(self, world: AdminWorld) -> None:
        self._world = world
        self._runtime = world.runtime
        self._administration = Administration(world.runtime)
        self._commands = ControlCommands()
        sender = RowSender(world.loop.call_soon, lambda: world.loop.now)
        register_account_commands(self._commands, self._administration, sender)

    def act(self, draw: random.Random) -> None:
        """Ask for something."""
        if draw.random() < 0.15:
            self._ask("declare queue", {}, lambda reply: self._declare(draw, reply))
            return
        command, arguments = draw_change(draw)
        request = {"command": command, **arguments}
        self._ask(command, arguments, lambda reply: self._commands.run(request, reply))

    def _declare(self, draw: random.Random, reply: Answer) -> None:
        """A queue in a virtual host that may be deleted."""
        vhost = self._runtime.broker.vhosts.get(draw.choice(VHOSTS))
        if vhost is None:
            reply({"ok": False, "code": 404})
            return
        _, lsn = vhost.declare_queue(
            f"w{draw.randrange(3)}",
            durable=True,
            exclusive_owner=None,
            auto_delete=False,
            arguments={},
        )
        self._administration.answer(reply, lsn)

    def _ask(self, what: str, arguments: object, job: Callable[[Answer], None]) -> None:
        world = self._world
        book, states = world.book, world.states_of
        world.tell(f"the administrator asks: {what} {arguments}")
        record = states.pending
        before = state_of(self._runtime)
        early: list[Mapping[str, object]] = []
        number: int | None = None

        def told(facts: Mapping[str, object]) -> None:
            if number is None:
                early.append(facts)
                return
            world.tell(f"  answered: {what} {arguments} {facts}")
            if not facts["ok"]:
                if facts["code"] not in REFUSALS:
                    raise Violation(f"{what} {arguments}: {facts}")
                return
            if changed:
                states.promise(record, what)
            book.answered(number)

        job(Answer(told))
        after = state_of(self._runtime)
        changed = after != before
        number = book.asked(before, after)
        for facts in early:
            if changed and not facts["ok"]:
                raise Violation(f"{what} was refused, and has changed something: {facts}")
            told(facts)


def draw_change(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """A command and its arguments; what it is about may be there or not."""
    user, vhost, name = draw.choice(USERS), draw.choice(VHOSTS), draw.choice(NAMES)
    of_vhost = {"name": user, "vhost": draw.choice((vhost, "/"))}
    read = {"read": draw.choice(PATTERNS)}
    patterns = {"configure": "", "write": draw.choice(PATTERNS), **read}
    limit = {"limit": "max-connections", "value": draw.choice((-1, 0, 5))}
    password = {"password": draw.choice(NAMES), "hashing_algorithm": SHA256}
    policy = {"pattern": "^w", "definition": {"max-length": draw.choice((1, 2))}}
    parameter = {"vhost": vhost, "component": "c", "name": name}
    changes: list[tuple[str, dict[str, Any]]] = [
        ("put user", {"name": user, "tags": draw.choice(([], ["management"]))}),
        ("put user", {"name": user, **password}),
        ("delete user", {"name": user}),
        ("put user-limit", {"name": user, **limit}),
        ("put permissions", {**of_vhost, **patterns}),
        ("put permissions", {**of_vhost, **patterns}),
        ("delete permissions", of_vhost),
        ("put topic-permissions", {**of_vhost, "exchange": "amq.topic", "write": "", **read}),
        ("delete topic-permissions", of_vhost),
        ("put vhost", {"name": vhost, "tags": draw.choice(([], ["t"]))}),
        ("put vhost", {"name": vhost, "protected_from_deletion": draw.random() < 0.1}),
        ("delete vhost", {"name": vhost}),
        ("put vhost-limit", {"name": vhost, **limit}),
        ("put policy", {"vhost": vhost, "name": name, **policy}),
        ("delete policy", {"vhost": vhost, "name": name}),
        ("put operator-policy", {"vhost": vhost, "name": name, **policy}),
        ("delete operator-policy", {"vhost": vhost, "name": name}),
        ("put parameter", {**parameter, "value": draw.choice(NAMES)}),
        ("delete parameter", parameter),
        ("put global-parameter", {"name": name, "value": draw.choice(NAMES)}),
        ("delete global-parameter", {"name": name}),
    ]
    return draw.choice(changes)


class AdminWorld(FeatureWorld):
    """One history of a broker with every feature, and an administrator."""

    new_books = OperatedBooks
    books: OperatedBooks

    def __init__(self, seed: int, bugs: list[BaseException], *, crash_rate: float = 0.5) -> None:
        self.book = AnswerBook()
        self.administrator: Administrator
        self.operator: OperatorActor
        self.moved_count = 0
        super().__init__(seed, bugs, crash_rate=crash_rate)

    def start(self) -> None:
        """See `FeatureWorld`."""
        super().start()
        found = state_of(self.runtime)
        self.book.judge(found)
        self.book.restarted(found)
        self.administrator = Administrator(self)
        self.operator = OperatorActor(self, self.books)
        self._check_users()

    def assemble(self, disk: SimDisk, *what: Any) -> BrokerRuntime:
        """See `World`: what a crash would leave here has all that was answered, too."""
        runtime = super().assemble(disk, *what)
        if disk is not self.disk:
            self.book.judge(state_of(runtime))
        return runtime

    def act(self, client: Client) -> None:
        """See `World`."""
        if self.draw.random() < ADMIN_RATE and not self.model.has_failed:
            self.administrator.act(self.draw)
        elif self.draw.random() < OPERATE_RATE and not self.model.has_failed:
            self.operator.act(self.draw)
        else:
            super().act(client)

    def count(self) -> None:
        """See `World`."""
        super().count()
        self.moved_count += self.books.moved_count

    def drain(self) -> None:
        """See `FeatureWorld`: nobody gets what is in a paused queue."""
        self.operator.resume_all()
        super().drain()

    def _check_users(self) -> None:
        """Those who may enter are those who have permissions."""
        for name in USERS:
            user = self.runtime.authenticator.find(name)
            for vhost in (*VHOSTS, "/"):
                may_enter = ("permission", name, vhost) in state_of(self.runtime)
                if user is not None and user.may_enter(vhost) is not may_enter:
                    raise Violation(f"{name} may enter {vhost}: {not may_enter}")
