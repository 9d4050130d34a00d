"""A vhost: what may be declared and deleted, what goes with what, and what is logged."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.unit.server.broker.stand_ins import (
    JournalStandIn,
    QueueStandIn,
    exchange,
    integer,
    new_broker,
    new_vhost,
    queue,
    routed,
)
from vouchmq.protocol.errors import (
    AccessRefused,
    AmqpError,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)
from vouchmq.protocol.fields import boolean, longstr
from vouchmq.server.broker import definitions as d
from vouchmq.server.broker.vhost import VHost

ME, YOU = object(), object()
LOCKED = (
    "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could "
    "be originally declared on another connection or the exclusive property value does not match "
    "that of the original declaration."
)


def bind(vhost: VHost[QueueStandIn], source: str, name: str, key: str = "k") -> int:
    return vhost.bind(source, "queue", name, key, {}, ME)


def bind_exchange(vhost: VHost[QueueStandIn], source: str, name: str, key: str = "k") -> int:
    return vhost.bind(source, "exchange", name, key, {}, ME)


def logged(journal: JournalStandIn) -> list[str]:
    return [type(d.decode(record)).__name__ for record in journal.records]


# Exchanges


def test_predeclared_exchanges_are_there_and_durable() -> None:
    exchanges = new_vhost().exchanges
    assert {name: each.type for name, each in exchanges.items()} == {
        "": "direct",
        "amq.direct": "direct",
        "amq.fanout": "fanout",
        "amq.topic": "topic",
        "amq.headers": "headers",
        "amq.match": "headers",
        "amq.rabbitmq.trace": "topic",
    }
    assert all(each.durable and not each.auto_delete for each in exchanges.values())
    assert [name for name, each in exchanges.items() if each.internal] == ["amq.rabbitmq.trace"]


def test_existing_amq_exchange_may_be_declared_with_equal_properties_only() -> None:
    vhost = new_vhost()
    exchange(vhost, "amq.direct", "direct", durable=True)
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'durable'"):
        exchange(vhost, "amq.direct", "direct")
    with pytest.raises(AccessRefused, match=r"exchange name 'amq\.new' contains reserved prefix"):
        exchange(vhost, "amq.new", "direct")


def test_missing_exchange_is_not_found() -> None:
    with pytest.raises(NotFound) as refused:
        new_vhost().find_exchange("x")
    assert refused.value.reply_text == "NOT_FOUND - no exchange 'x' in vhost '/'"


def test_permission_on_the_alternate_is_asked_after_name_and_type_and_before_creation() -> None:
    vhost = new_vhost()
    asked: list[str] = []

    def refuse(target: str) -> None:
        asked.append(target)
        raise AccessRefused("no")

    def declare(name: str, alternate: object) -> None:
        field = integer(5) if alternate is None else longstr(str(alternate))
        vhost.declare_exchange(
            name,
            "direct",
            durable=False,
            auto_delete=False,
            internal=False,
            arguments={"alternate-exchange": field},
            permit_target=refuse,
        )

    with pytest.raises(AccessRefused, match="reserved prefix"):
        declare("amq.x", "a")
    with pytest.raises(PreconditionFailed, match="invalid type"):
        declare("x", None)
    assert asked == []
    with pytest.raises(AccessRefused, match="no"):
        declare("x", "a")
    assert asked == ["a"]
    assert "x" not in vhost.exchanges


def test_exchange_limit_refuses_new_ones_and_not_old_ones() -> None:
    vhost = new_vhost()
    exchange(vhost, "old")
    vhost.exchange_limit = len(vhost.exchanges)
    exchange(vhost, "old")
    with pytest.raises(PreconditionFailed) as refused:
        exchange(vhost, "x")
    assert refused.value.reply_text == (
        "PRECONDITION_FAILED - cannot declare exchange 'x' in vhost '/': "
        "exchange limit of 8 is reached"
    )


def test_exchange_in_use_is_the_source_of_a_binding() -> None:
    vhost = new_vhost()
    exchange(vhost, "x")
    exchange(vhost, "y")
    bind_exchange(vhost, "x", "y")
    vhost.delete_exchange("y", if_unused=True)
    assert "y" not in vhost.exchanges
    queue(vhost, "q")
    bind(vhost, "x", "q")
    with pytest.raises(PreconditionFailed) as refused:
        vhost.delete_exchange("x", if_unused=True)
    assert refused.value.reply_text == "PRECONDITION_FAILED - exchange 'x' in vhost '/' in use"
    vhost.delete_exchange("x")
    assert "x" not in vhost.exchanges
    assert not vhost.bindings.to_destination("queue", "q")


def test_deleting_a_missing_exchange_is_fine() -> None:
    vhost = new_vhost()
    vhost.delete_exchange("x", if_unused=True)
    assert "x" not in vhost.exchanges


@pytest.mark.parametrize("how", ["unbind", "queue", "destination", "exclusive", "auto-delete"])
def test_auto_delete_exchange_goes_with_its_last_binding(how: str) -> None:
    vhost = new_vhost()
    exchange(vhost, "x", auto_delete=True)
    assert "x" in vhost.exchanges
    one = queue(vhost, "q", owner=ME, auto_delete=True)
    exchange(vhost, "y")
    queue(vhost, "other")
    bind(vhost, "x", "other", "first")
    if how == "destination":
        bind_exchange(vhost, "x", "y")
    else:
        bind(vhost, "x", "q")
    vhost.delete_queue("other", ME)
    assert "x" in vhost.exchanges
    if how == "unbind":
        vhost.unbind("x", "queue", "q", "k", {}, ME)
    elif how == "queue":
        vhost.delete_queue("q", ME)
    elif how == "destination":
        vhost.delete_exchange("y")
    elif how == "exclusive":
        vhost.owner_gone(ME)
    else:
        vhost.consumer_gone(one)
    assert "x" not in vhost.exchanges


def test_auto_delete_does_not_count_bindings_as_destination() -> None:
    vhost = new_vhost()
    exchange(vhost, "source")
    exchange(vhost, "x", auto_delete=True)
    bind_exchange(vhost, "source", "x")
    vhost.unbind("source", "exchange", "x", "k", {}, ME)
    assert "x" in vhost.exchanges


def test_auto_delete_cascades_through_a_long_chain_and_a_cycle() -> None:
    vhost = new_vhost()
    names = [f"x{i}" for i in range(3000)]
    for name in names:
        exchange(vhost, name, "fanout", auto_delete=True)
    for source, destination in pairwise(names):
        bind_exchange(vhost, source, destination)
    queue(vhost, "q")
    bind(vhost, names[-1], "q")
    assert routed(vhost, "x0", "") == ["q"]
    vhost.delete_queue("q", ME)
    assert not [name for name in vhost.exchanges if name.startswith("x")]
    exchange(vhost, "self", auto_delete=True)
    bind_exchange(vhost, "self", "self")
    vhost.unbind("self", "exchange", "self", "k", {}, ME)
    assert "self" not in vhost.exchanges
    assert len(vhost.bindings) == 0


# Bindings


@pytest.mark.parametrize(
    ("source", "kind", "destination", "text"),
    [
        ("nx", "queue", "nq", "no exchange 'nx' in vhost '/'"),
        ("nx", "queue", "q", "no exchange 'nx' in vhost '/'"),
        ("amq.direct", "queue", "nq", "no queue 'nq' in vhost '/'"),
        ("nx", "exchange", "ny", "no exchange 'nx' in vhost '/'"),
        ("amq.direct", "exchange", "ny", "no exchange 'ny' in vhost '/'"),
    ],
)
def test_binding_needs_both_ends(source: str, kind: str, destination: str, text: str) -> None:
    vhost = new_vhost()
    queue(vhost, "q")
    with pytest.raises(NotFound) as refused:
        vhost.bind(source, "queue" if kind == "queue" else "exchange", destination, "k", {}, ME)
    assert refused.value.reply_text == f"NOT_FOUND - {text}"


def test_existence_then_binding_then_lock_are_checked() -> None:
    vhost = new_vhost()
    queue(vhost, "q", owner=YOU)
    with pytest.raises(NotFound):
        vhost.bind("amq.topic", "queue", "nq", "#.#.#", {}, ME)
    with pytest.raises(PreconditionFailed):
        vhost.bind("amq.topic", "queue", "q", "#.#.#", {}, ME)
    with pytest.raises(ResourceLocked):
        vhost.bind("amq.topic", "queue", "q", "#", {}, ME)


def test_unbinding_what_is_not_is_fine_even_when_locked() -> None:
    vhost = new_vhost()
    queue(vhost, "q", owner=YOU)
    vhost.unbind("nx", "queue", "nq", "", {}, ME)
    vhost.unbind("amq.direct", "queue", "q", "k", {}, ME)
    vhost.bind("amq.direct", "queue", "q", "k", {}, YOU)
    with pytest.raises(ResourceLocked):
        vhost.unbind("amq.direct", "queue", "q", "k", {}, ME)
    vhost.unbind("amq.direct", "queue", "q", "k", {}, YOU)
    assert routed(vhost, "amq.direct", "k") == []


def test_unbind_takes_the_whole_tuple() -> None:
    vhost = new_vhost()
    queue(vhost, "q")
    table = {"a": integer(1)}
    vhost.bind("amq.direct", "queue", "q", "k", table, ME)
    for key, arguments in (("k", {}), ("j", table), ("k", {"a": integer(2)})):
        vhost.unbind("amq.direct", "queue", "q", key, arguments, ME)
    assert routed(vhost, "amq.direct", "k") == ["q"]
    vhost.unbind("amq.direct", "queue", "q", "k", table, ME)
    assert routed(vhost, "amq.direct", "k") == []


def test_thousands_of_bindings_go_with_their_queue() -> None:
    vhost = new_vhost()
    queue(vhost, "q")
    for i in range(20_000):
        bind(vhost, "amq.direct", "q", str(i))
    vhost.delete_queue("q", ME)
    assert len(vhost.bindings) == 0
    assert routed(vhost, "amq.direct", "777") == []


# Queues


def test_redeclaring_gives_the_same_queue() -> None:
    vhost = new_vhost()
    assert queue(vhost, "q", durable=True) is queue(vhost, "q", durable=True)


@pytest.mark.parametrize(
    ("durable", "auto_delete", "field"), [(True, True, "durable"), (False, True, "auto_delete")]
)
def test_first_unequal_flag_is_named(durable: bool, auto_delete: bool, field: str) -> None:
    vhost = new_vhost()
    queue(vhost, "q")
    with pytest.raises(PreconditionFailed) as refused:
        queue(vhost, "q", durable=durable, auto_delete=auto_delete)
    assert refused.value.reply_text == (
        f"PRECONDITION_FAILED - inequivalent arg '{field}' for queue 'q' in vhost '/': "
        "received 'true' but current is 'false'"
    )


@pytest.mark.parametrize(("first", "second"), [(None, ME), (ME, None), (ME, YOU)])
def test_exclusiveness_is_compared_first_and_refused_as_locked(
    first: object | None, second: object | None
) -> None:
    vhost = new_vhost()
    queue(vhost, "q", owner=first)
    with pytest.raises(ResourceLocked) as refused:
        queue(vhost, "q", owner=second, auto_delete=True)
    assert refused.value.reply_text == LOCKED


def test_exclusive_queue_is_found_by_its_owner_only_but_routed_to_for_all() -> None:
    vhost = new_vhost()
    mine = queue(vhost, "q", owner=ME)
    assert vhost.find_queue("q", ME) is mine
    for use in (
        lambda: vhost.find_queue("q", YOU),
        lambda: vhost.delete_queue("q", YOU),
        lambda: vhost.bind("amq.direct", "queue", "q", "k", {}, YOU),
    ):
        with pytest.raises(ResourceLocked) as refused:
            use()
        assert refused.value.reply_text == LOCKED
    assert routed(vhost, "", "q") == ["q"]


def test_missing_queue_is_not_found() -> None:
    with pytest.raises(NotFound) as refused:
        new_vhost().find_queue("", ME)
    assert refused.value.reply_text == "NOT_FOUND - no queue '' in vhost '/'"


def test_durable_exclusive_queue_is_transient_and_equivalent_either_way() -> None:
    journal = JournalStandIn()
    vhost = new_vhost(journal)
    before = list(journal.records)
    one = queue(vhost, "q", durable=True, owner=ME)
    assert not one.spec.stored
    assert one.spec.queue_id == 0
    assert queue(vhost, "q", durable=False, owner=ME) is one
    assert queue(vhost, "q", durable=True, owner=ME) is one
    assert journal.records == before


def test_queue_limit_refuses_new_ones_and_not_old_ones() -> None:
    vhost = new_vhost()
    queue(vhost, "old")
    vhost.queue_limit = 1
    queue(vhost, "old")
    with pytest.raises(PreconditionFailed) as refused:
        queue(vhost, "q")
    assert refused.value.reply_text == (
        "PRECONDITION_FAILED - cannot declare queue 'q': queue limit in vhost '/' (1) is reached"
    )


def test_new_queue_is_checked_dead_letters_first_then_arguments_then_limit() -> None:
    vhost = new_vhost()
    vhost.queue_limit = 0
    asked: list[str] = []

    def declare(**arguments: object) -> str:
        table = {
            "x-" + name.replace("_", "-"): longstr(value) if isinstance(value, str) else integer(5)
            for name, value in arguments.items()
        }
        with pytest.raises(AmqpError) as refused:
            vhost.declare_queue(
                "q",
                durable=False,
                exclusive_owner=None,
                auto_delete=False,
                arguments=table,
                permit_target=asked.append,
            )
        return refused.value.text

    assert "invalid type" in declare(dead_letter_exchange=5, overflow="z")
    assert asked == []
    assert "invalid_overflow" in declare(dead_letter_exchange="d", overflow="z")
    assert asked == ["d"]
    assert "limit" in declare(dead_letter_exchange="d")
    assert "limit" in declare()
    assert not vhost.queues


def test_inequivalent_arguments_are_refused_unless_relaxed() -> None:
    strict = new_vhost()
    queue(strict, "q", arguments={"x-max-priority": integer(0)})
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-max-priority'"):
        queue(strict, "q")
    relaxed = new_broker(relaxed_redeclare=True).create_vhost("/")[0]
    one = queue(relaxed, "q", arguments={"x-max-priority": integer(0)})
    assert queue(relaxed, "q") is one
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'durable'"):
        queue(relaxed, "q", durable=True)


def test_delete_tells_the_ready_messages_and_takes_the_bindings() -> None:
    vhost = new_vhost()
    one = queue(vhost, "q")
    one.ready_count = 3
    bind(vhost, "amq.fanout", "q")
    assert vhost.delete_queue("q", ME) == (3, 0)
    assert one.is_deleted
    assert routed(vhost, "amq.fanout", "k") == routed(vhost, "", "q") == []
    assert vhost.delete_queue("q", ME)[0] == 0


def test_deleter_is_told_before_the_consumers_are_cancelled() -> None:
    vhost = new_vhost()
    one = queue(vhost, "q")
    one.ready_count = 2
    told: list[tuple[int, bool]] = []

    def answer(count: int, lsn: int) -> None:
        told.append((count, one.is_deleted))

    vhost.delete_queue("q", ME, before_cancel=answer)
    vhost.delete_queue("q", ME, before_cancel=answer)
    assert told == [(2, False), (0, True)]


def test_unused_is_checked_before_empty() -> None:
    vhost = new_vhost()
    one = queue(vhost, "q")
    one.ready_count, one.consumer_count = 1, 1
    for text in ("queue 'q' in vhost '/' in use", "queue 'q' in vhost '/' not empty"):
        with pytest.raises(PreconditionFailed) as refused:
            vhost.delete_queue("q", ME, if_unused=True, if_empty=True)
        assert refused.value.reply_text == f"PRECONDITION_FAILED - {text}"
        one.consumer_count = 0
    one.ready_count = 0
    vhost.delete_queue("q", ME, if_unused=True, if_empty=True)
    assert one.is_deleted


def test_auto_delete_queue_goes_with_its_last_consumer() -> None:
    vhost = new_vhost()
    plain, auto = queue(vhost, "plain"), queue(vhost, "auto", auto_delete=True)
    auto.consumer_count = 1
    vhost.consumer_gone(auto)
    assert list(vhost.queues) == ["plain", "auto"]
    auto.consumer_count = 0
    vhost.consumer_gone(plain)
    vhost.consumer_gone(auto)
    assert auto.is_deleted
    assert not plain.is_deleted
    assert list(vhost.queues) == ["plain"]


def test_consumer_of_a_deleted_queue_does_not_delete_its_successor() -> None:
    vhost = new_vhost()
    old = queue(vhost, "q", auto_delete=True)
    vhost.delete_queue("q", ME)
    new = queue(vhost, "q", auto_delete=True)
    vhost.consumer_gone(old)
    assert vhost.queues["q"] is new


def test_exclusive_queues_go_with_their_connection_and_no_others() -> None:
    vhost = new_vhost()
    mine, yours, all_ours = (
        queue(vhost, "mine", owner=ME),
        queue(vhost, "yours", owner=YOU),
        queue(vhost, "ours"),
    )
    queue(vhost, "gone", owner=ME)
    vhost.delete_queue("gone", ME)
    vhost.owner_gone(ME)
    vhost.owner_gone(ME)
    assert mine.is_deleted
    assert not yours.is_deleted
    assert not all_ours.is_deleted
    queue(vhost, "mine", owner=YOU)


def test_server_names_are_fresh() -> None:
    vhost = new_vhost()
    one, two = vhost.server_named(), vhost.server_named()
    assert one != two
    assert one.startswith("amq.gen-")
    assert len(one) == len("amq.gen-") + 22


# Routing


def test_default_exchange_leads_to_the_queue_of_that_name() -> None:
    vhost = new_vhost()
    queue(vhost, "a")
    queue(vhost, "b")
    assert routed(vhost, "", "a") == ["a"]
    assert routed(vhost, "", "a", "b", "a", "c") == ["a", "b"]
    assert routed(vhost, "", "") == []


def test_queue_comes_once_however_many_ways_lead_to_it() -> None:
    vhost = new_vhost()
    queue(vhost, "q")
    exchange(vhost, "x", "topic")
    exchange(vhost, "y", "fanout")
    for key in ("#", "a.*", "a.b"):
        vhost.bind("x", "queue", "q", key, {}, ME)
        vhost.bind("x", "exchange", "y", key, {}, ME)
    bind(vhost, "y", "q")
    assert routed(vhost, "x", "a.b", "a.c") == ["q"]


def test_cycle_between_exchanges_ends() -> None:
    vhost = new_vhost()
    queue(vhost, "q")
    for name in ("x", "y", "z"):
        exchange(vhost, name, "fanout")
    for source, destination in (("x", "y"), ("y", "z"), ("z", "x"), ("x", "x")):
        bind_exchange(vhost, source, destination)
    bind(vhost, "z", "q")
    assert routed(vhost, "x", "") == routed(vhost, "z", "") == ["q"]


def test_internal_exchange_is_routed_through() -> None:
    vhost = new_vhost()
    queue(vhost, "q")
    exchange(vhost, "x", "fanout")
    exchange(vhost, "inner", "fanout", internal=True)
    bind_exchange(vhost, "x", "inner")
    bind(vhost, "inner", "q")
    assert routed(vhost, "x", "") == ["q"]


def test_alternate_exchange_takes_what_matches_nothing() -> None:
    vhost = new_vhost()
    queue(vhost, "q")
    queue(vhost, "rest")
    exchange(vhost, "x", alternate="alt")
    assert routed(vhost, "x", "k") == []
    exchange(vhost, "alt", "topic", internal=True, alternate="missing")
    bind(vhost, "x", "q")
    bind(vhost, "alt", "rest", "other.#")
    assert routed(vhost, "x", "k") == ["q"]
    assert routed(vhost, "x", "other") == ["rest"]
    assert routed(vhost, "x", "k", "other") == ["q"]
    assert routed(vhost, "x", "neither") == []


def test_match_that_leads_nowhere_still_keeps_the_alternate_out() -> None:
    vhost = new_vhost()
    queue(vhost, "rest")
    exchange(vhost, "x", alternate="alt")
    exchange(vhost, "alt", "fanout")
    exchange(vhost, "dead end", "fanout")
    bind(vhost, "alt", "rest")
    bind_exchange(vhost, "x", "dead end")
    assert routed(vhost, "x", "k") == []
    assert routed(vhost, "x", "j") == ["rest"]


def test_alternates_form_chains_and_cycles_end() -> None:
    vhost = new_vhost()
    queue(vhost, "q")
    exchange(vhost, "x", alternate="y")
    exchange(vhost, "y", alternate="z")
    exchange(vhost, "z", alternate="x")
    assert routed(vhost, "x", "k") == []
    bind(vhost, "z", "q")
    assert routed(vhost, "x", "k") == ["q"]
    exchange(vhost, "w", alternate="")
    assert routed(vhost, "w", "q") == ["q"]


def test_alternate_of_a_bound_exchange_counts_too() -> None:
    vhost = new_vhost()
    queue(vhost, "rest")
    exchange(vhost, "x", "fanout")
    exchange(vhost, "y", alternate="alt")
    exchange(vhost, "alt", "fanout")
    bind_exchange(vhost, "x", "y", "never")
    bind(vhost, "alt", "rest")
    assert routed(vhost, "x", "k") == ["rest"]


def test_headers_reach_the_exchanges_behind() -> None:
    vhost = new_vhost()
    queue(vhost, "q")
    exchange(vhost, "x", "fanout")
    bind_exchange(vhost, "x", "amq.headers")
    vhost.bind("amq.headers", "queue", "q", "", {"a": boolean(True)}, ME)
    assert routed(vhost, "x", "k", headers={"a": boolean(True)}) == ["q"]
    assert routed(vhost, "x", "k", headers={"a": boolean(False)}) == []
    assert routed(vhost, "x", "k") == []


@pytest.mark.parametrize("change", range(8))
def test_every_change_that_may_alter_a_route_is_a_new_generation(change: int) -> None:
    vhost = new_vhost()
    queue(vhost, "q", auto_delete=True)
    mine = queue(vhost, "mine", owner=ME, auto_delete=True)
    exchange(vhost, "x")
    bind(vhost, "x", "q")
    changes = (
        lambda: exchange(vhost, "new"),
        lambda: vhost.delete_exchange("x"),
        lambda: bind(vhost, "x", "q", "j"),
        lambda: vhost.unbind("x", "queue", "q", "k", {}, ME),
        lambda: queue(vhost, "new"),
        lambda: vhost.delete_queue("q", ME),
        lambda: vhost.consumer_gone(mine),
        lambda: vhost.owner_gone(ME),
    )
    before = vhost.generation
    changes[change]()
    assert vhost.generation > before


def test_what_changes_nothing_keeps_the_routes() -> None:
    vhost = new_vhost()
    queue(vhost, "q")
    exchange(vhost, "x")
    bind(vhost, "x", "q")
    before = vhost.generation
    queue(vhost, "q")
    exchange(vhost, "x")
    bind(vhost, "x", "q")
    vhost.unbind("x", "queue", "q", "other", {}, ME)
    vhost.delete_queue("missing", ME)
    vhost.delete_exchange("missing")
    assert vhost.generation == before


# What is logged


def test_transient_things_are_not_logged_and_nobody_waits() -> None:
    journal = JournalStandIn()
    vhost = new_vhost(journal)
    before = list(journal.records)
    assert exchange(vhost, "x") == 0
    queue(vhost, "q")
    assert bind(vhost, "x", "q") == bind(vhost, "amq.direct", "q") == 0
    queue(vhost, "stored", durable=True)
    journal.records = list(before)
    assert bind(vhost, "x", "stored") == 0
    assert vhost.unbind("x", "queue", "stored", "k", {}, ME) == 0
    assert vhost.delete_queue("q", ME) == (0, 0)
    assert vhost.delete_exchange("x") == 0
    assert journal.records == before
    assert journal.dropped == []


def test_durable_changes_give_the_lsn_to_wait_for() -> None:
    journal = JournalStandIn()
    vhost = new_vhost(journal)
    assert exchange(vhost, "x", durable=True) == journal.lsn
    one, lsn = vhost.declare_queue(
        "q", durable=True, exclusive_owner=None, auto_delete=False, arguments={}
    )
    assert lsn == journal.lsn
    assert bind(vhost, "x", "q") == journal.lsn
    assert vhost.unbind("x", "queue", "q", "k", {}, ME) == journal.lsn
    assert vhost.delete_queue("q", ME) == (0, journal.lsn)
    assert journal.dropped == [one.spec.queue_id]
    assert vhost.delete_exchange("x") == journal.lsn
    assert logged(journal) == [
        "VHostSet",
        "ExchangeDeclared",
        "QueueDeclared",
        "Bound",
        "Unbound",
        "QueueDeleted",
        "ExchangeDeleted",
    ]


def test_repeated_declaration_waits_for_the_first_one() -> None:
    journal = JournalStandIn()
    vhost = new_vhost(journal)
    first = exchange(vhost, "x", durable=True)
    assert exchange(vhost, "x", durable=True) == first
    queue(vhost, "q", durable=True)
    first = bind(vhost, "x", "q")
    assert bind(vhost, "x", "q") == first == journal.lsn


def test_auto_deleted_durable_exchange_is_logged_and_waited_for() -> None:
    journal = JournalStandIn()
    vhost = new_vhost(journal)
    exchange(vhost, "x", durable=True, auto_delete=True)
    queue(vhost, "q")
    bind(vhost, "x", "q")
    assert vhost.delete_queue("q", ME) == (0, journal.lsn)
    assert logged(journal)[-1] == "ExchangeDeleted"
    exchange(vhost, "x", durable=True, auto_delete=True)
    queue(vhost, "q")
    bind(vhost, "x", "q")
    assert vhost.unbind("x", "queue", "q", "k", {}, ME) == journal.lsn
    assert logged(journal)[-1] == "ExchangeDeleted"


def test_auto_delete_and_expiring_owners_log_too() -> None:
    journal = JournalStandIn()
    vhost = new_vhost(journal)
    one = queue(vhost, "q", durable=True, auto_delete=True)
    vhost.consumer_gone(one)
    assert logged(journal)[-1] == "QueueDeleted"
    assert journal.dropped == [one.spec.queue_id]
