"""Addresses that are listened on: several, both families, and machines that lack one."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from vouchmq.server.edge.listening import UNSENT_BYTES, ListenError, open_sockets


def has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as one:
        one.bind(("::1", 0))
        return True
    return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@contextmanager
def listening_on(*hosts: str, port: int = 0) -> Iterator[list[socket.socket]]:
    with ExitStack() as opened:
        sockets = open_sockets(hosts, port)
        for one in sockets:
            opened.enter_context(one)
            one.listen()
        yield sockets


def ports(sockets: list[socket.socket]) -> set[int]:
    return {one.getsockname()[1] for one in sockets}


def is_open(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


@needs_ipv6
def test_all_addresses_have_one_port() -> None:
    with listening_on("127.0.0.1", "::1") as sockets:
        (port,) = ports(sockets)
        assert is_open("127.0.0.1", port)
        assert is_open("::1", port)
        assert not is_open("127.0.0.2", port)


@needs_ipv6
def test_every_address_is_both_families() -> None:
    with listening_on("::") as sockets:
        (port,) = ports(sockets)
        assert len(sockets) == 1
        assert all(is_open(host, port) for host in ("127.0.0.1", "127.0.0.2", "::1"))


@needs_ipv6
def test_every_address_of_each_family_may_be_given_apart() -> None:
    with listening_on("0.0.0.0", "::") as sockets:
        (port,) = ports(sockets)
        assert len(sockets) == 2
        assert all(is_open(host, port) for host in ("127.0.0.1", "::1"))


def test_an_address_given_twice_is_one() -> None:
    with listening_on("127.0.0.1", "127.0.0.1", "127.0.0.2") as sockets:
        assert len(sockets) == 2


def test_a_free_port_that_is_taken_at_another_address_is_not_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another program has the first ports that the system offers, at the second address."""
    refused: list[int] = []

    class Crowded(socket.socket):
        def bind(self, address: tuple[str, int]) -> None:  # type: ignore[override]
            if address[0] == "127.0.0.2" and len(refused) < 3:
                refused.append(address[1])
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            super().bind(address)

    monkeypatch.setattr(socket, "socket", Crowded)
    with listening_on("127.0.0.1", "127.0.0.2") as sockets:
        assert len(refused) == 3
        assert len(ports(sockets)) == 1


def test_a_port_in_use_is_told_with_its_address() -> None:
    with listening_on("127.0.0.2") as sockets:
        (port,) = ports(sockets)
        with pytest.raises(ListenError, match=f"127.0.0.2:{port}") as caught:
            open_sockets(["127.0.0.1", "127.0.0.2"], port)
        assert caught.value.is_in_use
        # What was bound before is given back.
        with listening_on("127.0.0.1", port=port):
            pass


@pytest.mark.parametrize("stage", ["socket", "bind"])
def test_a_machine_without_ipv6_does_without(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class OnlyIPv4(socket.socket):
        def __init__(self, family: int, kind: int) -> None:
            if family == socket.AF_INET6 and stage == "socket":
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(socket.AF_INET, kind)
            self._is_ipv6 = family == socket.AF_INET6

        def setsockopt(self, level: int, name: int, value: int) -> None:  # type: ignore[override]
            if level != socket.IPPROTO_IPV6:
                super().setsockopt(level, name, value)

        def bind(self, address: tuple[str, int]) -> None:  # type: ignore[override]
            if self._is_ipv6:
                raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
            super().bind(address)

    monkeypatch.setattr(socket, "socket", OnlyIPv4)
    with listening_on("127.0.0.1", "::1") as sockets:
        assert len(sockets) == 1
    # Who asks for nothing else, or for every address, is told.
    for hosts in (["::1"], ["::"], ["127.0.0.1", "fe80::1%lo"]):
        with pytest.raises(ListenError):
            open_sockets(hosts, 0)


def test_the_kernel_takes_little_for_a_client_that_does_not_read() -> None:
    """CONS-11: who is accepted has the limit of the socket that listens."""
    with (
        listening_on("127.0.0.1") as (listener,),
        socket.create_connection(listener.getsockname(), timeout=5) as client,
    ):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            accepted.setblocking(False)
            taken_bytes, piece = 0, bytes(65_536)
            with suppress(BlockingIOError):
                while taken_bytes < 4 * UNSENT_BYTES:
                    taken_bytes += accepted.send(piece)
    # What the client's own buffer took is little.
    assert UNSENT_BYTES <= taken_bytes < 2 * UNSENT_BYTES
