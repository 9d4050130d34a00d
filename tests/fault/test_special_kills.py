"""The broker is killed at an exact write while messages die, wait, repeat or enter a stream.

Spec: DLX-08, DELAY-16, DELAY-17, DUP-08, STREAM-03
"""

from __future__ import annotations

import random
import shutil
import signal
import threading
from pathlib import Path

import pytest

from tests.fault.campaign import FLAGS
from tests.fault.clients import Client, Scene, load
from tests.fault.injected import START_LIMIT_S, WRITES, some_or_all
from tests.fault.ledger import Ledger
from tests.fault.planted import VARIABLE
from tests.fault.special_clients import declare_specials
from tests.fault.special_judge import Specials
from tests.integration.broker_process import BrokerProcess

# What `declare_specials` needs of writes, and some more.
SETTLED_IN = 40

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]


@pytest.fixture(autouse=True)
def _ours(referee_url: str | None) -> None:
    if referee_url is not None:
        pytest.skip("kills VouchMQ's own process")


def killed_at_write(
    place: Path, when: int, *, only_dead_letters: bool = False, program: str = "vouchmq"
) -> list[str]:
    """The violations after a kill at the n-th write under load."""
    place.mkdir()
    prefix = (
        *("strace", "-f", "-qq", "-o", str(place / "trace.log"), "-e", f"trace={WRITES}"),
        *("-e", "signal=none", "-e", f"inject={WRITES}:signal=KILL:when={when}"),
    )
    struck = BrokerProcess(place, flags=FLAGS, prefix=prefix, program=program)
    healthy = BrokerProcess(place, flags=FLAGS)
    specials = Specials(place)

    def who(scene: Scene) -> tuple[Client, ...]:
        return (
            (specials.rejector(scene, "special.plain"),)
            if only_dead_letters
            else specials.clients(scene)
        )

    try:
        with Ledger(place / "ledger.log") as ledger:
            struck.start(START_LIMIT_S)
            declare_specials(struck.url)
            with load(Scene(struck.url, ledger, str(when), when, threading.Event()), who):
                assert struck.wait(60) == -signal.SIGKILL
            healthy.start(START_LIMIT_S)
            return ledger.complaints + specials.judge(healthy.url, random.Random(when))
    finally:
        struck.kill9()
        healthy.kill9()
        specials.close()


@pytest.mark.parametrize("when", some_or_all([71, 144], range(SETTLED_IN, 300, 10)))
def test_the_broker_killed_at_a_write(tmp_path: Path, when: int) -> None:
    assert killed_at_write(tmp_path / "struck", when) == []


def test_a_dead_letter_in_two_blocks_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "split-turns")
    found: list[str] = []
    for when in range(60, 76):
        found = killed_at_write(
            tmp_path / str(when), when, only_dead_letters=True, program="tests.fault.planted"
        )
        if found:
            break
    assert any("in both queues" in what for what in found), found
