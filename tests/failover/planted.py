"""The broker, which kills itself where a test wants it to, or does nothing else for a while.

    python -m tests.failover.planted serve …

A file `die` beside its data directory says where, and goes with that: `claim`, when its claim
stands in the log and it is about to hear of that; `recovery`, when it has recovered and let nobody
in yet. A file `busy` says where, how, and for how many seconds: in its `recovery` or its `loop`;
`work` uses the processor, `step` waits and has done something each half second, as on a slow disk,
`hang` does nothing. Without the files it is the broker as it is.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vouchmq.server.cli.main import main
from vouchmq.server.edge.app import Server
from vouchmq.server.edge.replicated.membership import Membership
from vouchmq.server.replication.node import Node
from vouchmq.server.runtime.runtime import BrokerRuntime

if TYPE_CHECKING:
    from collections.abc import Callable

DIE: Final = "die"
BUSY: Final = "busy"
STEP_S: Final = 0.5
PROGRAM: Final = "tests.failover.planted"


def beside_data(name: str) -> Path:
    """A file beside the data directory."""
    return Path(sys.argv[sys.argv.index("--data-dir") + 1]).parent / name


def be_busy(place: str, advanced: Callable[[], object]) -> None:
    """Do nothing else for a while, if the file says so."""
    file = beside_data(BUSY)
    if not file.exists():
        return
    where, how, seconds = file.read_text("ascii").split()
    if where != place:
        return
    file.unlink()
    ends_at = time.monotonic() + float(seconds)
    if how == "hang":
        time.sleep(float(seconds))
    while time.monotonic() < ends_at:
        if how == "step":
            time.sleep(STEP_S)
            advanced()


def die_at(place: str) -> None:
    """Die if the file says so."""
    file = beside_data(DIE)
    if file.exists() and file.read_text("ascii") == place:
        file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def plant() -> None:
    """Put the places in."""
    claimed, lead, tick, open_broker = Node.claimed, Membership.lead, Node._tick, Server._open

    def dying_claimed(self: Node) -> None:
        die_at("claim")
        claimed(self)

    def dying_lead(self: Membership, runtime: BrokerRuntime) -> None:
        lead(self, runtime)
        die_at("recovery")

    def busy_tick(self: Node) -> None:
        if self.roles.is_serving:
            be_busy("loop", lambda: None)
        tick(self)

    def busy_open(self: Server, *arguments: Any) -> BrokerRuntime:
        assert self._membership is not None
        be_busy("recovery", self._membership.advanced)
        return open_broker(self, *arguments)

    Node._tick = busy_tick  # type: ignore[method-assign]
    Server._open = busy_open  # type: ignore[method-assign, assignment]
    Node.claimed = dying_claimed  # type: ignore[method-assign]
    Membership.lead = dying_lead  # type: ignore[method-assign]


if __name__ == "__main__":
    plant()
    sys.exit(main())
