"""The broker, which kills itself where a test wants it to.

    python -m tests.failover.planted serve …

A file `die` beside its data directory says where, and goes with that: `claim`, when its claim
stands in the log and it is about to hear of that; `recovery`, when it has recovered and let nobody
in yet. Without the file it is the broker as it is.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Final

from vouchmq.server.cli.main import main
from vouchmq.server.edge.replicated.membership import Membership
from vouchmq.server.replication.node import Node
from vouchmq.server.runtime.runtime import BrokerRuntime

DIE: Final = "die"
PROGRAM: Final = "tests.failover.planted"


def die_at(place: str) -> None:
    """Die if the file says so."""
    directory = Path(sys.argv[sys.argv.index("--data-dir") + 1]).parent
    file = directory / DIE
    if file.exists() and file.read_text("ascii") == place:
        file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def plant() -> None:
    """Put the two places in."""
    claimed, lead = Node.claimed, Membership.lead

    def dying_claimed(self: Node) -> None:
        die_at("claim")
        claimed(self)

    def dying_lead(self: Membership, runtime: BrokerRuntime) -> None:
        lead(self, runtime)
        die_at("recovery")

    Node.claimed = dying_claimed  # type: ignore[method-assign]
    Membership.lead = dying_lead  # type: ignore[method-assign]


if __name__ == "__main__":
    plant()
    sys.exit(main())
