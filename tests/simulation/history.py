"""One history from one seed: random clients, a random network, a random disk, for so many steps."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import structlog

from tests.simulation.admin_world import AdminWorld
from tests.simulation.feature_queues import watched_queues
from tests.simulation.feature_world import FeatureWorld
from tests.simulation.ledger import Violation
from tests.simulation.ledger_world import LedgerWorld
from tests.simulation.operators import OperatedQueue
from tests.simulation.pair_plans import surroundings_of
from tests.simulation.pair_world import PairWorld, watched_timeouts
from tests.simulation.sim_disk import PowerCut
from tests.simulation.surrounded_world import SurroundedWorld
from tests.simulation.world import World
from vouchmq.server.broker.exchanges import routes
from vouchmq.server.broker.paging import pager
from vouchmq.server.broker.queues import ready_list
from vouchmq.server.channel import publish
from vouchmq.store.errors import StoreError
from vouchmq.store.journal.staging import StagedContent

STEPS = 400
# A ledger is read as a whole in the end.
LEDGER_STEPS = 250
STOCK_RATE = 0.03
# What a broken broker may come to grief on besides a verdict.
BROKEN = (AssertionError, StoreError, LookupError, ValueError, TypeError, OSError, struct.error)
BUGS = frozenset({"internal_error"})


@dataclass(slots=True)
class Outcome:
    """What a history came to."""

    seed: int
    steps: int
    states: int = 0
    crashes: int = 0
    deliveries: int = 0
    confirms: int = 0
    failure: BaseException | None = None
    answers: int = 0  # to changes that an administrator asked for
    moved: int = 0  # messages, by an operator
    ledger_kinds: set[str] = field(default_factory=set)  # of the lines in its ledger


@contextmanager
def quiet_logs(bugs: list[BaseException]) -> Iterator[None]:
    """No log lines, but every error that the broker itself calls a bug."""

    def catch(_logger: object, _method: str, event: structlog.typing.EventDict) -> str:
        if event.get("event") in BUGS:
            error = event.get("exc_info")
            error = error if isinstance(error, BaseException) else sys.exc_info()[1]
            bugs.append(error or Violation("a bug without an exception"))
        raise structlog.DropEvent

    was = structlog.get_config()
    structlog.configure(processors=[catch], wrapper_class=structlog.make_filtering_bound_logger(40))
    try:
        yield
    finally:
        structlog.configure(**was)


def one_piece(
    content: StagedContent,
    _is_over: object,
    go_on: Callable[[StagedContent, Callable[[], bool]], bool] = StagedContent.go_on,
) -> bool:
    """Write a piece, as if that had used up the time there was: others come before the next."""
    return go_on(content, lambda: True)


@contextmanager
def small_pages() -> Iterator[None]:
    """Queues of a few hundred octets are worth paging here, and contents worth staging."""
    with ExitStack() as patches:
        patches.enter_context(patch.object(routes, "NOW_BINDINGS", 0))
        patches.enter_context(patch.object(routes, "TURN_BINDINGS", 1))
        patches.enter_context(patch.object(publish, "LARGE_OCTETS", 300))
        patches.enter_context(patch.object(StagedContent, "go_on", one_piece))
        for room in (pager, ready_list):
            patches.enter_context(patch.object(room, "LEAST_OCTETS", 400))
            patches.enter_context(patch.object(room, "TAIL_OCTETS", 1200))
        yield


def run(
    seed: int,
    steps: int = STEPS,
    *,
    crash_rate: float = 0.5,
    is_rough: bool = False,
    trace: Callable[[str], None] | None = None,
) -> Outcome:
    """Live one history; a failure is in the outcome, with the step at which it came.

    The same seed lives the same history, and more steps only go on with it. A rough one has a
    disk that is full every few steps, and a power that goes as often.
    """
    bugs: list[BaseException] = []
    with quiet_logs(bugs), small_pages():
        world = World(seed, bugs, crash_rate=crash_rate)
        world.trace = trace
        return _lived(world, Outcome(seed, 0), steps, is_rough=is_rough)


def run_features(
    seed: int,
    steps: int = STEPS,
    *,
    crash_rate: float = 0.5,
    is_rough: bool = False,
    trace: Callable[[str], None] | None = None,
) -> Outcome:
    """The same for a broker with every feature in use."""
    bugs: list[BaseException] = []
    with quiet_logs(bugs), ExitStack() as around:
        around.enter_context(watched_queues())
        if seed % 2:
            around.enter_context(small_pages())
        world = FeatureWorld(seed, bugs, crash_rate=crash_rate)
        world.trace = trace
        return _lived(world, Outcome(seed, 0), steps, is_rough=is_rough)


def run_pairs(
    seed: int,
    steps: int = STEPS,
    *,
    crash_rate: float = 0.1,
    is_rough: bool = False,
    trace: Callable[[str], None] | None = None,
    worlds: list[PairWorld] | None = None,
) -> Outcome:
    """The same, where any two features and operations meet; `worlds` gets the world."""
    bugs: list[BaseException] = []
    lived: list[PairWorld] = [] if worlds is None else worlds
    with quiet_logs(bugs), ExitStack() as around:
        around.enter_context(watched_queues())
        around.enter_context(watched_timeouts(lambda: lived[-1]))
        if seed % 2:
            around.enter_context(small_pages())
        world = PairWorld(seed, bugs, crash_rate=crash_rate)
        lived.append(world)
        world.trace = trace
        return _lived(world, Outcome(seed, 0), steps, is_rough=is_rough)


def run_surrounded(
    seed: int,
    steps: int = STEPS,
    *,
    is_rough: bool = False,
    trace: Callable[[str], None] | None = None,
    worlds: list[PairWorld] | None = None,
) -> Outcome:
    """The same, where what is around the queues is drawn as well; a rough one is like any other."""
    del is_rough
    bugs: list[BaseException] = []
    lived: list[PairWorld] = [] if worlds is None else worlds
    with quiet_logs(bugs), ExitStack() as around:
        around.enter_context(watched_queues())
        around.enter_context(watched_timeouts(lambda: lived[-1]))
        if surroundings_of(seed)["pages"] == "small":
            around.enter_context(small_pages())
        world = SurroundedWorld(seed, bugs)
        lived.append(world)
        world.trace = trace
        return _lived(world, Outcome(seed, 0), steps, is_rough=True)


def run_admin(
    seed: int,
    steps: int = STEPS,
    *,
    crash_rate: float = 0.3,
    is_rough: bool = False,
    trace: Callable[[str], None] | None = None,
) -> Outcome:
    """The same, where users, virtual hosts, policies, queues and messages are administered."""
    bugs: list[BaseException] = []
    outcome = Outcome(seed, 0)
    with quiet_logs(bugs), ExitStack() as around:
        around.enter_context(watched_queues(OperatedQueue))
        if seed % 2:
            around.enter_context(small_pages())
        world = AdminWorld(seed, bugs, crash_rate=crash_rate)
        world.trace = trace
        _lived(world, outcome, steps, is_rough=is_rough)
    outcome.answers, outcome.moved = world.book.count, world.moved_count
    return outcome


def run_ledger(
    seed: int,
    steps: int = LEDGER_STEPS,
    *,
    is_rough: bool = False,
    trace: Callable[[str], None] | None = None,
) -> Outcome:
    """The same for one that keeps a ledger, which must tell of every copy what became of it."""
    bugs: list[BaseException] = []
    outcome = Outcome(seed, 0)
    draw = random.Random(seed)
    with quiet_logs(bugs), ExitStack() as around:
        around.enter_context(watched_queues())
        if seed % 2:
            around.enter_context(small_pages())
        world = LedgerWorld(seed, bugs)
        world.trace = trace
        try:
            for number in range(steps):
                outcome.steps = number + 1
                if is_rough:
                    world.strain()
                try:
                    step(world)
                    if draw.random() < STOCK_RATE:
                        world.take_stock()
                except PowerCut:
                    world.crash(is_cut=True)
            world.disk.crash_after = None
            world.settle_down()
            world.take_stock()
            outcome.ledger_kinds = set(world.judge().kinds)
        except BROKEN as error:
            outcome.failure = bugs[0] if bugs else error
    return _counted(world, outcome)


def _lived(world: World, outcome: Outcome, steps: int, *, is_rough: bool) -> Outcome:
    try:
        for number in range(steps):
            outcome.steps = number + 1
            if is_rough:
                world.strain()
            try:
                step(world)
            except PowerCut:
                world.crash(is_cut=True)
        if steps >= STEPS:
            world.end()
    except BROKEN as error:
        outcome.failure = world.bugs[0] if world.bugs else error
    return _counted(world, outcome)


def _counted(world: World, outcome: Outcome) -> Outcome:
    world.count()
    outcome.states, outcome.crashes = world.states, world.crashes
    outcome.deliveries, outcome.confirms = world.deliveries, world.confirms
    return outcome


def step(world: World) -> None:
    """A little of everything, in an order that nobody has chosen."""
    draw = world.draw
    chance = draw.random()
    if world.model.has_failed:
        # What the broker says on its way out must be true as well.
        for _ in range(draw.randrange(6)):
            world.turn()
        world.crash()
    elif chance < 0.008:
        world.crash()
    elif chance < 0.012:
        world.cut_soon()
    elif chance < 0.02:
        world.fault()
    elif chance < 0.03:
        world.settle_down()
    elif chance < 0.045 and world.clients:
        client = draw.choice(list(world.clients))
        if draw.random() < 0.6:
            world.lose(client)
        elif not client.is_leaving:
            client.leave()
    elif chance < 0.06 and world.clients:
        outbox = world.clients[draw.choice(list(world.clients))].connection.outbox
        outbox.hold() if draw.random() < 0.3 else outbox.release()
    elif len(world.clients) < 2 or (len(world.clients) < 5 and chance < 0.08):
        world.set_up(world.connect())
    else:
        move(world, draw)


def move(world: World, draw: random.Random) -> None:
    """Clients act, the network carries, the loop turns, the disk works, time passes."""
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        client = draw.choice(list(world.clients))
        if not client.is_leaving:
            world.act(client)
    for _ in range(draw.choice((0, 1, 2, 3))):
        world.carry()
    for _ in range(draw.choice((0, 1, 1, 2))):
        world.turn()
    for _ in range(draw.choice((0, 0, 1, 1, 2))):
        world.worker.work(draw)
    if draw.random() < 0.03:
        world.check()
    world.pass_time()
