"""`vouchmq drain`: have a broker stop when its clients have gone, and wait for that.

Must not know how the broker is asked.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Final, TextIO

from vouchmq.server.cli.client import EXIT_NO_BROKER
from vouchmq.server.cli.program import CommandFailed
from vouchmq.server.cli.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.cli.client import Broker

LOOK_S: Final = 0.2


def run(
    broker: Broker,
    timeout_s: float | None,
    clock: Callable[[], float],
    sleep: Callable[[float], object],
    *,
    as_json: bool,
    out: TextIO | None = None,
) -> int:
    """Drain a broker; returns the exit code when it has stopped.

    Raises:
        CommandFailed: it has not stopped in time, or there is none
    """
    out = sys.stdout if out is None else out
    began = clock()
    count = first = int(broker.ask("drain")["connections"])
    shown = -1
    while True:
        if count not in {shown, 0} and not as_json:
            out.write(f"waiting for {plural(count, 'connection')}\n")
            out.flush()
            shown = count
        sleep(LOOK_S)
        try:
            [overview] = broker.rows("list overview")
        except CommandFailed as error:
            if error.exit_code != EXIT_NO_BROKER:
                raise
            break
        count = overview["connections"]
        if timeout_s is not None and clock() - began >= timeout_s:
            left = plural(count, "connection")
            raise CommandFailed(f"{left} left; the broker stops when there is none")
    out.write(json.dumps({"connections": first}) + "\n" if as_json else "the broker has stopped\n")
    return 0
