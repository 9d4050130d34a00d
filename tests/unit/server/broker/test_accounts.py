"""Users and parameters as records: what is changed is there after a replay, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vouchmq.server.broker import definitions as d
from vouchmq.server.broker.accounts import Accounts

USER = d.UserSet("u", "AAAA", "rabbit_password_hashing_sha256", ["administrator"])
PERMISSION = d.PermissionSet("u", "/", "a", "b", "c")
TOPIC = d.TopicPermissionSet("u", "/", "t", "a", "b")
PARAMETER = d.ParameterSet("/", "c", "p", {"x": 1})
GLOBAL = d.GlobalParameterSet("g", 1)
SETS: tuple[d.AccountDefinition, ...] = (
    d.AccountsKept(),
    USER,
    PERMISSION,
    TOPIC,
    PARAMETER,
    GLOBAL,
)
CHANGED: tuple[d.AccountDefinition, ...] = (
    replace(USER, tags=[]),
    replace(USER, max_channels=3),
    replace(PERMISSION, read=""),
    replace(TOPIC, write=""),
    replace(PARAMETER, value={"x": True}),
    replace(GLOBAL, value=1.0),
)
CLEARS: tuple[d.AccountDefinition, ...] = (
    d.TopicPermissionCleared("u", "/", "t"),
    d.PermissionCleared("u", "/"),
    d.UserDeleted("u"),
    d.ParameterCleared("/", "c", "p"),
    d.GlobalParameterCleared("g"),
)


class Journal:
    """Numbers what it is given."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.accounts = Accounts(self.define)

    def define(self, record: bytes) -> int:
        self.records.append(record)
        return len(self.records)


def restored(records: list[bytes]) -> Accounts:
    """What somebody finds who reads these records."""
    accounts = Accounts(lambda _: 0)
    for record in records:
        definition = d.decode(record)
        assert isinstance(definition, d.AccountDefinition)
        accounts.apply(definition)
    return accounts


def test_every_change_is_there_after_a_replay() -> None:
    journal = Journal()
    for definition in (*SETS, *CHANGED, *CLEARS, *SETS):
        journal.accounts.change(definition)
        found = restored(journal.records)
        assert found.records() == journal.accounts.records()
        assert restored(found.records()).records() == found.records()
    assert len(journal.accounts.records()) == len(SETS)


def test_a_replay_over_a_snapshot_that_holds_it_already_ends_the_same() -> None:
    journal = Journal()
    for definition in (*SETS, *CLEARS, *SETS, *CHANGED):
        journal.accounts.change(definition)
    snapshot = journal.accounts.records()
    for first in range(len(journal.records)):
        assert restored(snapshot + journal.records[first:]).records() == snapshot


@pytest.mark.parametrize("definition", [*SETS, *CLEARS])
def test_what_is_so_already_is_written_once(definition: d.AccountDefinition) -> None:
    journal = Journal()
    for each in (*SETS, *CLEARS, *SETS):
        journal.accounts.change(each)
    first = journal.accounts.change(definition)
    count = len(journal.records)
    assert first == count
    # Whoever repeats it waits for what was written, and nothing else is.
    assert journal.accounts.change(definition) == first
    assert len(journal.records) == count


@pytest.mark.parametrize("definition", CHANGED)
def test_what_is_not_the_same_is_written(definition: d.AccountDefinition) -> None:
    """1, 1.0 and true are equal in Python, and other values in JSON."""
    journal = Journal()
    for each in SETS:
        journal.accounts.change(each)
    count = len(journal.records)
    assert journal.accounts.change(definition) == count + 1


def test_with_a_user_go_the_permissions() -> None:
    journal = Journal()
    for each in SETS:
        journal.accounts.change(each)
    journal.accounts.change(d.UserDeleted("u"))
    journal.accounts.change(USER)
    assert journal.accounts.permissions == {}
    assert journal.accounts.topic_permissions == {}
    assert restored(journal.records).records() == journal.accounts.records()


def test_with_a_vhost_goes_what_is_about_it() -> None:
    journal = Journal()
    for each in SETS:
        journal.accounts.change(each)
    for each in (PERMISSION, TOPIC, PARAMETER):
        journal.accounts.change(replace(each, vhost="v"))
    journal.accounts.forget_vhost("/")
    assert list(journal.accounts.permissions["u"]) == ["v"]
    assert list(journal.accounts.topic_permissions["u"]) == [("v", "t")]
    assert list(journal.accounts.parameters) == [("v", "c", "p")]
    assert list(journal.accounts.users) == ["u"]
