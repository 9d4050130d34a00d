"""Passwords that are guessed: how many are looked at, who else is let in, what is kept."""

from __future__ import annotations

import pytest

from tests.unit.server.auth.accounts import authenticator_of
from vouchmq.server.auth import failed_logins
from vouchmq.server.auth.authenticator import LoginError, UncheckedLogin
from vouchmq.server.auth.failed_logins import FailedLogins, network_of
from vouchmq.server.settings.accounts import UserAccount

HERE, THERE = "10.0.0.1", "10.0.0.2"


class World:
    """Two users, and a clock that stands."""

    def __init__(self, most: int = 20) -> None:
        self.now = 1000.0
        accounts = [UserAccount("shop", password="right"), UserAccount("bank", password="right")]
        self.failures = FailedLogins(most, 60, lambda: self.now)
        self.auth = authenticator_of(accounts, failures=self.failures)

    def log_in(self, name: str, password: str, address: str = HERE) -> str:
        """ "in", "wrong", or "unchecked"."""
        try:
            self.auth.log_in(name, password, is_loopback=False, address=address)
        except UncheckedLogin:
            return "unchecked"
        except LoginError:
            return "wrong"
        return "in"

    def guess(self, name: str, count: int = 500, address: str = HERE) -> int:
        """How many of so many wrong passwords are looked at."""
        return [self.log_in(name, "wrong", address) for _ in range(count)].count("wrong")


def test_of_many_guesses_few_are_looked_at() -> None:
    world = World()
    assert world.guess("shop") == 20
    # Not even the right one, for that would tell which it is.
    assert world.log_in("shop", "right") == "unchecked"


def test_other_users_and_other_addresses_are_let_in() -> None:
    world = World()
    world.guess("shop")
    world.guess("nobody")
    assert world.log_in("bank", "right") == "in"
    assert world.log_in("shop", "right", THERE) == "in"


def test_one_more_is_tried_as_time_goes_by() -> None:
    world = World()
    world.guess("shop")
    world.now += 2.9
    assert world.guess("shop", 3) == 0
    world.now += 0.2
    assert world.guess("shop", 3) == 1
    world.now += 3.1
    assert world.log_in("shop", "right") == "in"
    world.now += 60
    assert world.guess("shop") == 20


def test_failures_now_and_then_and_right_passwords_are_no_matter() -> None:
    world = World()
    for _ in range(1000):
        assert world.log_in("shop", "right") == "in"
        assert world.log_in("shop", "wrong") == "wrong"
        world.now += 3.1


def test_names_that_nobody_has_count_together() -> None:
    world = World()
    seen = [world.log_in(f"nobody{number}", "x") for number in range(500)]
    assert seen.count("wrong") == 20
    assert len(world.failures._buckets) == 1


def test_buckets_are_bounded_and_the_quiet_ones_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_logins, "MOST_BUCKETS", 10)
    world = World(most=5)
    world.guess("shop")
    for number in range(1000):
        world.log_in("shop", "wrong", f"10.1.{number // 250}.{number % 250}")
        assert world.guess("bank", 1) in {0, 1}
        assert len(world.failures._buckets) <= 10
    # One that goes on is kept.
    assert world.log_in("bank", "right") == "unchecked"


def test_it_can_be_switched_off() -> None:
    world = World(most=0)
    assert world.guess("shop") == 500
    assert world.log_in("shop", "right") == "in"
    assert not world.failures._buckets


def test_the_log_is_told_once_when_it_begins() -> None:
    world = World()
    told = []
    for _ in range(500):
        with pytest.raises(LoginError) as caught:
            world.auth.log_in("shop", "wrong", is_loopback=False, address=HERE)
        told += [str(caught.value)] * caught.value.is_told
    assert len(told) == 20
    assert [number for number, text in enumerate(told) if "too many" in text] == [19]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_an_address_of_ipv6_is_its_network(address: str, network: str) -> None:
    assert network_of(address) == network
