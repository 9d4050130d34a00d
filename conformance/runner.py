"""Runs cases in threads and turns whatever they do into verdicts.

The slow cases wait for the broker's clocks, so all of them run side by side from the start,
beside the pool that works through the others. Serial ones follow alone, then those that need
a restart: all are brought to the point of it, the broker is restarted once, all go on.
"""

from __future__ import annotations

import concurrent.futures
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from vouchmq.conformance.case import Case, Outcome, Verdict
from vouchmq.conformance.client import Connection
from vouchmq.conformance.events import EndedError, RefusedError, SilenceError
from vouchmq.conformance.expect import LateError, MismatchError, SkipError
from vouchmq.conformance.stage import SLACK_S, Stage
from vouchmq.conformance.target import Target, Tls
from vouchmq.conformance.wire import WireError

SLOW_JOBS: Final = 16
MOST_TRIES: Final = 3
RESTART_S: Final = 120
BACK_S: Final = 60

_BROKEN: Final = (MismatchError, RefusedError, EndedError, SilenceError, WireError, OSError)


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run: against what, how wide, and whether a RabbitMQ is being asked as referee."""

    target: Target
    jobs: int = 4
    restart_command: str = ""
    is_referee: bool = False
    slack_s: float = SLACK_S
    control_command: str = ""
    tls: Tls | None = None

    def stage(self) -> Stage:
        """A stage for one case."""
        given = (self.target, self.slack_s, self.control_command, self.tls)
        return Stage(*given, is_referee=self.is_referee)


def run(cases: Sequence[Case], plan: Plan, tell: Callable[[Verdict], None]) -> list[Verdict]:
    """Run all cases; `tell` hears of each verdict as it falls. In the order of `cases`."""
    verdicts: dict[str, Verdict] = {}

    def note(verdict: Verdict) -> None:
        verdicts[verdict.case.title] = verdict
        tell(verdict)

    plain = [one for one in cases if not (one.is_slow or one.is_serial or one.needs_restart)]
    slow = [one for one in cases if one.is_slow]
    with (
        concurrent.futures.ThreadPoolExecutor(SLOW_JOBS) as patient,
        concurrent.futures.ThreadPoolExecutor(plan.jobs) as pool,
    ):
        futures = [patient.submit(_judge, one, plan) for one in slow]
        futures += [pool.submit(_judge, one, plan) for one in plain]
        for future in concurrent.futures.as_completed(futures):
            note(future.result())
    for one in cases:
        if one.is_serial and not one.needs_restart:
            note(_judge(one, plan))
    for verdict in _across_restart([one for one in cases if one.needs_restart], plan):
        note(verdict)
    return [verdicts[one.title] for one in cases]


def _judge(one: Case, plan: Plan) -> Verdict:
    may_fail = plan.is_referee and one.races_on_referee
    tries: list[str] = []
    while True:
        stage = plan.stage()
        attempt = _Attempt(one, stage, plan)
        attempt.step(partial(_whole, one, stage))
        verdict = attempt.finish()
        is_last = len(tries) + 1 == MOST_TRIES or not (may_fail or attempt.is_late)
        if is_last or verdict.outcome != "failed":
            return replace(verdict, tries=tuple(tries))
        tries.append(verdict.reason)


def _whole(one: Case, stage: Stage) -> None:
    if one.body(stage) is not None:
        raise TypeError("the case yields, but is not registered with restart=True")


class _Attempt:
    """One case on its way to a verdict, in one step or in two around a restart."""

    def __init__(self, one: Case, stage: Stage, plan: Plan) -> None:
        self._case = one
        self._stage = stage
        self._plan = plan
        self._outcome: Outcome = "passed"
        self._reason = ""
        self._trace: tuple[str, ...] = ()
        self._duration_s = 0.0
        # Failed, and only by the time that it took.
        self.is_late = False

    @property
    def is_passed(self) -> bool:
        """True as long as nothing went wrong."""
        return self._outcome == "passed"

    def step(self, act: Callable[[], object]) -> None:
        """Do a part of the case and keep what came of it."""
        begin = time.monotonic()
        try:
            act()
        except SkipError as skip:
            self._outcome, self._reason = "skipped", str(skip)
        except LateError as error:
            self.is_late = True
            self._fail(str(error))
        except _BROKEN as error:
            self._fail(str(error) or type(error).__name__)
        except Exception as error:  # noqa: BLE001 - one broken case must not end the run
            self._fail(f"{type(error).__name__} in the case itself: {error}")
        self._duration_s += time.monotonic() - begin

    def _fail(self, reason: str) -> None:
        self._trace = self._stage.trace()
        self._outcome, self._reason = "failed", reason
        if self._plan.is_referee and self._case.referee_reason:
            self._outcome, self._reason = "excused", f"{self._case.referee_reason} ({reason})"

    def finish(self) -> Verdict:
        """Clean up and give the verdict; a broker that cannot be cleaned up has failed."""
        if self.is_passed:
            self.step(self._stage.clear)
        else:
            self._clear_anyway()
        return Verdict(self._case, self._outcome, self._reason, self._trace, self._duration_s)

    def _clear_anyway(self) -> None:
        try:
            self._stage.clear()
        except _BROKEN as error:
            self.is_late = False
            self._reason += f" [cleaning up failed too: {error}]"


def _across_restart(cases: Sequence[Case], plan: Plan) -> Iterator[Verdict]:
    if not plan.restart_command:
        for one in cases:
            yield Verdict(one, "skipped", "needs --restart-command")
        return
    waiting: list[tuple[_Attempt, Iterator[None], Stage]] = []
    for one in cases:
        stage = plan.stage()
        attempt = _Attempt(one, stage, plan)
        halves = one.body(stage)
        if halves is None:
            raise TypeError(f"{one.title} needs a restart but does not yield")
        attempt.step(partial(next, halves))
        waiting.append((attempt, halves, stage))
    problem = _restart_problem(plan) if waiting else ""
    for attempt, halves, stage in waiting:
        if attempt.is_passed:
            stage.abandon()
            attempt.step(partial(_second_half, halves, problem))
        yield attempt.finish()


def _second_half(halves: Iterator[None], problem: str) -> None:
    if problem:
        raise MismatchError(problem)
    next(halves, None)


def _restart_problem(plan: Plan) -> str:
    try:
        restart(plan)
    except (MismatchError, OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ""


def restart(plan: Plan) -> None:
    """Run the restart command and wait until the broker opens connections again.

    Raises:
        MismatchError: the command failed, or the broker did not come back.
    """
    done = subprocess.run(  # noqa: S603 - the operator's own command
        shlex.split(plan.restart_command), timeout=RESTART_S, check=False, capture_output=True
    )
    if done.returncode:
        raise MismatchError(f"the restart command ended with {done.returncode}")
    deadline = time.monotonic() + BACK_S
    while time.monotonic() < deadline:
        try:
            connection = Connection(plan.target).open()
        except _BROKEN:
            time.sleep(0.2)
            continue
        connection.close()
        connection.drop()
        return
    raise MismatchError(f"the broker was not back {BACK_S} s after the restart command")
