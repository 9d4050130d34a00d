"""The ledgers of brokers that share a log, as one: their epochs in the order of their claims.

What one leader confirms another one delivers, under the same numbers of queues and LSNs. Each of
them says in its ledger how its own epoch before went on, and not what the others did meanwhile. So
the epochs get new numbers, and what a boot says of the epoch before is said anew from all of them:

- lines at the end of an epoch are missing if the next boot of the *same* broker says so,
- messages are missing if a leader has recovered a higher LSN than any line before it names,
- a leader whose ledger is not there has led if more LSNs were left out than by those that are.

Must not know Spark, nor messages.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from vouchmq.spark.ledger.facts import Broker, Epoch, Facts
from vouchmq.spark.ledger.lines import LedgerError

if TYPE_CHECKING:
    from vouchmq.spark.ledger.seals import Seals

LEFT_OUT_LSNS: Final = 1 << 32
"""Each new leader leaves out so many (docs/internals/replication.md)."""

Place = tuple[str, int]
"""A broker's id and the number of an epoch."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Ledgers of one log as that of one broker.

    Attributes:
        name: the ids of its brokers, with `+` in between
        facts: with that one broker
        numbers: its epochs, by the broker and the epoch that they are
    """

    name: str
    facts: Facts
    numbers: dict[Place, int]

    def renamed(self, found: Seals) -> Seals:
        """What seals say, with faults in these epochs; heads stay those of each broker."""
        faults = (
            # What cannot be read has no epoch there, and is no less wrong.
            replace(each, broker=self.name, epoch=self.numbers.get((each.broker, each.epoch), 0))
            for each in found.faults
        )
        return replace(found, faults=tuple(faults))


def join(facts: Facts) -> Joined:
    """Put the epochs of all brokers in one order.

    Raises:
        LedgerError: they are not of one log
    """
    ordered = sorted(facts.epochs(), key=lambda each: _claim(each[3], each[1], each[2]))
    places = [(name, number) for _, name, number, _ in ordered]
    for (first, one), (second, other) in pairwise(sorted(places)):
        if first == second and places.index((first, one)) > places.index((second, other)):
            raise LedgerError(
                f"--shared-log: epoch {other} of {first} has recovered less than epoch {one}:"
                " it is not of the same log"
            )
    epochs: dict[int, Epoch] = {}
    before: _Before | None = None
    for number, (_, name, own, found) in enumerate(ordered, 1):
        epoch = deepcopy(found)
        if before is not None and epoch.boot is not None:
            epoch.boot = _said_anew(epoch.boot, before)
        epochs[number] = epoch
        before = _after(before, number, epoch, _told(facts.brokers[name], own))
    name = "+".join(sorted(facts.brokers))
    joined = replace(facts, brokers={name: Broker(epochs)})
    return Joined(name, joined, {place: number for number, place in enumerate(places, 1)})


def _claim(epoch: Epoch, name: str, number: int) -> tuple[int, int, str, int]:
    """Where an epoch stands: a later leader has recovered more.

    Of one whose beginning is gone by its age only what it has published tells.
    """
    lsn = epoch.boot["wm"] if epoch.boot is not None else epoch.lowest_lsn
    return lsn or 0, epoch.first_t or 0, name, number


@dataclass(frozen=True, slots=True)
class _Before:
    """What the epochs so far say to the boot of the next one.

    Attributes:
        number: of the last of them
        last_n: its last line, whether that is there or not
        is_short: something of it is absent of which nobody says how much
        end: how it has ended, if it says so
        named: the highest LSN that any line names
        reached: the highest LSN that the leaders so far can have begun behind
    """

    number: int
    last_n: int
    is_short: bool
    end: str | None
    named: int
    reached: int


def _told(broker: Broker, number: int) -> tuple[int | None, bool]:
    """What the next boot of the same broker says of an epoch: its last line; whether one is absent.

    A boot names the epoch before; if it names another one, files of that are absent.
    """
    after = next((epoch for other, epoch in broker.ordered() if other > number), None)
    if after is None or after.boot is None:
        return None, False
    if after.boot.get("prev_o") != number:
        return None, True
    return after.boot.get("prev_n"), False


def _after(
    before: _Before | None, number: int, epoch: Epoch, told: tuple[int | None, bool]
) -> _Before:
    last_n, is_short = told
    boot = epoch.boot
    begun = 0
    if boot is not None:
        # Switched on while it leads, it has left out its LSNs already.
        begun = boot["wm"] + (0 if boot["w"] == "on" else LEFT_OUT_LSNS)
    named = max(epoch.highest_lsn, before.named if before is not None else 0)
    reached = max(begun, named, before.reached if before is not None else 0)
    return _Before(number, max(epoch.last_n, last_n or 0), is_short, epoch.end, named, reached)


def _said_anew(boot: dict[str, Any], before: _Before) -> dict[str, Any]:
    is_dark = (
        boot["w"] == "on"
        or before.end == "off"
        or before.is_short
        or boot["wm"] - before.reached > LEFT_OUT_LSNS // 2
    )
    how = "clean" if before.end == "stop" else "crash"
    return {
        **boot,
        "w": "on" if boot["w"] == "on" else how,
        "prev_o": before.number,
        "prev_n": before.last_n,
        "prev_lsn": before.named,
        "dark": int(is_dark),
    }
