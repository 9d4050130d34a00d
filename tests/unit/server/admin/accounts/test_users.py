"""Users and permissions changed while the broker runs: in force at once, and there again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.admin.accounts.administrating import Administrator
from tests.unit.server.auth.accounts import logged_in
from tests.unit.server.in_memory import SETTINGS, World
from vouchmq.server.auth.authenticator import LoginError
from vouchmq.server.auth.passwords import SCRYPT, SHA256, hash_password

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


@pytest.fixture
def admin() -> Administrator:
    return Administrator()


class TestWhenItIsAnswered:
    """DURABLE-02: as a durable queue.declare is."""

    def test_not_before_it_is_synced(self, admin: Administrator) -> None:
        reader = admin.begin("put user", name="u", password="secret", tags=[])
        assert reader.facts is None
        admin.world.sync()
        assert reader.facts == {"ok": True, "created": True}

    def test_what_is_so_already_is_written_once(self, admin: Administrator) -> None:
        arguments = {"name": "u", "password_hash": "", "tags": ["a"]}
        admin.do("put user", **arguments)
        count = len(admin.world.calls.records)
        assert admin.do("put user", **arguments)["created"] is False
        assert len(admin.world.calls.records) == count

    def test_whoever_repeats_it_waits_for_the_same_record(self, admin: Administrator) -> None:
        first = admin.begin("put user", name="u", password_hash="", tags=[])
        second = admin.begin("put user", name="u", password_hash="", tags=[])
        assert (first.facts, second.facts) == (None, None)
        admin.world.sync()
        assert (first.facts, second.facts) == (
            {"ok": True, "created": True},
            {"ok": True, "created": False},
        )

    def test_an_error_when_the_disk_fails(self, admin: Administrator) -> None:
        reader = admin.begin("put user", name="u", password_hash="", tags=[])
        admin.world.disk.fail_next("sync", 5)
        admin.world.sync()
        assert reader.facts is not None
        assert reader.facts["error"] == "storage has failed"
        assert admin.ask("put user", name="v", password_hash="", tags=[])["code"] == 503

    def test_nothing_is_changed_while_the_disk_is_full(self, admin: Administrator) -> None:
        admin.world.runtime.alarms.storage_failed(0)
        assert admin.refused("put user", name="u", tags=[])[0] == 503
        assert "u" not in admin.world.runtime.broker.accounts.users


class TestUsers:
    """AUTH-02, AUTH-06, AUTH-07, HTTP-24."""

    def test_a_new_user_logs_in_after_a_restart(self, admin: Administrator) -> None:
        admin.do("put user", name="u", password="secret", tags=["b", "a", "b"])
        admin.do("put permissions", name="u", vhost="/", **EVERYTHING)
        for world in (admin.world, admin.restart().world):
            user = logged_in(world.auth, "u", "secret")
            assert (set(user.tags), user.may_enter("/")) == ({"a", "b"}, True)

    def test_what_is_not_given_stays(self, admin: Administrator) -> None:
        admin.do("put user", name="u", password="secret", tags=["a"])
        admin.do("put user-limit", name="u", limit="max-channels", value=3)
        admin.do("put user", name="u", tags=["b"])
        user = logged_in(admin.world.auth, "u", "secret")
        assert (set(user.tags), user.max_channels) == ({"b"}, 3)
        admin.do("put user", name="u", password="other")
        assert set(logged_in(admin.world.auth, "u", "other").tags) == {"b"}

    def test_hashes_of_rabbitmq_verify(self, admin: Administrator) -> None:
        hashed = hash_password("test12", SHA256, bytes).encoded()
        admin.do("put user", name="u", password_hash=hashed, tags=[])
        assert logged_in(admin.world.auth, "u", "test12").name == "u"

    def test_new_passwords_get_the_slow_hash(self) -> None:
        admin = Administrator(World(replace(SETTINGS, password_hashing_algorithm=SCRYPT)))
        admin.do("put user", name="slow", password="secret")
        admin.do("put user", name="fast", password="secret", hashing_algorithm=SHA256)
        users = admin.world.runtime.broker.accounts.users
        assert [users[name].hashing_algorithm for name in ("slow", "fast")] == [SCRYPT, SHA256]
        again = admin.restart()
        for name in ("slow", "fast"):
            assert logged_in(again.world.auth, name, "secret").name == name

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            ({"name": ""}, "name: must not be empty"),
            ({"name": "u", "password": ""}, "an empty password"),
            ({"name": "u", "password": "a", "password_hash": ""}, "a password or its hash"),
            ({"name": "u", "password_hash": "%"}, "is not base64"),
            ({"name": "u", "password": "a", "hashing_algorithm": "rot13"}, "unknown hashing"),
            (
                {"name": "u", "password": "a", "hashing_algorithm": "rabbit_password_hashing_md5"},
                "md5 is for existing hashes only",
            ),
        ],
    )
    def test_what_cannot_be_is_refused(
        self, admin: Administrator, arguments: dict[str, str], reason: str
    ) -> None:
        code, error = admin.refused("put user", **arguments)
        assert code == 400
        assert reason in error

    def test_a_deleted_user_is_sent_away(self, admin: Administrator) -> None:
        """CONN-56: what was theirs alone goes with their connections."""
        client, other = admin.world.connect(), admin.world.connect("other")
        client.open()
        client.declare("mine", exclusive=True)
        admin.do("delete user", name="guest")
        _, what = client.hear()[-1]
        assert isinstance(what, commands.Connection.Close)
        assert (what.reply_code, what.reply_text) == (
            320,
            "CONNECTION_FORCED - user 'guest' is deleted",
        )
        assert "mine" not in admin.world.vhost.queues
        assert other.hear() == []
        with pytest.raises(LoginError, match="no user 'guest'"):
            logged_in(admin.world.auth, "guest", "guest", is_loopback=True)
        assert admin.refused("delete user", name="guest")[0] == 404

    def test_limits_count_what_is_open(self, admin: Administrator) -> None:
        client = admin.world.connect()
        client.open(1)
        admin.do("put user-limit", name="guest", limit="max-channels", value=1)
        client.method(2, commands.Channel.Open())
        assert client.names() == ["Connection.Close"]
        client = admin.world.connect()
        admin.do("delete user-limit", name="guest", limit="max-channels")
        client.open(1)
        client.open(2)
        assert "Expected" not in str(
            admin.refused("put user-limit", name="nx", limit="max-channels", value=1)
        )
        assert admin.refused("put user-limit", name="guest", limit="max-x", value=1)[0] == 400


class TestPermissions:
    """AUTH-07, PERM-01, PERM-10, HTTP-25."""

    def test_taken_from_a_channel_that_publishes(self, admin: Administrator) -> None:
        client = admin.world.connect()
        client.open()
        client.declare("q")
        client.send(wire.publish(1, "q", b"a"))
        admin.do("put permissions", name="guest", vhost="/", configure="", write="^w", read=".*")
        client.send(wire.publish(1, "q", b"b"))
        _, what = client.hear()[-1]
        assert isinstance(what, commands.Channel.Close)
        assert what.reply_code == 403
        again = admin.restart().world
        assert not logged_in(again.auth, "other", "other").may("write", "x", "nowhere")

    def test_after_the_last_nobody_enters(self, admin: Administrator) -> None:
        admin.do("delete permissions", name="poor", vhost="/")
        assert not logged_in(admin.world.auth, "poor", "poor").may_enter("/")
        assert admin.refused("delete permissions", name="poor", vhost="/")[0] == 404

    def test_topic_permissions(self, admin: Administrator) -> None:
        place = {"name": "guest", "vhost": "/", "exchange": "amq.topic"}
        user = logged_in(admin.world.auth, "guest", "guest", is_loopback=True)
        admin.do("put topic-permissions", **place, write="^a", read="")
        assert not user.may_topic("write", "b", "amq.topic", "/")
        admin.do("put topic-permissions", **place | {"exchange": "y"}, write="^a", read="")
        admin.do("delete topic-permissions", **place)
        assert user.may_topic("write", "b", "amq.topic", "/")
        assert not user.may_topic("write", "b", "y", "/")
        admin.do("delete topic-permissions", name="guest", vhost="/")
        assert user.may_topic("write", "b", "y", "/")
        assert admin.refused("delete topic-permissions", name="guest", vhost="/")[0] == 404

    def test_of_nobody_and_nowhere_and_no_expressions_are_refused(
        self, admin: Administrator
    ) -> None:
        for changes, code in (({"name": "nx"}, 404), ({"vhost": "nx"}, 404), ({"read": "("}, 400)):
            arguments = {"name": "guest", "vhost": "/", **EVERYTHING} | changes
            assert admin.refused("put permissions", **arguments)[0] == code


class TestWhoMay:
    """HTTP-04: the broker itself asks, whatever the process in front of it has let pass."""

    @pytest.mark.parametrize("tags", [[], ["management"], ["monitoring"], ["policymaker"]])
    def test_users_are_for_administrators(self, admin: Administrator, tags: list[str]) -> None:
        admin.do("put user", name="guest", tags=tags)
        for command, arguments in (
            ("put user", {"name": "u"}),
            ("delete user", {"name": "other"}),
            ("put permissions", {"name": "guest", "vhost": "/", **EVERYTHING}),
            ("put vhost", {"name": "v"}),
            ("delete vhost", {"name": "/"}),
            ("put operator-policy", {"name": "p", "pattern": "", "definition": {"expires": 1}}),
            ("put global-parameter", {"name": "p", "value": 1}),
            ("import definitions", {"text": "{}"}),
            ("export definitions", {}),
        ):
            assert admin.refused(command, user="guest", **arguments)[0] == 401, command

    def test_an_administrator_may(self, admin: Administrator) -> None:
        admin.do("put user", name="guest", tags=["administrator"])
        assert admin.do("put user", user="guest", name="u")["created"] is True

    def test_a_policymaker_may_where_they_may_enter(self, admin: Administrator) -> None:
        admin.do("put user", name="guest", tags=["policymaker"])
        admin.do("put vhost", name="v")
        policy = {"name": "p", "pattern": "", "definition": {"max-length": 1}}
        admin.do("put policy", user="guest", vhost="/", **policy)
        assert admin.refused("put policy", user="guest", vhost="v", **policy)[0] == 401

    def test_a_deleted_administrator_may_not(self, admin: Administrator) -> None:
        admin.do("put user", name="boss", tags=["administrator"])
        admin.do("delete user", name="boss")
        assert admin.refused("put user", user="boss", name="u")[0] == 401
