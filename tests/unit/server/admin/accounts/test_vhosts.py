"""Virtual hosts made, limited and deleted while the broker runs."""

from __future__ import annotations

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.admin.accounts.administrating import Administrator
from vouchmq.protocol.errors import NotAllowed


@pytest.fixture
def admin() -> Administrator:
    return Administrator()


def test_settings_are_there_after_a_restart(admin: Administrator) -> None:
    """VHOST-03, VHOST-04."""
    settings = {
        "description": "for tests",
        "tags": ["a"],
        "default_queue_type": "quorum",
        "protected_from_deletion": True,
    }
    assert admin.do("put vhost", name="v", **settings)["created"] is True
    admin.do("put vhost-limit", name="v", limit="max-queues", value=3)
    admin.do("put vhost-limit", name="v", limit="max-connections", value=0)
    assert admin.do("put vhost", name="v", tags=["b"])["created"] is False
    for world in (admin.world, admin.restart().world):
        vhost = world.broker.vhosts["v"]
        assert (vhost.description, vhost.tags, vhost.is_protected) == ("for tests", ["b"], True)
        assert vhost.default_queue_type == "quorum"
        assert (vhost.queue_limit, vhost.connection_limit) == (3, 0)
    admin.do("delete vhost-limit", name="v", limit="max-queues")
    assert admin.world.broker.vhosts["v"].queue_limit is None


def test_who_makes_one_may_use_it(admin: Administrator) -> None:
    """VHOST-02."""
    admin.do("put user", name="guest", tags=["administrator"])
    admin.do("put vhost", name="v", user="guest")
    user = admin.world.auth.find("guest")
    assert user is not None
    assert user.may("configure", "anything", "v")
    # Not who changes one.
    admin.do("put vhost", name="w")
    admin.do("put vhost", name="w", user="guest", tags=["x"])
    assert not user.may_enter("w")


def test_a_limit_counts_what_is_open(admin: Administrator) -> None:
    """CONN-42."""
    admin.world.connect()
    admin.do("put vhost-limit", name="/", limit="max-connections", value=1)
    vhost = admin.world.vhost
    with pytest.raises(NotAllowed):
        admin.world.connection_limits.check_vhost("/", "guest", vhost.connection_limit)


class TestDeletion:
    """VHOST-05, CONN-56."""

    def test_all_of_it_is_gone(self, admin: Administrator) -> None:
        client = admin.world.connect()
        client.open()
        client.declare("q", durable=True)
        client.declare("mine", exclusive=True)
        client.send(wire.publish(1, "q", b"a"))
        admin.world.sync()
        policy = {"name": "p", "pattern": "", "definition": {"max-length": 9}}
        admin.do("put policy", vhost="/", **policy)
        admin.do("put parameter", vhost="/", component="c", name="n", value=1)
        vhost = admin.world.vhost
        admin.do("delete vhost", name="/")
        _, what = client.hear()[-1]
        assert isinstance(what, commands.Connection.Close)
        assert (what.reply_code, what.reply_text) == (
            320,
            "CONNECTION_FORCED - vhost '/' is deleted",
        )
        assert (vhost.queues, vhost.exchanges) == ({}, {})
        accounts = admin.world.runtime.broker.accounts
        assert (accounts.parameters, accounts.permissions["guest"]) == ({}, {})
        # The configuration names it, so it is made again at the next start, empty.
        again = admin.restart().world
        assert list(again.broker.vhosts["/"].queues) == []
        assert len(again.broker.vhosts["/"].policy_engine.policies) == 0

    def test_it_stays_gone(self, admin: Administrator) -> None:
        admin.do("put vhost", name="v")
        admin.do("delete vhost", name="v")
        assert "v" not in admin.restart().world.broker.vhosts
        assert admin.refused("delete vhost", name="v")[0] == 404

    def test_a_new_one_of_that_name_is_empty_and_stays(self, admin: Administrator) -> None:
        """The old one is taken apart meanwhile."""
        admin.do("put vhost", name="v")
        vhost = admin.world.broker.vhosts["v"]
        for number in range(50):
            vhost.declare_queue(
                f"q{number}", durable=True, exclusive_owner=None, auto_delete=False, arguments={}
            )
        reader = admin.begin("delete vhost", name="v")
        admin.begin("put vhost", name="v")
        new = admin.world.broker.vhosts["v"]
        new.declare_queue("q1", durable=True, exclusive_owner=None, auto_delete=False, arguments={})
        admin.world.sync()
        assert reader.facts == {"ok": True}
        assert list(vhost.queues) == []
        assert list(new.queues) == ["q1"]
        assert list(admin.restart().world.broker.vhosts["v"].queues) == ["q1"]

    def test_messages_of_it_take_no_room_after_a_restart(self, admin: Administrator) -> None:
        """The record is on disk before the queues have gone one by one."""
        client = admin.world.connect()
        client.open()
        client.declare("q", durable=True)
        client.send(wire.publish(1, "q", b"a"))
        admin.world.sync()
        assert admin.world.broker.delete_vhost("/") is not None
        again = admin.restart().world
        assert again.runtime.broker.stored_queues() == {}

    def test_a_protected_one_stays(self, admin: Administrator) -> None:
        admin.do("put vhost", name="/", protected_from_deletion=True)
        code, error = admin.refused("delete vhost", name="/")
        assert (code, error) == (412, "virtual host '/' is protected from deletion")
        admin.do("put vhost", name="/", protected_from_deletion=False)
        admin.do("delete vhost", name="/")
