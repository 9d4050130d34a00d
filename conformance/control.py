"""The operator's command: what no AMQP client can do, in the words of rabbitmqctl.

Cases that need it are skipped without one. `rabbitmqctl` itself will do, and so does any program
that takes the same words, or some of them and ends with 64 at others: `set_policy`,
`clear_policy`, `add_user`, `delete_user`, `set_permissions`, `add_vhost`, `delete_vhost`,
`close_all_connections`, `set_vm_memory_high_watermark`.
"""

from __future__ import annotations

import shlex
import subprocess
from typing import Final

from vouchmq.conformance.expect import MismatchError, SkipError

LONGEST_S: Final = 60
# How rabbitmqctl ends when it does not know a word.
UNKNOWN: Final = 64


def operate(command: str, words: tuple[str, ...]) -> None:
    """Run the operator's command with these words and wait for its end.

    Raises:
        MismatchError: it failed; the text has what it said.
        SkipError: it does not know the first word.
    """
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own command
            [*shlex.split(command), *words],
            timeout=LONGEST_S,
            check=False,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MismatchError(f"the operator's command: {error}") from error
    if done.returncode == UNKNOWN:
        raise SkipError(f"the operator's command does not know {words[0]}")
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise MismatchError(f"{words[0]} ended with {done.returncode}: {said[-300:]}")
