"""How fast counters grow and since when nothing has happened, whoever looks (HTTP-07, HTTP-19)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pamqp import commands

from tests.unit.server.admin.listings import WALL_MS, listed, views_of
from tests.unit.server.amqp_client import declare, publish
from tests.unit.server.in_memory import Client
from tests.unit.server.on_disk import DiskWorld
from vouchmq.server.admin.numbers import samples as module
from vouchmq.server.admin.numbers.samples import EVERY_S, Samples


@pytest.fixture
def world() -> DiskWorld:
    return DiskWorld()


@pytest.fixture
def client(world: DiskWorld) -> Client:
    client = world.connect()
    client.ask(1, commands.Channel.Open())
    return client


class Sampling:
    """Samples of a broker, taken whenever their time has come."""

    def __init__(self, world: DiskWorld) -> None:
        self._world = world
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self.turns: list[Callable[[], None]] = []
        self.samples = Samples(
            views_of(world),
            lambda: world.now,
            lambda: WALL_MS + int(world.now * 1000),
            self.turns.append,
            lambda after_s, job: self._timers.append((world.now + after_s, job)),
        )
        self.samples.start()
        self._finish()

    def pass_s(self, seconds: int) -> None:
        for _ in range(seconds):
            self._world.now += 1
            while self._timers and self._timers[0][0] <= self._world.now:
                self._timers.pop(0)[1]()
                self._finish()

    def _finish(self) -> None:
        while self.turns:
            self.turns.pop(0)()

    def rates(self, listing: str = "queue-details", **selection: str) -> dict[str, float]:
        [row] = listed(self._world, listing, self.samples, **selection)
        rates: dict[str, float] = row["rates"]
        return rates


@pytest.mark.parametrize("apart_s", [1, 2, 5, 7, 30, 60, 300])
def test_rates_are_the_same_however_often_somebody_looks(
    world: DiskWorld, client: Client, apart_s: int
) -> None:
    sampling = Sampling(world)
    declare(client, "q")
    looks = 0
    for second in range(1, 321):
        publish(client, "q", b"1", b"2")
        client.ask(1, commands.Basic.Get(queue="q", no_ack=True))
        sampling.pass_s(1)
        # Also the first time that anybody looks.
        if second % apart_s == 0 and second > EVERY_S:
            looks += 1
            found = sampling.rates()
            assert found == {
                **dict.fromkeys(("published",), 2.0),
                **dict.fromkeys(("delivered", "got_no_ack", "messages", "messages_ready"), 1.0),
            }, second
            exchange = sampling.rates("exchange-details", vhost="/", name="")
            assert exchange == {"published_in": 2.0, "published_out": 2.0}
            for listing in ("channel-details", "vhost-totals", "overview-details"):
                assert sampling.rates(listing)["published"] == 2.0, (listing, second)
            assert sampling.rates("connection-details")["received_bytes"] > 0
    assert looks
    sampling.pass_s(11)
    assert sampling.rates() == {}
    assert "published" not in sampling.rates("overview-details")


def test_what_goes_is_less_than_nothing_for_numbers_that_may_fall(
    world: DiskWorld, client: Client
) -> None:
    declare(client, "q")
    publish(client, "q", *[b"x"] * 100)
    sampling = Sampling(world)
    sampling.pass_s(10)
    client.ask(1, commands.Queue.Purge(queue="q"))
    assert sampling.rates() == {"messages": -20.0, "messages_ready": -20.0}


def test_a_queue_that_is_new_has_counted_nothing_before(world: DiskWorld, client: Client) -> None:
    sampling = Sampling(world)
    sampling.pass_s(12)
    declare(client, "q")
    publish(client, "q", *[b"x"] * 8)
    # Two seconds after the last round.
    assert sampling.rates()["published"] == 4.0
    sampling.pass_s(3)
    assert sampling.rates()["published"] == 8 / 5
    # One of the same name is another one.
    client.ask(1, commands.Queue.Delete(queue="q"))
    declare(client, "q")
    assert sampling.rates() == {}
    # Of what closes, the totals keep what it has counted.
    sampling.pass_s(5)
    publish(client, "q", *[b"x"] * 10)
    client.ask(1, commands.Channel.Close(0, "", 0, 0))
    assert sampling.rates("overview-details")["published"] == 2.0


def test_what_a_start_has_found_has_not_come_just_now(world: DiskWorld, client: Client) -> None:
    declare(client, "q")
    publish(client, "q", *[b"x"] * 100)
    sampling = Sampling(world)
    assert sampling.rates() == {}
    sampling.pass_s(3)
    assert sampling.rates() == {}


def test_since_when_a_queue_is_idle(world: DiskWorld, client: Client) -> None:
    def since() -> int | None:
        [row] = listed(world, "queue-details", sampling.samples)
        found: int | None = row["idle_since_ms"]
        return found

    declare(client, "q")
    sampling = Sampling(world)
    began_ms = WALL_MS + int(world.now * 1000)
    sampling.pass_s(5)
    assert since() == began_ms
    publish(client, "q", b"x")
    assert since() is None
    sampling.pass_s(10)
    assert since() == began_ms + 10_000


def test_many_objects_are_sampled_in_several_turns_and_what_has_gone_is_forgotten(
    world: DiskWorld, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        declare(client, f"q{number}")
    monkeypatch.setattr(module, "AT_ONCE", 20)
    taken: list[Callable[[], None]] = []
    timers: list[float] = []
    samples = Samples(
        views_of(world),
        lambda: world.now,
        lambda: WALL_MS,
        taken.append,
        lambda after_s, _: timers.append(after_s),
    )
    samples.start()
    turns = 0
    while taken:
        assert not timers
        taken.pop(0)()
        turns += 1
    assert turns >= 50 // 20
    assert timers == [EVERY_S]
    before = samples.count
    for number in range(50):
        client.ask(1, commands.Queue.Delete(queue=f"q{number}"))
    samples.start()
    while taken:
        taken.pop(0)()
    assert samples.count == before - 50
