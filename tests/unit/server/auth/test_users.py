"""Users: hashes that RabbitMQ's definitions carry, who gets in, and what a name's answer is."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable

import pytest

from vouchmq.protocol.errors import AccessRefused
from vouchmq.server.auth import users
from vouchmq.server.auth.users import CONSTRUCTORS, Authenticator, LoginError, User
from vouchmq.server.errors import SettingsError
from vouchmq.server.settings.accounts import TopicAccount, UserAccount

SALT = bytes.fromhex("908DC60A")
SHA256 = "rabbit_password_hashing_sha256"
# AUTH-03.
KNOWN_HASH = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"


def salted(count: int) -> bytes:
    """A salt that is no secret."""
    return SALT[:count]


def authenticator(*accounts: UserAccount, loopback_users: tuple[str, ...] = ()) -> Authenticator:
    """One that knows these accounts."""
    return Authenticator(accounts, loopback_users, salted)


def user(**values: str | tuple[str, ...]) -> User:
    """A user by the patterns of its account."""
    account = UserAccount("shop", password="x", **values)  # type: ignore[arg-type]
    found = authenticator(account).find("shop")
    assert found is not None
    return found


def stored(password: str, digest: str) -> str:
    """A hash as RabbitMQ stores it, made without our code."""
    octets = hashlib.new(digest, SALT + password.encode(), usedforsecurity=False).digest()
    return base64.b64encode(SALT + octets).decode()


def test_the_hash_of_the_specification_is_made() -> None:
    hashed = users.hash_password("test12", SALT, SHA256)
    assert base64.b64encode(hashed.salt + hashed.value).decode() == KNOWN_HASH


def test_the_hash_of_the_specification_lets_its_password_in() -> None:
    known = authenticator(UserAccount("shop", password_hash=KNOWN_HASH))
    assert known.log_in("shop", "test12", is_loopback=False).name == "shop"
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
    assert known.log_in("shop", "päss", is_loopback=False).name == "shop"
    with pytest.raises(LoginError):
        known.log_in("shop", "pass", is_loopback=False)


@pytest.mark.parametrize("algorithm", [SHA256, "rabbit_password_hashing_sha512"])
def test_a_password_that_is_no_utf8_can_be_used(algorithm: str) -> None:
    account = UserAccount("shop", password="\udcff", hashing_algorithm=algorithm)
    known = authenticator(account)
    assert known.log_in("shop", "\udcff", is_loopback=False).name == "shop"


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
    assert known.log_in("guest", "guest", is_loopback=True).name == "guest"


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


def test_patterns_are_searched_and_not_anchored() -> None:
    shop = user(configure="^shop", write="orders", read="shop$|^amq")
    assert shop.may("configure", "shop.orders", "/")
    assert not shop.may("configure", "my.shop", "/")
    assert shop.may("write", "shop.orders.new", "/")
    assert shop.may("read", "my.shop", "/")
    assert shop.may("read", "amq.gen-x", "/")
    assert not shop.may("read", "shop.orders", "/")


def test_an_empty_pattern_is_the_empty_name_only() -> None:
    shop = user(configure="", write="", read="")
    for permission in ("configure", "write", "read"):
        assert not shop.may(permission, "orders", "/")
        assert shop.may(permission, "", "/")


@pytest.mark.parametrize(
    ("pattern", "name", "verdict"),
    [
        ("(?i)^ORDERS", "orders", True),
        ("^amq\\.gen.*", "amq.gen-1", True),
        ("^(a|b)[0-9]+?$", "b12", True),
        ("^[[:alpha:]]+$", "orders", True),
        ("^[[:alpha:]]+$", "orders1", False),
        ("^((?!secret).)*$", "my.secret", False),
        ("^\\w+$", "grün", True),
    ],
)
def test_what_definitions_contain_works(pattern: str, name: str, verdict: bool) -> None:
    assert user(read=pattern).may("read", name, "/") is verdict


def test_a_pattern_that_takes_too_long_denies() -> None:
    shop = user(read="^(a|aa)+$")
    assert not shop.may("read", "a" * 200 + "b", "/")
    assert shop.may("read", "aaa", "/")


def test_a_search_that_ran_out_of_time_is_no_verdict_to_remember() -> None:
    shop = user(read="^(orders|bills)$")
    pattern = shop._grants["/"].read
    real = pattern._engine

    class Stalled:
        def search(self, name: str, timeout: float) -> object:
            raise TimeoutError("regex timed out")

    pattern._engine = Stalled()  # type: ignore[assignment]
    assert not shop.may("read", "orders", "/")
    pattern._engine = real
    assert shop.may("read", "orders", "/")


def test_guest_needs_no_clock() -> None:
    guest = user()

    class Stalled:
        def search(self, name: str, timeout: float) -> object:
            raise TimeoutError("regex timed out")

    guest._grants["/"].read._engine = Stalled()  # type: ignore[assignment]
    assert all(guest.may("read", f"queue-{number}", "/") for number in range(100))


def test_another_vhost_is_another_matter() -> None:
    shop = user(vhosts=("shop",))
    assert shop.may_enter("shop")
    assert not shop.may_enter("/")
    assert shop.may("read", "orders", "shop")
    assert not shop.may("read", "orders", "/")


def test_patterns_that_match_nothing_still_open_the_vhost() -> None:
    assert user(configure="", write="", read="").may_enter("/")


@pytest.mark.parametrize("permission", ["configure", "write", "read"])
def test_a_refusal_names_permission_resource_and_user(permission: users.Permission) -> None:
    shop = user(**{permission: "^mine"})
    shop.require(permission, "queue", "mine", "/")
    with pytest.raises(AccessRefused) as caught:
        shop.require(permission, "exchange", "yours", "/")
    assert caught.value.reply_text == (
        f"ACCESS_REFUSED - {permission} access to exchange 'yours' in vhost '/' "
        "refused for user 'shop'"
    )


@pytest.mark.parametrize("permission", ["configure", "write", "read"])
def test_any_permission_is_enough_to_look(permission: str) -> None:
    patterns = dict.fromkeys(("configure", "write", "read"), "") | {permission: "^mine$"}
    shop = user(**patterns)
    shop.require_any("queue", "mine", "/")
    with pytest.raises(AccessRefused, match="configure access to queue 'yours' in vhost '/'"):
        shop.require_any("queue", "yours", "/")


def test_topic_permissions_judge_keys_of_their_exchange_only() -> None:
    """PERM-10."""
    user = users.User("u")
    user.permit_topics("/", "amq.topic", r"^open\.", "")
    user.require_topic("write", "open.x", "amq.topic", "/")
    user.require_topic("write", "closed", "amq.topic", "other vhost")
    user.require_topic("write", "closed", "another", "/")
    text = (
        "ACCESS_REFUSED - write access to topic 'closed' in exchange 'amq.topic' in vhost '/' "
        "refused for user 'u'"
    )
    with pytest.raises(AccessRefused) as refused:
        user.require_topic("write", "closed", "amq.topic", "/")
    assert refused.value.reply_text == text
    with pytest.raises(AccessRefused, match=r"read access to topic 'open\.x'"):
        user.require_topic("read", "open.x", "amq.topic", "/")


def test_names_in_topic_patterns_are_taken_literally() -> None:
    """PERM-10."""
    user = users.User("a.b")
    user.permit_topics("v+", "t", r"^{username}\.{vhost}$", ".*")
    user.require_topic("write", "a.b.v+", "t", "v+")
    for key in ("axb.v+", "a.b.vv", "a.b.v+."):
        with pytest.raises(AccessRefused):
            user.require_topic("write", key, "t", "v+")


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


def test_a_topic_pattern_that_is_none_changes_nothing() -> None:
    user = users.User("u")
    with pytest.raises(ValueError, match="not a regular expression"):
        user.permit_topics("/", "t", "(", ".*")
    user.require_topic("write", "any", "t", "/")


def test_verdicts_are_remembered_but_not_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "CACHE_SIZE", 8)
    shop = user(read="^even")
    searches: list[str] = []
    search = User._search

    def counted(self: User, permission: users.Permission, name: str, vhost: str) -> bool | None:
        searches.append(name)
        return search(self, permission, name, vhost)

    monkeypatch.setattr(User, "_search", counted)
    assert shop.may("read", "even", "/")
    assert shop.may("read", "even", "/")
    assert searches == ["even"]
    for number in range(20):
        assert not shop.may("read", f"odd{number}", "/")
        assert len(shop._verdicts) <= 8
    assert shop.may("read", "even", "/")


def test_only_the_tag_impersonator_speaks_for_others() -> None:
    assert user(tags=("impersonator", "own")).is_impersonator
    assert not user(tags=("administrator",)).is_impersonator
    assert user(tags=("impersonator", "own")).tags == {"impersonator", "own"}


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
    assert users.is_loopback(host) is verdict
