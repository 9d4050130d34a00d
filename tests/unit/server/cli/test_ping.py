"""Ping: what counts as an answer. The peer here is a thread with a socket, not a broker."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.waiting import LIMIT_S
from vouchmq.server.cli import main as program
from vouchmq.server.cli.running.ping import HEADER, WILDCARDS, ping

START = b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x0a\xce"


@contextmanager
def peer(*answers: bytes, closes: bool = True) -> Iterator[tuple[int, list[bytes]]]:
    """A port that answers the first client with these pieces; and what that client sent."""
    received: list[bytes] = []
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                received.append(client.recv(64))
                for answer in answers:
                    client.sendall(answer)
                if not closes:
                    done.wait(LIMIT_S)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1], received
        done.set()
        thread.join()


@pytest.mark.parametrize("cuts", [[START], [START[:3], START[3:8], START[8:]]])
def test_a_broker_that_greets_is_well(cuts: list[bytes]) -> None:
    with peer(*cuts) as (port, received):
        assert ping("127.0.0.1", port) == ""
    assert received == [HEADER]


@pytest.mark.parametrize(
    "answer", [b"AMQP\x00\x00\x09\x01", b"HTTP/1.1 400 Bad Request\r\n", b"", START[:10]]
)
def test_another_answer_is_none(answer: bytes) -> None:
    with peer(answer) as (port, _):
        assert ping("127.0.0.1", port) == f"127.0.0.1:{port} does not speak AMQP 0-9-1"


def test_silence_is_no_answer() -> None:
    with peer(closes=False) as (port, _):
        assert "timed out" in ping("127.0.0.1", port, 0.05)


def test_a_closed_port_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert ping("127.0.0.1", port).startswith(f"no answer from 127.0.0.1:{port}: ")


@pytest.mark.parametrize("wildcard", [name for name in WILDCARDS if ":" not in name])
def test_a_wildcard_is_asked_on_loopback(wildcard: str) -> None:
    with peer(START) as (port, _):
        assert ping(wildcard, port) == ""


def test_the_command_asks_where_the_settings_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with peer(START) as (port, _):
        monkeypatch.setattr(os, "environ", {"VOUCHMQ_PORT": str(port), "VOUCHMQ_HOST": "0.0.0.0"})
        assert program.main(["ping"]) == 0
    assert program.main(["ping"]) == 1
    assert capsys.readouterr().err.startswith("vouchmq: no answer from 127.0.0.1")
    assert program.main(["ping", "--port", "-1"]) == 2
