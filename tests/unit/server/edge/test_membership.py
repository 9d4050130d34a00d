"""Where a node of a shared log says that clients would find it."""

from __future__ import annotations

import pytest

from vouchmq.server.edge.replicated.membership import client_address


@pytest.mark.parametrize(
    ("hosts", "port", "address"),
    [
        (["127.0.0.1", "::1"], 5672, "127.0.0.1:5672"),
        (["10.0.0.7"], 5673, "10.0.0.7:5673"),
        (["::1"], 5672, "[::1]:5672"),
        (["0.0.0.0"], 5672, "machine:5672"),
        (["::"], 5672, "machine:5672"),
        (["10.0.0.7", "::"], 5672, "machine:5672"),
    ],
)
def test_the_address_for_clients(hosts: list[str], port: int, address: str) -> None:
    assert client_address(hosts, port, "machine") == address
