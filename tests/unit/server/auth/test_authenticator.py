"""Who gets in, by hashes that RabbitMQ's definitions carry and by slow ones, and what changes."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.unit.server.auth.accounts import authenticator_of, logged_in
from vouchmq.server.auth.authenticator import (
    Authenticator,
    LoginError,
    Outcome,
    UncheckedLogin,
    is_loopback,
)
from vouchmq.server.auth.failed_logins import FailedLogins
from vouchmq.server.auth.passwords import CONSTRUCTORS, SCRYPT, SHA256, PasswordHash
from vouchmq.server.auth.slow_checks import MOST_WAITING, SlowChecks
from vouchmq.server.errors import SettingsError
from vouchmq.server.settings.accounts import TopicAccount, UserAccount

T = TypeVar("T")
SALT = bytes.fromhex("908DC60A")
# AUTH-03.
KNOWN_HASH = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"


def stored(password: str, digest: str) -> str:
    """A hash as RabbitMQ stores it, made without our code."""
    octets = hashlib.new(digest, SALT + password.encode(), usedforsecurity=False).digest()
    return base64.b64encode(SALT + octets).decode()


def authenticator(*accounts: UserAccount, loopback_users: tuple[str, ...] = ()) -> Authenticator:
    """One that knows these accounts."""
    return authenticator_of(accounts, loopback_users, salted)


def salted(count: int) -> bytes:
    """A salt that is no secret."""
    return SALT[:count]


def test_the_hash_of_the_specification_lets_its_password_in() -> None:
    known = authenticator(UserAccount("shop", password_hash=KNOWN_HASH))
    assert logged_in(known, "shop", "test12", is_loopback=False).name == "shop"
    with pytest.raises(LoginError, match="wrong password"):
        known.log_in("shop", "test13", is_loopback=False)


@pytest.mark.parametrize("digest", ["sha256", "sha512", "md5"])
def test_hashes_of_every_algorithm_verify(digest: str) -> None:
    account = UserAccount(
        "shop",
        password_hash=stored("päss", digest),
        hashing_algorithm=f"rabbit_password_hashing_{digest}",
    )
    known = authenticator(account)
    assert logged_in(known, "shop", "päss", is_loopback=False).name == "shop"
    with pytest.raises(LoginError):
        known.log_in("shop", "pass", is_loopback=False)


@pytest.mark.parametrize("algorithm", [SHA256, "rabbit_password_hashing_sha512"])
def test_a_password_that_is_no_utf8_can_be_used(algorithm: str) -> None:
    account = UserAccount("shop", password="\udcff", hashing_algorithm=algorithm)
    known = authenticator(account)
    assert logged_in(known, "shop", "\udcff", is_loopback=False).name == "shop"


@pytest.mark.parametrize(
    ("account", "reason"),
    [
        (UserAccount("a", password_hash="%%%"), "password_hash is not base64"),
        (UserAccount("a", password_hash="AAAA"), f"password_hash is not one of {SHA256}"),
        (UserAccount("a", password_hash=stored("x", "md5")), "password_hash is not one of"),
        (UserAccount("a", password="x", hashing_algorithm="rot13"), "unknown hashing_algorithm"),
        (UserAccount("a", password_hash="AA", hashing_algorithm="rot13"), "unknown hashing_alg"),
        (
            UserAccount("a", password="x", hashing_algorithm="rabbit_password_hashing_md5"),
            "md5 is for existing hashes only",
        ),
        (UserAccount("a", password="x", read="("), r"'\(' is not a regular expression"),
    ],
)
def test_an_account_that_cannot_work_stops_the_start(account: UserAccount, reason: str) -> None:
    with pytest.raises(SettingsError, match=f"users: 'a': .*{reason}"):
        authenticator(account)


@pytest.mark.parametrize(
    ("name", "password", "reason"),
    [
        ("nobody", "secret", "no user 'nobody'"),
        ("shop", "wrong", "wrong password for user 'shop'"),
        ("shop", "", "wrong password for user 'shop'"),
        ("passwordless", "", "user 'passwordless' has no password"),
        ("passwordless", "anything", "user 'passwordless' has no password"),
        # The hash of an empty password, correctly given: never (CONN-21).
        ("empty", "", "wrong password for user 'empty'"),
        ("guest", "guest", "user 'guest' may log in only from the broker's machine"),
        ("guest", "wrong", "wrong password for user 'guest'"),
    ],
)
def test_a_denied_login_says_why(name: str, password: str, reason: str) -> None:
    known = authenticator(
        UserAccount("shop", password="secret"),
        UserAccount("passwordless"),
        UserAccount("empty", password_hash=stored("", "sha256")),
        UserAccount("guest", password="guest"),
        loopback_users=("guest",),
    )
    with pytest.raises(LoginError, match=reason):
        known.log_in(name, password, is_loopback=False)


def test_a_loopback_user_gets_in_from_this_machine() -> None:
    known = authenticator(UserAccount("guest", password="guest"), loopback_users=("guest",))
    assert logged_in(known, "guest", "guest", is_loopback=True).name == "guest"


@pytest.mark.parametrize("name", ["shop", "nobody", "passwordless"])
def test_every_login_costs_one_hash_and_one_constant_time_comparison(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = authenticator(UserAccount("shop", password="secret"), UserAccount("passwordless"))
    calls: list[str] = []

    def counted(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            calls.append(name)
            return function(*args, **kwargs)

        return call

    monkeypatch.setitem(CONSTRUCTORS, "sha256", counted("hash", hashlib.sha256))
    monkeypatch.setattr(hmac, "compare_digest", counted("compare", hmac.compare_digest))
    with pytest.raises(LoginError):
        known.log_in(name, "wrong", is_loopback=True)
    assert calls == ["hash", "compare"]


def test_topic_permissions_of_an_account_are_in_force() -> None:
    """PERM-10."""
    topic = TopicAccount(exchange="t", write=r"^{username}\.")
    found = authenticator(UserAccount("u", topic_permissions=(topic,))).find("u")
    assert found is not None
    assert found.may_topic("write", "u.x", "t", "/")
    assert not found.may_topic("write", "x", "t", "/")
    assert found.may_topic("read", "x", "t", "/")
    assert found.may_topic("write", "x", "another", "/")


def test_a_topic_pattern_of_an_account_that_is_none_is_one_line() -> None:
    account = UserAccount("u", topic_permissions=(TopicAccount(exchange="t", read="("),))
    with pytest.raises(SettingsError, match=r"users: 'u': '\(' is not a regular expression"):
        authenticator(account)


def test_whom_a_certificate_proves_needs_no_password() -> None:
    """CONN-18, TLS-20, AUTH-08."""
    known = authenticator(UserAccount("u"), UserAccount("here"), loopback_users=("here",))
    assert known.admit("u", is_loopback=False).name == "u"
    assert known.admit("here", is_loopback=True).name == "here"
    for name, reason in (
        ("", "the certificate has no name"),
        ("nobody", "no user 'nobody'"),
        ("here", "only from the broker's machine"),
    ):
        with pytest.raises(LoginError, match=reason):
            known.admit(name, is_loopback=False)


@pytest.mark.parametrize(
    ("host", "verdict"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("localhost.example", False),
    ],
)
def test_loopback_addresses(host: str, verdict: bool) -> None:
    assert is_loopback(host) is verdict


class Elsewhere:
    """A thread that computes when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []
        self.computed = 0

    def __call__(self, job: Callable[[], T], done: Callable[[T], None], /) -> None:
        self.jobs.append(lambda: done(job()))

    def run(self) -> None:
        """Compute until nobody asks any more."""
        while self.jobs:
            self.computed += 1
            self.jobs.pop(0)()


SLOW = UserAccount("slow", password="secret", hashing_algorithm=SCRYPT)
FAST = UserAccount("fast", password="secret")


class TestSlowHashes:
    """AUTH-02: nobody waits for one, and a password that was right is known the next time."""

    def setup_method(self) -> None:
        self.elsewhere = Elsewhere()
        self.failures = FailedLogins(3, 60, lambda: 0.0)
        self.known = authenticator_of(
            [SLOW, FAST],
            failures=self.failures,
            checks=SlowChecks(self.elsewhere),
            algorithm=SCRYPT,
        )
        self.outcomes: list[Outcome] = []

    def log_in(self, name: str, password: str, *, is_wanted: bool = True) -> str:
        """The name, or that it is not known yet."""
        user = self.known.log_in(
            name,
            password,
            is_loopback=True,
            address="10.0.0.1",
            done=self.outcomes.append,
            is_wanted=lambda: is_wanted,
        )
        return user.name if user is not None else "waits"

    def said(self) -> list[str]:
        """What has come of those that waited."""
        self.elsewhere.run()
        found, self.outcomes[:] = list(self.outcomes), []
        return [str(each) if isinstance(each, LoginError) else each.name for each in found]

    def test_a_password_is_checked_elsewhere_once(self) -> None:
        assert self.log_in("slow", "secret") == "waits"
        assert self.outcomes == []
        assert self.said() == ["slow"]
        assert self.log_in("slow", "secret") == "slow"
        assert self.elsewhere.computed == 1

    def test_those_who_wait_for_the_same_are_let_in_by_the_first(self) -> None:
        assert [self.log_in("slow", "secret") for _ in range(50)] == ["waits"] * 50
        assert self.said() == ["slow"] * 50
        assert self.elsewhere.computed == 1

    def test_a_wrong_password_is_wrong_each_time(self) -> None:
        for _ in range(2):
            assert self.log_in("slow", "guess") == "waits"
            assert self.said() == ["wrong password for user 'slow'"]
        assert self.elsewhere.computed == 2

    def test_a_full_bucket_ends_those_that_wait(self) -> None:
        """AUTH-10: however many have been asked for before the first was known to be wrong."""
        for _ in range(10):
            self.log_in("slow", "guess")
        said = self.said()
        assert self.elsewhere.computed == 3
        assert said[3:] == ["too many failed logins of 'slow'"] * 7

    @pytest.mark.parametrize("name", ["fast", "nobody"])
    def test_a_failed_login_costs_the_same_whoever_it_is_of(self, name: str) -> None:
        """CONN-22."""
        assert self.log_in(name, "guess") == "waits"
        assert len(self.said()) == 1
        assert self.elsewhere.computed == 1

    def test_an_empty_password_gets_nobody_in(self) -> None:
        for name in ("slow", "fast", "nobody"):
            assert self.log_in(name, "") == "waits"
        assert [each.split()[0] for each in self.said()] == ["wrong", "wrong", "no"]

    def test_a_fast_hash_that_matches_waits_for_nobody(self) -> None:
        assert self.log_in("fast", "secret") == "fast"

    def test_a_password_that_has_changed_is_asked_for_anew(self) -> None:
        self.log_in("slow", "secret")
        assert self.said() == ["slow"]
        self.known.put(UserAccount("slow", password="other", hashing_algorithm=SCRYPT))
        assert self.log_in("slow", "secret") == "waits"
        assert self.said() == ["wrong password for user 'slow'"]
        assert self.log_in("slow", "other") == "waits"
        assert self.said() == ["slow"]

    def test_a_password_that_changes_meanwhile_lets_nobody_in(self) -> None:
        self.log_in("slow", "secret")
        self.known.put(UserAccount("slow", password="other"))
        assert self.said() == ["wrong password for user 'slow'"]

    def test_a_user_who_is_deleted_meanwhile_is_not_let_in(self) -> None:
        self.log_in("slow", "secret")
        self.known.delete("slow")
        assert self.said() == ["no user 'slow'"]

    def test_nothing_is_computed_for_who_has_gone(self) -> None:
        self.log_in("fast", "guess")
        self.log_in("slow", "secret", is_wanted=False)
        assert len(self.said()) == 1
        assert self.elsewhere.computed == 1

    def test_only_so_many_may_wait(self) -> None:
        self.log_in("slow", "secret")
        for _ in range(MOST_WAITING):
            self.log_in("slow", "secret")
        with pytest.raises(UncheckedLogin, match="too many logins wait"):
            self.log_in("slow", "secret")

    def test_without_a_thread_it_is_computed_at_once(self) -> None:
        known = authenticator_of([SLOW])
        assert logged_in(known, "slow", "secret").name == "slow"
        with pytest.raises(LoginError):
            logged_in(known, "slow", "guess")


class TestChanges:
    """AUTH-07: in force at once, for whoever is connected too."""

    def test_permissions_come_and_go(self) -> None:
        known = authenticator(FAST)
        user = logged_in(known, "fast", "secret")
        known.permit("fast", "v", "^c", "^w", "^r")
        assert user.may_enter("v")
        assert user.may("write", "w", "v")
        assert not user.may("write", "r", "v")
        known.permit("fast", "v", "", "^r", "")
        assert user.may("write", "r", "v")
        known.forbid("fast", "v")
        assert not user.may_enter("v")
        assert not user.may("write", "r", "v")

    def test_topic_permissions_come_and_go(self) -> None:
        known = authenticator(FAST)
        user = logged_in(known, "fast", "secret")
        known.permit_topics("fast", "/", "t", "^a", "^b")
        assert not user.may_topic("write", "b", "t", "/")
        known.forbid_topics("fast", "/", "t")
        assert user.may_topic("write", "b", "t", "/")

    def test_tags_and_limits(self) -> None:
        known = authenticator(FAST)
        user = logged_in(known, "fast", "secret")
        known.put(UserAccount("fast", password="secret", tags=("impersonator",), max_channels=3))
        assert (user.is_impersonator, user.max_channels, user.max_connections) == (True, 3, -1)
        # What is not given stays.
        known.put(UserAccount("fast", password="other", max_connections=-7))
        assert (user.is_impersonator, user.max_channels, user.max_connections) == (True, 3, -1)
        assert logged_in(known, "fast", "other") is user

    def test_a_deleted_user_may_nothing(self) -> None:
        known = authenticator(FAST)
        user = logged_in(known, "fast", "secret")
        known.delete("fast")
        assert not user.may_enter("/")
        assert not user.may("read", "q", "/")
        with pytest.raises(LoginError, match="no user 'fast'"):
            logged_in(known, "fast", "secret")
        known.delete("fast")
        # Whoever comes back under that name is somebody else.
        known.put(FAST)
        assert not logged_in(known, "fast", "secret").may_enter("/")
        assert not user.may_enter("/")

    def test_a_vhost_that_comes_again_is_another_one(self) -> None:
        known = authenticator(FAST)
        user = logged_in(known, "fast", "secret")
        known.permit_topics("fast", "/", "t", "^a", "^b")
        known.accounts.forget_vhost("/")
        known.forget_vhost("/")
        assert not user.may_enter("/")
        known.permit("fast", "/", ".*", ".*", ".*")
        assert user.may_topic("write", "b", "t", "/")

    def test_a_pattern_that_is_none_changes_nothing(self) -> None:
        known = authenticator(FAST)
        with pytest.raises(ValueError, match="not a regular expression"):
            known.permit("fast", "/", "(", "", "")
        with pytest.raises(ValueError, match="not a regular expression"):
            known.permit_topics("fast", "/", "t", "(", "")
        assert known.accounts.permissions["fast"]["/"].configure == ".*"
        assert known.accounts.topic_permissions == {}

    def test_the_configuration_changes_nothing_where_it_is_so_already(self) -> None:
        """Or each start would write a record for each user."""
        known = authenticator_of([FAST], random_bytes=lambda count: bytes(range(count)))
        before = known.accounts.records()
        other = authenticator_of([FAST])
        known.seed(FAST)
        assert known.accounts.records() == before
        # With the salt of another directory it is the same password all the same.
        for record in other.accounts.users.values():
            known.put_record(record)
        known.seed(FAST)
        assert known.accounts.users == other.accounts.users


def test_a_hash_is_shown_nowhere() -> None:
    known = authenticator(FAST)
    hashed = known.accounts.users["fast"].password_hash
    assert hashed
    assert hashed not in repr(known.accounts.users)
    assert isinstance(known.hash_of("fast"), PasswordHash)
