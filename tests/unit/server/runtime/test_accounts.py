"""Users across restarts: what the configuration says of them, and what was changed meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from tests.simulation.sim_disk import SimDisk
from tests.unit.server.auth.accounts import logged_in
from tests.unit.server.in_memory import SETTINGS
from vouchmq.server.auth.authenticator import LoginError
from vouchmq.server.runtime import runtime
from vouchmq.server.runtime.runtime import BrokerRuntime, Host, start_broker
from vouchmq.server.settings.accounts import TopicAccount, UserAccount, VHostAccount
from vouchmq.server.settings.settings import Settings
from vouchmq.store.sync.worker import SyncInline


class Broker:
    """One start on a disk; `stop` leaves what is synced."""

    def __init__(self, disk: SimDisk, settings: Settings = SETTINGS, start: int = 0) -> None:
        self.disk = disk
        self.scheduled: list[object] = []
        numbers = iter(range(start * 1000, start * 1000 + 1000))
        self.runtime: BrokerRuntime = start_broker(
            settings,
            disk,
            SyncInline(),
            Host(
                call_soon=self.scheduled.append,
                clock=lambda: 0.0,
                wall_ms=lambda: 0,
                random_token=lambda: f"token{next(numbers):017d}",
                fatal=lambda _: None,
            ),
        )
        self.auth = self.runtime.authenticator
        self.vhosts = self.runtime.broker.vhosts

    def names(self) -> list[str]:
        return list(self.runtime.broker.accounts.users)

    def restart(self, settings: Settings = SETTINGS, start: int = 1) -> Broker:
        """Sync, end and start again."""
        self.runtime.turn.run()
        while not self.runtime.commit.is_idle:
            self.runtime.commit.on_readable()
            self.runtime.turn.run()
        self.runtime.close()
        self.disk.crash(start)
        return Broker(self.disk, settings, start)


def test_the_first_start_makes_the_default_user() -> None:
    """AUTH-01."""
    broker = Broker(SimDisk())
    guest = logged_in(broker.auth, "guest", "guest", is_loopback=True)
    assert (set(guest.tags), guest.may_enter("/")) == ({"administrator"}, True)
    with pytest.raises(LoginError, match="loopback_users"):
        logged_in(broker.auth, "guest", "guest")


def test_the_default_user_stays_deleted() -> None:
    """AUTH-01."""
    broker = Broker(SimDisk())
    broker.auth.delete("guest")
    again = broker.restart()
    assert again.names() == []
    assert again.restart(start=2).names() == []


def test_the_default_user_is_made_once_whatever_it_is_called_then() -> None:
    broker = Broker(SimDisk())
    again = broker.restart(replace(SETTINGS, default_user="theirs", default_pass="new"))
    assert again.names() == ["guest"]
    assert logged_in(again.auth, "guest", "guest", is_loopback=True).name == "guest"


def test_a_default_user_who_is_not_made_is_told() -> None:
    """Or whoever changes the variable of an image would look for the fault elsewhere."""
    broker = Broker(SimDisk())
    settings = replace(SETTINGS, default_user="theirs")
    with capture_logs() as logs:
        again = broker.restart(settings)
        again.auth.put(UserAccount("theirs", password="x"))
    assert [each["user"] for each in logs if each["event"] == "users.default_unused"] == ["theirs"]
    with capture_logs() as logs:
        again.restart(settings, start=2)
    assert [each for each in logs if each["event"] == "users.default_unused"] == []


def test_with_users_in_the_configuration_there_is_no_default_one() -> None:
    settings = replace(SETTINGS, users=(UserAccount("shop", password="x"),))
    broker = Broker(SimDisk(), settings)
    assert broker.names() == ["shop"]
    # Nor is it made when the configuration names none any more.
    assert broker.restart().names() == ["shop"]


def test_what_was_changed_while_it_ran_is_there_again() -> None:
    broker = Broker(SimDisk())
    vhost = broker.runtime.broker.create_vhost("v")[0]
    broker.runtime.broker.put_vhost(replace(vhost.settings(), tags=["a"], max_queues=3))
    account = UserAccount("new", password="secret", tags=("impersonator",), max_channels=2)
    broker.auth.put(account)
    broker.auth.permit("new", "v", "", "^w", "")
    broker.auth.permit_topics("new", "v", "t", "^{username}", "")
    broker.auth.forbid("guest", "/")
    again = broker.restart()
    user = logged_in(again.auth, "new", "secret")
    assert (user.is_impersonator, user.max_channels) == (True, 2)
    assert user.may("write", "well", "v")
    assert not user.may("read", "well", "v")
    assert user.may_topic("write", "new.x", "t", "v")
    assert not user.may_topic("write", "x", "t", "v")
    assert not logged_in(again.auth, "guest", "guest", is_loopback=True).may_enter("/")
    assert (again.vhosts["v"].tags, again.vhosts["v"].queue_limit) == (["a"], 3)


def test_the_configuration_overwrites_what_it_names() -> None:
    topic = TopicAccount(exchange="t", write="^a")
    settings = replace(
        SETTINGS,
        users=(UserAccount("shop", password="x", tags=("old",), topic_permissions=(topic,)),),
        vhosts=(VHostAccount("/", max_queues=5), VHostAccount("v", default_queue_type="quorum")),
    )
    broker = Broker(SimDisk(), settings)
    broker.auth.put(UserAccount("shop", password="changed", tags=("new",), max_channels=7))
    broker.auth.permit("shop", "/", "", "", "")
    broker.auth.permit("shop", "v", "a", "b", "c")
    broker.runtime.broker.put_vhost(broker.vhosts["/"].settings().limited(max_queues=1))
    broker.runtime.broker.put_vhost(broker.vhosts["/"].settings().limited(max_connections=9))
    again = broker.restart(
        replace(settings, users=(UserAccount("shop", password="x", max_channels=1),))
    )
    user = logged_in(again.auth, "shop", "x")
    # Tags are not named any more, and the permissions of `v` never were.
    assert (set(user.tags), user.max_channels) == ({"new"}, 1)
    assert user.may("read", "any", "/")
    assert user.may("read", "c", "v")
    assert not user.may("read", "d", "v")
    assert not user.may_topic("write", "b", "t", "/")
    assert (again.vhosts["/"].queue_limit, again.vhosts["/"].connection_limit) == (5, 9)
    assert again.vhosts["v"].default_queue_type == "quorum"


def test_a_start_that_changes_nothing_writes_no_record_of_a_user() -> None:
    settings = replace(SETTINGS, users=(UserAccount("shop", password="x"),))
    broker = Broker(SimDisk(), settings)
    again = broker.restart(settings)
    assert again.runtime.broker.accounts.defined_lsn == 0


def test_a_directory_of_an_older_broker_gets_its_default_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has virtual hosts and no word of users."""
    with monkeypatch.context() as patched:
        patched.setattr(runtime, "seed_users", lambda *_: None)
        broker = Broker(SimDisk())
        assert broker.names() == []
    again = broker.restart()
    assert again.names() == ["guest"]
    again.auth.delete("guest")
    assert again.restart(start=2).names() == []
