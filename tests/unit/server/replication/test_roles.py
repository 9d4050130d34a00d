"""When a node tries to lead, when it beats, and when it gives up: with a clock of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vouchmq.server.replication.roles import (
    ANSWER_GAP_S,
    ANSWERED_S,
    BEAT_S,
    RANK_STEP_S,
    REPORT_GAP_S,
    STANDBY_S,
    WORK_S,
    Patience,
    Role,
    Roles,
)

PATIENCE = Patience(takeover_after_s=5.0, rank=0, stepdown_after_s=60.0)


class Actions:
    """What a node was told to do."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def claim(self) -> None:
        self.done.append("claim")

    def recover(self) -> None:
        self.done.append("recover")

    def serve(self) -> None:
        self.done.append("serve")

    def beat(self) -> None:
        self.done.append("beat")

    def hand_over(self) -> None:
        self.done.append("hand over")

    def end(self, reason: str) -> None:
        self.done.append(f"end: {reason}")


class Node:
    """A node with a clock; chance is what the test says."""

    def __init__(self, patience: Patience = PATIENCE, chance: float = 0.0) -> None:
        self.now = 100.0
        self.actions = Actions()
        self.roles = Roles(patience, self.actions, lambda: chance)

    @property
    def role(self) -> Role:
        return self.roles.role

    @property
    def done(self) -> list[str]:
        return self.actions.done

    def follow(self, seconds: float, end: Callable[[float], int], *, step_s: float = 0.25) -> None:
        """Read the log's end again and again."""
        begin = self.now
        while self.now < begin + seconds and self.roles.role is Role.STANDBY:
            self.now += step_s
            self.roles.end_read(self.now, end(self.now), is_complete=True)

    def lead(self) -> None:
        """Become the leader."""
        self.follow(60.0, lambda _: 7)
        self.roles.claimed(self.now)
        self.roles.recovered()
        assert self.done == ["claim", "recover", "serve"]
        self.done.clear()

    def tick(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(int(seconds * 4)):
            self.now += 0.25
            self.roles.tick(self.now)


def test_silence_makes_a_candidate() -> None:
    node = Node()
    node.follow(5.0, lambda _: 7)
    assert node.done == []
    node.follow(1.0, lambda _: 7)
    assert node.done == ["claim"]
    assert node.role is Role.CANDIDATE


def test_a_leader_that_beats_is_let_alone() -> None:
    node = Node()
    node.follow(100.0, lambda now: int(now / BEAT_S))
    assert node.done == []


def test_an_election_of_the_engine_is_no_silence() -> None:
    """It answers, does not for nine seconds, and answers again, with the same end."""
    node = Node()
    for _ in range(5):
        node.follow(4.0, lambda _: 7)
        node.now += 9.0
    assert node.done == []
    node.follow(4.0, lambda _: 7)
    assert node.done == []
    node.follow(2.0, lambda _: 7)
    assert node.done == ["claim"]


def test_two_answers_far_apart_are_no_silence() -> None:
    node = Node()
    node.follow(100.0, lambda _: 7, step_s=ANSWER_GAP_S + 0.01)
    assert node.done == []


@pytest.mark.parametrize(("rank", "chance"), [(0, 0.0), (1, 0.0), (2, 0.0), (0, 0.9), (2, 0.9)])
def test_ranks_come_one_after_the_other(rank: int, chance: float) -> None:
    node = Node(Patience(5.0, rank), chance)
    begin = node.now + 0.01
    node.follow(60.0, lambda _: 7, step_s=0.01)
    waited_s = node.now - begin
    assert waited_s == pytest.approx(5.0 + rank * RANK_STEP_S + chance * RANK_STEP_S, abs=0.02)


def test_a_handover_needs_no_silence() -> None:
    for rank, waits_s in ((0, 0.0), (1, RANK_STEP_S)):
        node = Node(Patience(5.0, rank))
        node.roles.record_read(is_handover=True)
        begin = node.now + 0.01
        node.follow(60.0, lambda _: 7, step_s=0.01)
        assert node.now - begin == pytest.approx(waits_s, abs=0.02)


def test_a_claim_behind_a_handover_is_a_leader() -> None:
    node = Node()
    node.roles.record_read(is_handover=True)
    node.roles.record_read(is_handover=False)
    node.follow(4.0, lambda _: 7)
    assert node.done == []


def test_who_misses_something_does_not_claim() -> None:
    node = Node()
    for _ in range(100):
        node.now += 0.25
        node.roles.end_read(node.now, 7, is_complete=False)
    assert node.done == []


def test_a_broken_log_is_not_led() -> None:
    node = Node()
    node.roles.broken("a hole")
    node.follow(60.0, lambda _: 7)
    assert node.done == []
    assert node.role is Role.STANDBY


def test_who_is_passed_over_waits_again() -> None:
    node = Node()
    node.follow(60.0, lambda _: 7)
    node.roles.passed_over(node.now)
    assert node.role is Role.STANDBY
    node.follow(4.0, lambda _: 8)
    assert node.done == ["claim"]
    node.follow(60.0, lambda _: 8)
    assert node.done == ["claim", "claim"]


def test_a_claim_is_followed_by_recovery_and_then_by_clients() -> None:
    node = Node()
    node.follow(60.0, lambda _: 7)
    assert not node.roles.is_serving
    node.roles.claimed(node.now)
    assert node.done == ["claim", "recover"]
    assert not node.roles.is_serving
    node.roles.recovered()
    node.roles.recovered()
    assert node.done == ["claim", "recover", "serve"]
    assert node.roles.is_serving


def test_a_leader_beats_while_it_has_nothing_else_to_say() -> None:
    node = Node()
    node.lead()
    node.tick(10 * BEAT_S)
    assert node.done == ["beat"] * 10
    node.done.clear()
    for _ in range(40):
        node.roles.appended(node.now)
        node.roles.committed(node.now, is_all=True)
        node.tick(BEAT_S / 2)
    assert node.done == []


def test_a_leader_whose_sync_hangs_does_not_beat() -> None:
    node = Node()
    node.lead()
    node.roles.sync_began(node.now)
    node.tick(20.0)
    assert node.done.count("beat") <= 1
    node.done.clear()
    node.roles.sync_ended()
    node.tick(0.25)
    assert node.done == ["beat"]


def test_a_leader_that_commits_nothing_steps_down_for_others() -> None:
    node = Node()
    node.lead()
    node.roles.standby_heard(node.now, "b", can_take_over=True)
    node.roles.appended(node.now)
    node.tick(59.0)
    assert not [what for what in node.done if what != "beat"]
    node.tick(2.0)
    assert node.role is Role.ENDED
    assert node.done[-1] == "end: nothing was committed for 60 s, and another node may lead"
    assert not node.roles.is_serving


@pytest.mark.parametrize("heard_before_s", [None, STANDBY_S + 1])
def test_a_leader_by_itself_does_not_step_down(heard_before_s: float | None) -> None:
    node = Node()
    node.lead()
    if heard_before_s is not None:
        node.roles.standby_heard(node.now, "b", can_take_over=True)
        node.now += heard_before_s
    node.roles.appended(node.now)
    node.tick(600.0)
    assert node.role is Role.LEADER


def hear_for(node: Node, duration_s: float, *, can_take_over: bool = True) -> None:
    """A standby reports each second, for so long, whether it can take over."""
    node.roles.standby_heard(node.now, "b", can_take_over=can_take_over)
    for _ in range(int(duration_s)):
        node.tick(1.0)
        node.roles.standby_heard(node.now, "b", can_take_over=can_take_over)
    node.tick(0.25)


def test_a_leader_waits_for_a_log_that_answers_no_standby_either() -> None:
    node = Node()
    node.lead()
    node.roles.standby_heard(node.now, "b", can_take_over=True)
    node.roles.appended(node.now)
    hear_for(node, 600, can_take_over=False)
    assert node.done == ["beat"] * node.done.count("beat")
    hear_for(node, ANSWERED_S)
    assert node.role is Role.ENDED


def test_a_log_that_is_back_may_answer_a_standby_before_the_leader() -> None:
    node = Node()
    node.lead()
    node.roles.standby_heard(node.now, "b", can_take_over=True)
    node.roles.appended(node.now)
    hear_for(node, 70, can_take_over=False)
    hear_for(node, ANSWERED_S - 1)
    assert node.role is Role.LEADER
    node.roles.committed(node.now, is_all=True)
    hear_for(node, ANSWERED_S)
    assert node.role is Role.LEADER


def test_a_standby_that_the_log_answered_before_the_outage_has_to_go_on_saying_it() -> None:
    node = Node()
    node.lead()
    hear_for(node, 30)
    node.roles.appended(node.now)
    hear_for(node, 59)
    assert node.role is Role.LEADER
    node.tick(1.0)
    assert node.done[-1].startswith("end: ")


def test_reports_of_before_a_long_gap_say_nothing_about_the_gap() -> None:
    """A standby that is met again at another server."""
    node = Node()
    node.lead()
    hear_for(node, 30)
    node.roles.appended(node.now)
    node.tick(40.0)
    node.roles.standby_heard(node.now, "b", can_take_over=False)
    node.tick(REPORT_GAP_S + 1)
    hear_for(node, ANSWERED_S - 1)
    assert node.role is Role.LEADER
    # Without a report in between, which told that it cannot.
    node.roles.committed(node.now, is_all=False)
    hear_for(node, 1)
    node.tick(59.0)
    node.roles.standby_heard(node.now, "b", can_take_over=True)
    node.tick(2.0)
    assert node.role is Role.LEADER
    hear_for(node, ANSWERED_S)
    assert node.done[-1].startswith("end: ")


def test_a_leader_steps_down_for_the_one_standby_that_it_does_not_hear_any_more() -> None:
    node = Node()
    node.lead()
    for name in ("b", "c"):
        node.roles.standby_heard(node.now, name, can_take_over=True)
    node.roles.appended(node.now)
    for _ in range(61):
        node.roles.standby_heard(node.now, "b", can_take_over=False)
        node.tick(1.0)
    assert node.role is Role.ENDED


def test_a_leader_waits_for_a_log_without_a_quorum_whose_standbys_are_heard_now_and_then() -> None:
    """Nodes that look for a server with a quorum meet at the same one only sometimes."""
    node = Node()
    node.lead()
    node.roles.standby_heard(node.now, "b", can_take_over=True)
    node.roles.appended(node.now)
    # It has had its last answer lately.
    node.tick(3.0)
    node.roles.standby_heard(node.now, "b", can_take_over=True)
    for _ in range(20):
        node.tick(30.0)
        assert node.role is Role.LEADER
        node.roles.standby_heard(node.now, "b", can_take_over=False)
    node.tick(59.0)
    assert node.role is Role.LEADER


def test_what_a_standby_had_been_told_before_the_outage_is_no_evidence() -> None:
    node = Node()
    node.lead()
    node.roles.appended(node.now)
    node.tick(3.0)
    node.roles.standby_heard(node.now, "b", can_take_over=True)
    node.tick(59.0)
    assert node.role is Role.LEADER


def test_standbys_of_long_ago_are_forgotten() -> None:
    node = Node()
    node.lead()
    for number in range(1000):
        node.now += STANDBY_S / 2
        node.roles.standby_heard(node.now, f"b{number}", can_take_over=True)
    assert len(node.roles._standbys) <= 3


def test_a_leader_that_commits_does_not_step_down() -> None:
    node = Node()
    node.lead()
    for _ in range(10):
        node.roles.standby_heard(node.now, "b", can_take_over=True)
        node.roles.appended(node.now)
        node.tick(30.0)
        node.roles.committed(node.now, is_all=False)
    node.roles.committed(node.now, is_all=True)
    node.tick(100.0)
    assert node.role is Role.LEADER


def test_every_end_of_a_lead() -> None:
    ends: list[tuple[Callable[[Roles], None], str]] = [
        (lambda roles: roles.deposed(9), "another node leads, by its claim of epoch 9"),
        (lambda roles: roles.sync_failed(), "the journal could not be synced"),
        (lambda roles: roles.broken("a hole"), "the log has lost what it had acknowledged: a hole"),
        (lambda roles: roles.handed_over(), "the lead was handed over"),
    ]
    for happens, reason in ends:
        node = Node()
        node.lead()
        happens(node.roles)
        happens(node.roles)
        node.tick(100.0)
        assert node.done == [f"end: {reason}"]
        assert (node.role, node.roles.is_serving) == (Role.ENDED, False)


def test_a_handover() -> None:
    node = Node()
    assert not node.roles.hand_over()
    node.lead()
    assert node.roles.hand_over()
    assert not node.roles.hand_over()
    assert node.done == ["hand over"]
    node.roles.handed_over()
    assert node.done[-1] == "end: the lead was handed over"


def test_what_comes_too_late_changes_nothing() -> None:
    node = Node()
    node.roles.claimed(node.now)
    node.roles.passed_over(node.now)
    node.roles.recovered()
    node.roles.deposed(3)
    node.tick(100.0)
    assert (node.role, node.done) == (Role.STANDBY, [])
    node.lead()
    node.follow(60.0, lambda _: 7)
    node.roles.end_read(node.now, 8, is_complete=True)
    node.roles.passed_over(node.now)
    assert node.role is Role.LEADER


def test_after_claims_that_nothing_has_followed_a_node_waits_longer() -> None:
    node = Node()
    node.roles.record_read(is_handover=False, is_claim=True)
    node.roles.record_read(is_handover=False, is_claim=True)
    waited_s = silence_until_claim(node)
    assert 2 * PATIENCE.takeover_after_s <= waited_s < 2 * PATIENCE.takeover_after_s + 1


def test_a_record_behind_a_claim_ends_the_longer_wait() -> None:
    node = Node()
    for _ in range(5):
        node.roles.record_read(is_handover=False, is_claim=True)
    node.roles.record_read(is_handover=False)
    assert silence_until_claim(node) < PATIENCE.takeover_after_s + 1


def silence_until_claim(node: Node) -> float:
    """How long the log says the same until the node claims."""
    began = node.now
    while node.role is Role.STANDBY:
        node.roles.end_read(node.now, 7, is_complete=True)
        node.now += 0.25
    return node.now - began


def follow_signs(node: Node, seconds: float, *, steps: bool, work: bool) -> None:
    """Follow a log in which nothing is new, with a sign each second of what is done since then."""
    begin = node.now
    while node.now < begin + seconds and node.role is Role.STANDBY:
        age_s = node.now - begin
        node.roles.leader_works(node.now, 0.0 if steps else age_s, 0.0 if work else age_s)
        node.follow(1.0, lambda _: 7)


def test_a_leader_that_recovers_is_let_alone_for_as_long_as_it_gets_on() -> None:
    node = Node()
    follow_signs(node, 10 * WORK_S, steps=True, work=False)
    assert node.done == []
    follow_signs(node, 2 * PATIENCE.takeover_after_s, steps=False, work=False)
    assert node.done == ["claim"]


def test_a_leader_that_works_is_let_alone_for_a_limited_time() -> None:
    node = Node()
    follow_signs(node, WORK_S - 2, steps=False, work=True)
    assert node.done == []
    # It has appended something in between.
    node.follow(1.0, lambda _: 6)
    begin = node.now
    follow_signs(node, WORK_S + 2 * PATIENCE.takeover_after_s, steps=False, work=True)
    assert node.done == ["claim"]
    assert WORK_S + PATIENCE.takeover_after_s <= node.now - begin
    assert node.now - begin <= WORK_S + PATIENCE.takeover_after_s + 3.0


def test_a_leader_that_hangs_is_replaced_whatever_signs_say() -> None:
    node = Node()
    follow_signs(node, 2 * PATIENCE.takeover_after_s, steps=False, work=False)
    assert node.done == ["claim"]


def test_the_first_sign_of_a_hang_does_not_begin_the_silence_again() -> None:
    """All signs before were lost, or this standby has just begun."""
    node = Node()
    node.follow(PATIENCE.takeover_after_s - 1.0, lambda _: 7)
    silent_s = node.now
    node.roles.leader_works(node.now, silent_s, silent_s - 0.5)
    node.follow(1.0, lambda _: 7)
    assert node.done == []
    node.follow(1.5, lambda _: 7)
    assert node.done == ["claim"]


def test_no_sign_puts_off_a_handover() -> None:
    node = Node()
    node.roles.record_read(is_handover=True)
    node.roles.leader_works(node.now, 0.0, 0.0)
    node.follow(1.0, lambda _: 7)
    assert node.done == ["claim"]


def test_a_leader_that_was_busy_beats_at_once() -> None:
    node = Node()
    node.lead()
    node.roles.appended(node.now)
    node.roles.committed(node.now, is_all=True)
    node.roles.was_busy(node.now, 7.5)
    node.roles.tick(node.now)
    assert node.done == ["beat"]


def test_a_standby_that_was_busy_has_not_heard_a_silence() -> None:
    node = Node()
    node.follow(4.5, lambda _: 7)
    node.roles.was_busy(node.now, 7.5)
    node.follow(4.5, lambda _: 7)
    assert node.done == []
