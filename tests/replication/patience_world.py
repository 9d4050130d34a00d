"""One schedule of patience: who waits for whom, with clocks, busy loops and lost signs.

The other model (`world.py`) lets nodes claim whenever it likes, as nothing of the argument for
safety depends on when. Here the roles decide, by their clocks and by what they hear, and what must
be true is about that:

- a leader that works is not replaced: whose loop is busy for less than `WORK_S`, or that recovers
  and has done something meanwhile, as long as its signs arrive;
- a leader that is gone, cut off, hangs, cannot sync, or runs in circles for good is replaced, in a
  bounded time, whatever signs arrive and are lost;
- whatever signs say, a record is appended by the node with the last claim only;
- no sign is given while the loop runs.

The log keeps E1 and E2 and answers at once, whom it can reach. Time goes in steps of half a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from vouchmq.server.edge.replicated.signs import OF_S, SignGiver, Vital
from vouchmq.server.replication.lived_clock import LivedClock
from vouchmq.server.replication.node import LATE_TICK_S
from vouchmq.server.replication.reports import parse_sign
from vouchmq.server.replication.roles import MOST_DOUBLINGS, WORK_S, Patience, Role, Roles

STEP_S: Final = 0.5
LOG_ID: Final = bytes(16)
# An old process has ended, and the new one follows the log.
BEGIN_S: Final = 1.0
# From the last that a leader does until it is claimed, beyond the patience of a node. The silence
# of a standby begins with the last record it reads, or with the last work of which a sign tells,
# whichever signs get lost: up to a second, for which a sign is on its way, and two steps (2.0). A
# standby that begins, or was busy, reads the end only then: BEGIN_S and a step (1.5) instead. Then
# ranks up to 2 (1.0), chance (0.5), and a step until it looks (0.5): 4.0, and the rest is room.
SLACK_S: Final = 6.0
LONGEST_RECOVERY_S: Final = 90.0
MOST_ACTIONS: Final = 5

WORK: Final = "work"
STEPS: Final = "steps"
HANG: Final = "hang"


class Entry(NamedTuple):
    """A record of the log."""

    epoch: int
    node: int
    is_claim: bool
    is_handover: bool


@dataclass
class Site:
    """One machine with a broker and the process beside it."""

    world: PatienceWorld
    place: int
    clock: LivedClock
    roles: Roles = field(init=False)
    giver: SignGiver = field(init=False)
    position: int = 0
    epoch: int = 0
    # What the process beside it finds; the epoch is 0 unless it leads.
    vital_epoch: int = 0
    lived_s: float = 0.0
    steps: int = 0
    work: int = 0
    # Until then its loop is busy, in this way.
    busy_until: float = 0.0
    how: str = ""
    is_recovering: bool = False
    is_dead: bool = False
    is_cut: bool = False
    # Since when it has been in no trouble that others may take for its end.
    well_since: float = 0.0
    begins_at: float = 0.0
    free_since: float = 0.0

    def begin(self) -> None:
        """Its process begins, as a standby."""
        world = self.world
        patience = Patience(world.takeover_s, self.place)
        self.roles = world.roles_class(patience, self, world.random.random)
        self.giver = SignGiver(
            f"n{self.place}", self._vital, lambda: self.work, lambda: (self._tell, lambda: None)
        )
        self.clock = LivedClock(lambda: world.now, LATE_TICK_S)
        self.position = self.epoch = self.vital_epoch = 0
        self.is_recovering = False
        self.busy_until = 0.0
        self.begins_at = self.free_since = world.now + BEGIN_S

    def _vital(self) -> Vital:
        return Vital(self.vital_epoch, int(self.lived_s * 1000), self.steps, LOG_ID)

    def _tell(self, payload: bytes) -> None:
        world = self.world
        assert world.now - self.free_since < OF_S + STEP_S or self.is_busy, "a sign of a free loop"
        if not self.is_cut:
            world.sign(self.place, payload)

    @property
    def is_busy(self) -> bool:
        return self.busy_until > self.world.now

    def be_busy(self, how: str, seconds: float) -> None:
        """Its loop does one thing from now on."""
        self.how, self.busy_until = how, self.world.now + seconds

    # A step of time

    def go_on(self) -> None:
        """Let half a second pass."""
        world = self.world
        if self.is_dead or world.now < self.begins_at:
            return
        if self.is_busy:
            # What works uses some of the processor, and has done a step now and then.
            self.work += 100 if self.how != HANG else 0
            self.steps += self.how == STEPS and not int(world.now / STEP_S) % 4
            self.free_since = world.now
        else:
            self._run()
        self.giver.look(world.now)

    def _run(self) -> None:
        """The loop's turn: its timers, then what it hears."""
        world = self.world
        now = self.clock.look()
        self.lived_s = now
        if self.clock.missed_s:
            self.roles.was_busy(now, self.clock.missed_s)
        if self.is_recovering and self.append():
            self.is_recovering = False
            self.roles.recovered()
        if self.roles.role is Role.LEADER and self.position < len(world.log) and not self.is_cut:
            # It finds the claim of another when it reads or appends.
            self.begin()
            return
        self.roles.tick(now)
        if self.roles.role is Role.STANDBY and not self.is_cut:
            self._read(now)

    def _read(self, now: float) -> None:
        log = self.world.log
        for entry in log[self.position :]:
            self.epoch = entry.epoch
            self.roles.record_read(is_handover=entry.is_handover, is_claim=entry.is_claim)
        self.position = len(log)
        self.roles.end_read(now, self.position, is_complete=True)

    def hear(self, payload: bytes) -> None:
        """A sign has arrived; while the loop is busy it waits."""
        sign = parse_sign(payload, LOG_ID.hex())
        if self.roles.role is Role.STANDBY and sign.epoch == self.epoch:
            self.roles.leader_works(self.clock.now(), sign.step_age_s, sign.work_age_s)

    # RoleActions

    def claim(self) -> None:
        world = self.world
        world.judge_claim(self)
        if not self.append(is_claim=True):
            self.roles.passed_over(self.clock.now())
            return
        self.roles.claimed(self.clock.now())

    def recover(self) -> None:
        world = self.world
        self.vital_epoch = self.epoch
        self.is_recovering = True
        self.well_since = world.now
        how, seconds = world.recovery()
        self.be_busy(how, seconds)

    def serve(self) -> None:
        pass

    def beat(self) -> None:
        self.append()

    def hand_over(self) -> None:
        if self.append(is_handover=True):
            self.roles.handed_over()

    def end(self, reason: str) -> None:
        del reason
        self.begin()

    def append(self, *, is_claim: bool = False, is_handover: bool = False) -> bool:
        """One record behind what this node has read (W1, T1); whether the log has it."""
        log = self.world.log
        now = self.clock.now()
        self.roles.appended(now)
        if self.is_cut or self.position != len(log):
            return False
        self.epoch += is_claim
        log.append(Entry(self.epoch, self.place, is_claim, is_handover))
        self.position = len(log)
        self.roles.committed(now, is_all=True)
        return True


class PatienceWorld:
    """Everything that one seed brings.

    Args:
        seed: of all chance
        roles_class: how nodes decide
    """

    def __init__(self, seed: int, roles_class: type[Roles] = Roles) -> None:
        self.random = random = Random(seed)
        self.roles_class = roles_class
        self.now = 0.0
        self.takeover_s = 3.0 + 3.0 * random.random()
        # In most schedules signs arrive.
        self.loss = 0.0 if random.random() < 0.7 else 0.6 * random.random()
        self.log: list[Entry] = []
        self.signs: list[tuple[float, int, int, bytes]] = []
        self.sign_count = 0
        # The end has come: whoever leads is lost for good.
        self.is_over = False
        # How the next recovery goes, if that is given.
        self.next_recovery: tuple[str, float] | None = None
        count = 2 + (random.random() < 0.7)
        self.sites = [
            Site(self, place, LivedClock(lambda: self.now, LATE_TICK_S)) for place in range(count)
        ]
        for each in self.sites:
            each.begin()

    # What sites ask for

    def recovery(self) -> tuple[str, float]:
        """How a recovery goes, and for how long."""
        given, self.next_recovery = self.next_recovery, None
        if given is not None:
            return given
        random = self.random
        if random.random() < 0.5:
            return WORK, 2.0 * random.random()
        return (
            (STEPS, LONGEST_RECOVERY_S * random.random()) if random.random() < 0.3 else (WORK, 20.0)
        )

    def sign(self, place: int, payload: bytes) -> None:
        """It goes to all others, and may be late or lost."""
        self.sign_count += 1
        for other in self.sites:
            if other.place != place and self.random.random() >= self.loss:
                late_s = self.random.random()
                self.signs.append((self.now + late_s, place, other.place, payload))

    @property
    def leader(self) -> Site | None:
        """Whose claim is the last one."""
        return self.sites[self.log[-1].node] if self.log else None

    # Time

    def pass_time(self) -> None:
        """Half a second."""
        self.now += STEP_S
        for each in self.sites:
            each.go_on()
        due = [each for each in self.signs if each[0] <= self.now]
        if due:
            kept = []
            for at, sender, receiver, payload in self.signs:
                site = self.sites[receiver]
                if at > self.now or (site.is_busy and not site.is_dead):
                    kept.append((at, sender, receiver, payload))
                elif not (site.is_dead or site.is_cut or self.now < site.begins_at):
                    site.hear(payload)
            self.signs = kept

    def run(self) -> None:
        """Things happen; in the end the leader is lost for good."""
        random = self.random
        for _ in range(int(random.random() * (MOST_ACTIONS + 1))):
            self._wait(1.0 + 12.0 * random.random())
            self._act()
        self._heal()
        self._wait(2 * (LONGEST_RECOVERY_S + WORK_S), until_serving=True)
        self._hang_for_good()
        self.judge()

    def _wait(self, seconds: float, *, until_serving: bool = False) -> None:
        ends_at = self.now + seconds
        while self.now < ends_at:
            self.pass_time()
            leader = self.leader
            if until_serving and leader is not None and leader.roles.is_serving:
                return
        assert not until_serving, "nobody leads, although all is well"

    def _act(self) -> None:
        random = self.random
        site = self.sites[int(random.random() * len(self.sites))]
        leader = self.leader
        if leader is not None and random.random() < 0.6:
            site = leader
        chance = random.random()
        if chance < 0.45:
            # Work of one client, again and again.
            if not site.is_busy:
                site.be_busy(WORK, 20.0 * random.random())
        elif chance < 0.55:
            if not site.is_busy:
                self._trouble(site)
                site.be_busy(HANG, 15.0 * random.random())
        elif chance < 0.7:
            self._trouble(site)
            site.is_dead = True
        elif chance < 0.8:
            self._trouble(site)
            site.is_cut = True
        elif chance < 0.9:
            if site.roles.role is Role.LEADER and not site.is_busy:
                site.roles.hand_over()
        else:
            self._heal()

    def _trouble(self, site: Site) -> None:
        """Others may replace it from now on; how long that is so, `_heal` says."""
        site.well_since = float("inf")

    def _heal(self) -> None:
        for each in self.sites:
            if each.is_dead:
                each.is_dead = False
                each.begin()
            each.is_cut = False
            if each.how == HANG:
                each.busy_until = 0.0
            if each.well_since == float("inf"):
                each.well_since = self.now

    def _hang_for_good(self) -> None:
        """The leader does nothing any more, or nothing of use, for good."""
        random = self.random
        lost = self.leader
        assert lost is not None
        self.is_over = True
        before = lost.epoch
        for each in self.sites:
            # Somebody has to be there who can replace it.
            each.busy_until = self.now
        self._trouble(lost)
        limit_s = self.takeover_s
        chance = random.random()
        if chance < 0.3:
            lost.be_busy(HANG, 1e9)
        elif chance < 0.6:
            lost.be_busy(WORK, 1e9)
            limit_s += WORK_S
        elif chance < 0.7:
            lost.is_dead = True
        elif chance < 0.8:
            lost.is_cut = True
        elif chance < 0.9:
            lost.roles.sync_began(lost.clock.now())
        else:
            limit_s += self._hang_in_recovery(lost)
            before = self.leader.epoch if self.leader is not None else before
        ends_at = self.now + limit_s + SLACK_S
        while self.now < ends_at:
            self.pass_time()
            if self.log[-1].epoch > before:
                return
        raise AssertionError("a leader that is lost is not replaced")

    def _hang_in_recovery(self, lost: Site) -> float:
        """It is gone, and who follows it is lost in the recovery; how long that may be so."""
        lost.is_dead = True
        how = HANG if self.random.random() < 0.5 else WORK
        self.next_recovery = how, 1e9
        before = self.log[-1].epoch
        for _ in range(int((self.takeover_s + SLACK_S) / STEP_S)):
            self.pass_time()
            if self.log[-1].epoch > before:
                break
        else:
            raise AssertionError("a leader that is gone is not replaced")
        if len(self.sites) == 2:
            lost.is_dead = False
            lost.begin()
        # It may be the second claim in a row with nothing behind it.
        doubled_s = self.takeover_s * ((1 << min(2, MOST_DOUBLINGS)) - 1)
        return doubled_s + (WORK_S if how == WORK else 0.0)

    # What must be true

    def judge_claim(self, site: Site) -> None:
        """A site is about to claim: was the leader well, and its signs on their way?"""
        leader = self.leader
        if leader is None or leader is site or self.loss or self.is_over:
            return
        if self.log[-1].is_handover:
            return
        was_long_well = self.now - leader.well_since > self.takeover_s + SLACK_S
        leads = leader.roles.role is Role.LEADER and leader.epoch == self.log[-1].epoch
        if site.position == len(self.log) and leads and not leader.is_dead and was_long_well:
            raise AssertionError(f"a leader that works ({leader.how}) is replaced")

    def judge(self) -> None:
        """Epochs follow each other, and each has one node."""
        epoch, node = 0, -1
        for entry in self.log:
            if entry.is_claim:
                assert entry.epoch == epoch + 1, "a claim of an old epoch"
                epoch, node = entry.epoch, entry.node
            assert (entry.epoch, entry.node) == (epoch, node), "a record of a node that led before"
