"""Which part a node takes: it follows the log, tries to lead, leads, or has led. No clock inside.

    STANDBY ── silence, or a handover ─▶ CANDIDATE ── claimed ─▶ LEADER ── deposed, stepped down ─▶
       ▲                                    │                               handed over, failed
       └────────── somebody else ───────────┘                                              ENDED

What holds: **nothing here is part of the argument for safety.** Who leads is a property of the log,
and a claim that should not have been made is refused, or deposes a leader whose clients then come
here. What is decided here is when to try, and that costs or saves time.

- **Silence counts only while the log answers.** An election of the engine takes up to nine seconds,
  in which the leader can append nothing. So answers have to follow each other closely, all with the
  same end; after a longer gap the silence begins again, as the leader has to get its chance first.
- **Ranks** come one after the other, and chance keeps equal ones apart. If two try all the same,
  one wins, and the other reads on.
- **A leader's beat** says that its disk works, too: none is sent while a sync hangs. Somebody else
  takes over then, instead of a log with a leader that cannot confirm anything.
- **A leader that works is alive.** One that recovers, or whose loop is busy for one client, appends
  no beat. A process beside it gives signs then, which are no records: they put an attempt off, and
  do nothing else. The silence begins with what a sign tells of: the last step of the leader's
  recovery, or the last time it has used the processor; by that alone for `WORK_S` since the last
  record or step. Signs get lost, so the first one of a hang may come when the silence is nearly
  over. It does not begin it again, as what it tells of is as old by then. So a leader that hangs is
  replaced after the silence as before, and one that runs in circles somewhat later.
- **A leader steps down** when nothing has been committed for long although another node could: a
  standby that has been heard before is not heard for as long, or goes on saying that the log
  answers it. A log that is back answers one node before the other, so the first word of it is no
  evidence against the leader. Where the log answers nobody, all standbys say so, and the leader and
  its clients wait for it.
  They are not heard all the time then: every node goes from server to server to find one with a
  quorum, and hears only those that are at the same one.

Times are seconds of any clock that only goes forward. Must not know how records look.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

# A leader without anything else to say appends a beat so often.
BEAT_S: Final = 1.0
# Answers of the log that are further apart say nothing about the time between them.
ANSWER_GAP_S: Final = 1.5
# So do reports of a standby, which come each second where both are at the same server. A leader
# that is cut off goes from server to server, and is back at the standby's within ten seconds.
REPORT_GAP_S: Final = 20.0
# Between the attempts of two ranks, and the most that chance adds.
RANK_STEP_S: Final = 0.5
# A claim with nothing behind it: its leader recovers, which may take longer than the patience of
# others. For each further one in a row they wait twice as long.
MOST_DOUBLINGS: Final = 6
# So long a leader may work, as it seems, without a record in the log or a step of its recovery.
WORK_S: Final = 60.0
# A standby that was heard so long ago still counts as one.
STANDBY_S: Final = 60.0
# What a standby says of the log may be so old, and a leader needs as long to find a server that
# answers. So only reports over so much of an outage show that others can use the log.
ANSWERED_S: Final = 10.0


class Role(Enum):
    """See above."""

    STANDBY = "standby"
    CANDIDATE = "candidate"
    LEADER = "leader"
    ENDED = "ended"


@dataclass(frozen=True)
class Patience:
    """How long a node waits.

    Args:
        takeover_after_s: silence of the leader, until a standby tries
        rank: 0 tries first
        stepdown_after_s: without a commit, until a leader gives up
    """

    takeover_after_s: float = 5.0
    rank: int = 0
    stepdown_after_s: float = 60.0


@dataclass(frozen=True, slots=True)
class _Heard:
    """What a standby has told last: when, and since when it says that the log answers it."""

    at: float
    answered_since: float | None


class RoleActions(Protocol):
    """What the node does, and tells in later calls; nothing of it calls back at once."""

    def claim(self) -> None:
        """Sync what was applied, then append a claim: `claimed` or `passed_over` follows."""

    def recover(self) -> None:
        """Recover what is here as after a crash: `recovered` follows, or the process ends."""

    def serve(self) -> None:
        """Let clients in."""

    def beat(self) -> None:
        """Append a record that says nothing else."""

    def hand_over(self) -> None:
        """Stop reading publishers, commit all there is, append the handover: `handed_over`."""

    def end(self, reason: str) -> None:
        """Close all clients, and end the process so that it is started again."""


class Roles:
    """The role of one node, from its start as a standby to the end of its lead.

    Args:
        patience: see there
        actions: what it has done
        chance: a number from 0 up to 1
    """

    def __init__(
        self, patience: Patience, actions: RoleActions, chance: Callable[[], float]
    ) -> None:
        self.role = Role.STANDBY
        self.is_serving = False
        # Why this node never leads; "" while it may.
        self.trouble = ""
        self._patience = patience
        self._actions = actions
        self._chance = chance
        # The end that the log has told last, when, and since when it has told no other.
        self._end = -1
        self._answered_at = 0.0
        self._silent_since = 0.0
        self._extra_s = 0.0
        self._is_handed_over = False
        self._claims_in_a_row = 0
        # Since when there was neither a record nor a step.
        self._working_since = 0.0
        # Of a leader.
        self._appended_at = 0.0
        self._uncommitted_since: float | None = None
        self._syncing_since: float | None = None
        self._standbys: dict[str, _Heard] = {}
        self._is_handing_over = False

    # A standby

    def record_read(self, *, is_handover: bool, is_claim: bool = False) -> None:
        """A record that counts was read, and is applied: the last one decides."""
        self._is_handed_over = is_handover
        self._claims_in_a_row = self._claims_in_a_row + 1 if is_claim else 0

    def end_read(self, now: float, last: int, *, is_complete: bool) -> None:
        """The stream's leader has told the log's end, and everything up to it is applied.

        Args:
            now: when it was told
            last: the end
            is_complete: everything that this node has passed over is known to be gone
        """
        if self.role is not Role.STANDBY:
            return
        if last != self._end or now - self._answered_at > ANSWER_GAP_S:
            self._end = last
            self._silent_since = self._working_since = now
            self._extra_s = RANK_STEP_S * self._chance()
        self._answered_at = now
        if not self.trouble and is_complete and now - self._silent_since >= self._wait_s():
            self.role = Role.CANDIDATE
            self._actions.claim()

    def leader_works(self, now: float, step_age_s: float, work_age_s: float) -> None:
        """A sign has come from beside the leader of the present epoch.

        Args:
            now: when it came
            step_age_s: since a step of its recovery was done
            work_age_s: since its loop has worked
        """
        if self.role is not Role.STANDBY or self._is_handed_over:
            return
        stepped_at = now - step_age_s
        self._working_since = max(self._working_since, stepped_at)
        worked_at = min(now - work_age_s, self._working_since + WORK_S)
        self._silent_since = max(self._silent_since, stepped_at, worked_at)

    def _wait_s(self) -> float:
        """How long the log has to be silent before this node tries."""
        rank_s = self._patience.rank * RANK_STEP_S
        if self._is_handed_over:
            return rank_s
        doublings = min(max(0, self._claims_in_a_row - 1), MOST_DOUBLINGS)
        return self._patience.takeover_after_s * (1 << doublings) + rank_s + self._extra_s

    def broken(self, reason: str) -> None:
        """The log has lost something: this node never leads, and if it does it stops at once."""
        self.trouble = reason
        if self.role is Role.LEADER:
            self._finish(f"the log has lost what it had acknowledged: {reason}")
        elif self.role is Role.CANDIDATE:
            self.role = Role.STANDBY

    # A candidate

    def claimed(self, now: float) -> None:
        """The claim stands in the log."""
        if self.role is not Role.CANDIDATE:
            return
        self.role = Role.LEADER
        self._appended_at = now
        self._actions.recover()

    def passed_over(self, now: float) -> None:
        """Something else stands where the claim should: read on."""
        if self.role is Role.CANDIDATE:
            self.role = Role.STANDBY
            self._is_handed_over = False
            self._end = -1
            self._answered_at = now

    # A leader

    def recovered(self) -> None:
        """What recovery has written is committed."""
        if self.role is Role.LEADER and not self.is_serving:
            self.is_serving = True
            self._actions.serve()

    def appended(self, now: float) -> None:
        """A record was sent, or sent again."""
        self._appended_at = now
        if self._uncommitted_since is None:
            self._uncommitted_since = now

    def committed(self, now: float, *, is_all: bool) -> None:
        """A record is committed; `is_all`: nothing else is on its way."""
        self._uncommitted_since = None if is_all else now

    def sync_began(self, now: float) -> None:
        """A sync of the journal is under way."""
        self._syncing_since = now

    def sync_ended(self) -> None:
        """It has ended well."""
        self._syncing_since = None

    def standby_heard(self, now: float, name: str, *, can_take_over: bool) -> None:
        """A standby has told where it is, and whether it has the log and the log answers it."""
        since = now if self._uncommitted_since is None else self._uncommitted_since
        before = self._standbys.get(name)
        self._standbys = {
            each: heard for each, heard in self._standbys.items() if since - heard.at <= STANDBY_S
        }
        answered_since = None
        if can_take_over:
            answered_since = now
            if before is not None and now - before.at <= REPORT_GAP_S:
                answered_since = now if before.answered_since is None else before.answered_since
        self._standbys[name] = _Heard(now, answered_since)

    def was_busy(self, now: float, missed_s: float) -> None:
        """This node has heard and said nothing for a while that does not count in `now`.

        A leader beats at once. For a standby the log may not have answered meanwhile, either.
        """
        self._appended_at = min(self._appended_at, now - BEAT_S)
        if missed_s > ANSWER_GAP_S:
            self._end = -1

    def tick(self, now: float) -> None:
        """Look at the clock: to be called several times a second."""
        if self.role is not Role.LEADER:
            return
        if self._is_cut_off(now):
            waited_s = self._patience.stepdown_after_s
            self._finish(f"nothing was committed for {waited_s:g} s, and another node may lead")
        elif now - self._appended_at >= BEAT_S and not self._has_slow_sync(now):
            self._appended_at = now
            self._actions.beat()

    def uncommitted_s(self, now: float) -> float:
        """For how long the log has committed nothing of what was sent to it."""
        return now - self._uncommitted_since if self._uncommitted_since is not None else 0.0

    def _is_cut_off(self, now: float) -> bool:
        since = self._uncommitted_since
        if since is None or now - since < self._patience.stepdown_after_s:
            return False
        return any(
            since - heard.at <= STANDBY_S
            and (
                (
                    heard.answered_since is not None
                    and heard.at - max(since, heard.answered_since) >= ANSWERED_S
                )
                # Whoever is cut off does not hear others either.
                or now - heard.at >= self._patience.stepdown_after_s
            )
            for heard in self._standbys.values()
        )

    def _has_slow_sync(self, now: float) -> bool:
        return self._syncing_since is not None and now - self._syncing_since >= BEAT_S

    def sync_failed(self) -> None:
        """The journal cannot be trusted any more."""
        if self.role is Role.LEADER:
            self._finish("the journal could not be synced")

    def deposed(self, epoch: int) -> None:
        """A later claim was found."""
        if self.role is Role.LEADER:
            self._finish(f"another node leads, by its claim of epoch {epoch}")

    def hand_over(self) -> bool:
        """An operator wants another node to lead; False when this one does not, or does already."""
        if self.role is not Role.LEADER or not self.is_serving or self._is_handing_over:
            return False
        self._is_handing_over = True
        self._actions.hand_over()
        return True

    def handed_over(self) -> None:
        """The handover is committed."""
        if self.role is Role.LEADER:
            self._finish("the lead was handed over")

    def _finish(self, reason: str) -> None:
        self.role = Role.ENDED
        self.is_serving = False
        self._actions.end(reason)
