"""What an exchange is by declaration, and how declarations are compared."""

from __future__ import annotations

import pytest

from tests.unit.server.broker.stand_ins import integer
from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.protocol.fields import Field, Table, boolean, long_int, longstr
from vouchmq.server.broker.exchanges.exchange import Exchange, check_type


def declared(
    exchange_type: str = "direct",
    durable: bool = False,
    auto_delete: bool = False,
    internal: bool = False,
    arguments: Table | None = None,
) -> Exchange:
    return Exchange("x", "/", exchange_type, durable, auto_delete, internal, arguments or {})


@pytest.mark.parametrize("exchange_type", ["direct", "fanout", "topic", "headers"])
def test_the_four_types_are_known(exchange_type: str) -> None:
    check_type(exchange_type)


@pytest.mark.parametrize("exchange_type", ["x-random", "Direct", ""])
def test_other_types_are_refused(exchange_type: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        check_type(exchange_type)
    assert refused.value.reply_text == (
        f"PRECONDITION_FAILED - unknown exchange type '{exchange_type}'"
    )


@pytest.mark.parametrize(
    ("again", "field", "received", "current"),
    [
        (declared("topic", True, True, True), "type", "'topic'", "'direct'"),
        (declared("direct", True, True, True), "durable", "'true'", "'false'"),
        (declared("direct", False, True, True), "auto_delete", "'true'", "'false'"),
        (declared("direct", False, False, True), "internal", "'true'", "'false'"),
        (
            declared(arguments={"alternate-exchange": longstr("b")}),
            "alternate-exchange",
            "'b'",
            "'a'",
        ),
        (
            declared(arguments={"alternate-exchange": integer(5)}),
            "alternate-exchange",
            "'5'",
            "'a'",
        ),
        (declared(), "alternate-exchange", "none", "the value 'a' of type 'longstr'"),
    ],
)
def test_first_difference_is_named(
    again: Exchange, field: str, received: str, current: str
) -> None:
    existing = declared(arguments={"alternate-exchange": longstr("a")})
    with pytest.raises(PreconditionFailed) as refused:
        existing.require_equivalent(again)
    assert refused.value.reply_text == (
        f"PRECONDITION_FAILED - inequivalent arg '{field}' for exchange 'x' in vhost '/': "
        f"received {received} but current is {current}"
    )


def test_other_arguments_are_not_compared() -> None:
    declared().require_equivalent(declared(arguments={"x-unheard-of": integer(1)}))


@pytest.mark.parametrize(
    ("value", "type_name"),
    [(integer(5), "signedint"), (boolean(True), "bool"), (Field("x", b"a"), "binary")],
)
def test_alternate_exchange_is_a_longstr(value: Field, type_name: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        declared(arguments={"alternate-exchange": value}).require_valid()
    assert refused.value.reply_text == (
        f"PRECONDITION_FAILED - invalid type '{type_name}' for arg 'alternate-exchange' "
        "in exchange 'x' in vhost '/'"
    )


def test_any_alternate_may_be_named() -> None:
    exchange = declared(arguments={"alternate-exchange": longstr("")})
    exchange.require_valid()
    assert exchange.alternate == ""
    assert declared().alternate is None


@pytest.mark.parametrize(
    ("name", "field", "kind"),
    [
        ("x-delayed-exchange", longstr("yes"), "longstr"),
        ("x-message-deduplication", long_int(1), "long"),
        ("hash-header", long_int(5), "long"),
    ],
)
def test_an_argument_of_another_type_is_refused(name: str, field: Field, kind: str) -> None:
    """It would be accepted and change nothing."""
    exchange = Exchange("x", "/", "direct", False, False, False, {name: field})
    with pytest.raises(PreconditionFailed) as refused:
        exchange.require_valid()
    text = f"invalid arg '{name}' for exchange 'x' in vhost '/': {{unacceptable_type,{kind}}}"
    assert refused.value.text == text
