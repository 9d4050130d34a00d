"""A connection whose password takes long to check: it waits, and nobody else does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.in_memory import HEADER, SETTINGS, Client, World
from vouchmq.protocol.states import ConnectionState
from vouchmq.server.auth.passwords import SCRYPT
from vouchmq.server.connection.handshake import Offer
from vouchmq.server.settings.accounts import UserAccount

T = TypeVar("T")
ACCOUNTS = (
    UserAccount("guest", password="guest"),
    UserAccount("slow", password="slow", hashing_algorithm=SCRYPT),
    UserAccount("other", password="not its name", hashing_algorithm=SCRYPT),
)


class Elsewhere:
    """A thread that computes when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def __call__(self, job: Callable[[], T], done: Callable[[T], None], /) -> None:
        self.jobs.append(lambda: done(job()))

    def compute(self) -> None:
        self.jobs.pop(0)()


class SlowWorld(World):
    """A broker that computes hashes elsewhere."""

    def __init__(self, offer: Offer | None = None) -> None:
        self.elsewhere = Elsewhere()
        super().__init__(replace(SETTINGS, users=ACCOUNTS), offer, elsewhere=self.elsewhere)

    def waiting(self, user: str = "slow") -> Client:
        """A client whose password is being checked."""
        client = self.client()
        client.send(HEADER)
        client.log_in(user)
        assert client.names() == ["Connection.Start"]
        assert client.paused
        return client


@pytest.fixture
def world() -> SlowWorld:
    return SlowWorld()


def open_it(client: Client) -> list[str]:
    client.send(wire.method(0, commands.Connection.TuneOk(10, wire.FRAME_MAX, 0)))
    client.send(wire.method(0, commands.Connection.Open("/")))
    return client.names()


def test_it_goes_on_when_the_password_is_known_to_be_right(world: SlowWorld) -> None:
    client = world.waiting()
    world.elsewhere.compute()
    assert client.names() == ["Connection.Tune"]
    assert not client.paused
    assert open_it(client) == ["Connection.OpenOk"]
    # The next one need not wait.
    assert world.connect("slow").connection.user is client.connection.user
    assert world.elsewhere.jobs == []


def test_others_are_served_meanwhile(world: SlowWorld) -> None:
    client = world.waiting()
    other = world.connect("guest")
    other.open()
    other.declare("q", durable=True)
    world.elsewhere.compute()
    assert client.names() == ["Connection.Tune"]


def test_what_the_client_says_too_early_waits(world: SlowWorld) -> None:
    """Whoever does not wait for tune is served in the same order."""
    client = world.waiting()
    client.send(wire.method(0, commands.Connection.TuneOk(10, wire.FRAME_MAX, 0)))
    client.send(wire.method(0, commands.Connection.Open("/")))
    assert client.names() == []
    world.elsewhere.compute()
    assert client.names() == ["Connection.Tune", "Connection.OpenOk"]


@pytest.mark.parametrize("user", ["other", "nobody"])
def test_a_wrong_password_is_refused_as_any(world: SlowWorld, user: str) -> None:
    """CONN-22, CONN-23."""
    client = world.waiting(user)
    world.elsewhere.compute()
    [(_, what)] = client.hear()
    assert isinstance(what, commands.Connection.Close)
    assert what.reply_code == 403
    # close-ok is read.
    assert not client.paused
    client.send(wire.method(0, commands.Connection.CloseOk()))
    assert client.connection.state is ConnectionState.CLOSED


def test_a_client_that_goes_is_not_waited_for(world: SlowWorld) -> None:
    client = world.waiting("other")
    second = world.waiting("other")
    for each in (client, second):
        each.connection.lost("gone")
    world.run_turns()
    assert world.runtime.connections == {}
    world.elsewhere.compute()
    assert world.elsewhere.jobs == []
    assert client.names() == []


def test_the_time_limit_of_the_handshake_goes_on(world: SlowWorld) -> None:
    """CONN-06."""
    client = world.waiting()
    [timer] = [each for each in client.timers if not each.is_cancelled]
    timer.callback()
    world.run_turns()
    assert client.ends == ["aborted"]
    world.elsewhere.compute()
    assert client.names() == []


def test_a_broker_that_stops_does_not_wait(world: SlowWorld) -> None:
    client = world.waiting()
    client.connection.shut_down("broker forced connection closure")
    world.run_turns()
    assert client.ends == ["aborted"]
    world.elsewhere.compute()


def test_a_new_secret_is_checked_elsewhere_too() -> None:
    """CONN-70, CONN-71."""
    world = SlowWorld(Offer("n@h", "VouchMQ", "1", "test", update_secret_verify=True))
    client = world.waiting()
    world.elsewhere.compute()
    client.names()
    open_it(client)
    client.method(0, commands.Connection.UpdateSecret("slow", "r"))
    assert client.names() == ["Connection.UpdateSecretOk"]
    client.method(0, commands.Connection.UpdateSecret("wrong", "r"))
    client.method(1, commands.Channel.Open())
    assert client.names() == []
    world.elsewhere.compute()
    [(_, what)] = client.hear()
    assert isinstance(what, commands.Connection.Close)
    assert what.reply_code == 530
