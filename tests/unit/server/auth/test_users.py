"""What a name's answer is: permissions, topic permissions, tags."""

from __future__ import annotations

import pytest

from tests.unit.server.auth.accounts import authenticator_of
from vouchmq.protocol.errors import AccessRefused
from vouchmq.server.auth import users
from vouchmq.server.auth.users import User
from vouchmq.server.settings.accounts import UserAccount


def user(**values: str | tuple[str, ...]) -> User:
    """A user by the patterns of its account."""
    account = UserAccount("shop", password="x", **values)  # type: ignore[arg-type]
    found = authenticator_of([account]).find("shop")
    assert found is not None
    return found


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
