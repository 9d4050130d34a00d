"""Names: what is stripped, what is reserved, how they are shown."""

from __future__ import annotations

import pytest

from vouchmq.protocol.errors import AccessRefused
from vouchmq.server.broker import names


def test_names_are_shown_with_their_vhost() -> None:
    assert names.queue_text("q", "/") == "queue 'q' in vhost '/'"
    assert names.exchange_text("", "v") == "exchange '' in vhost 'v'"


def test_only_cr_and_lf_are_stripped() -> None:
    assert names.strip_cr_lf("\ra\n \t\x00b\r\n") == "a \t\x00b"
    assert names.strip_cr_lf("\r\n") == ""


def test_reserved_prefix_is_refused_for_either_kind() -> None:
    for check, kind in ((names.check_queue_name, "queue"), (names.check_exchange_name, "exchange")):
        for name in ("amq", "amqp.q", "AMQ.q", " amq.q", ""):
            check(name)
        with pytest.raises(AccessRefused) as refused:
            check("amq.q")
        assert refused.value.reply_text == (
            f"ACCESS_REFUSED - {kind} name 'amq.q' contains reserved prefix 'amq.*'"
        )


def test_default_exchange_allows_nothing_but_publishing() -> None:
    names.check_not_default("x", "amq.default")
    with pytest.raises(AccessRefused) as refused:
        names.check_not_default("x", "")
    assert refused.value.reply_text == (
        "ACCESS_REFUSED - operation not permitted on the default exchange"
    )
