"""Asks a running broker whether it answers: a protocol header out, connection.start back.

For health checks; needs no user and leaves nothing behind. The broker that runs on the data
directory says itself where it listens, which may be elsewhere than the settings of this process
say; if none runs there, the settings do. Must not know more of AMQP than that.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from vouchmq.server.edge.control.client import LISTENERS, NoBrokerError, ask

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S: Final = 3.0
STANDBY: Final = "standby"
# Listening on every interface is also listening here.
WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104
HEADER: Final = b"AMQP\x00\x00\x09\x01"
# Frame type, channel, size of any value, then class 10 and method 10.
METHOD_ON_CHANNEL_0: Final = b"\x01\x00\x00"
START_IDS: Final = b"\x00\x0a\x00\x0a"
ANSWER_SIZE: Final = 11


def is_standby(data_dir: Path) -> bool:
    """Whether the broker that runs on a data directory is well, but listens nowhere."""
    try:
        return ask(data_dir, LISTENERS, LIMIT_S).get("role") == STANDBY
    except (NoBrokerError, OSError):
        return False


def listeners(data_dir: Path) -> tuple[str, int] | None:
    """Where the broker that runs on a data directory listens; None when none answers there."""
    try:
        answer = ask(data_dir, LISTENERS, LIMIT_S)
        return str(answer["host"]), int(answer["port"])
    except (NoBrokerError, KeyError, OSError):
        return None


def ping(host: str, port: int, limit_s: float = LIMIT_S) -> str:
    """Why the broker at this address is not well; empty when it is.

    Args:
        host: the address it listens on, wildcards included
        port: its port
        limit_s: longest wait for each of connecting and answering
    """
    address = (WILDCARDS.get(host, host), port)
    try:
        with socket.create_connection(address, limit_s) as peer:
            peer.sendall(HEADER)
            answer = b""
            while len(answer) < ANSWER_SIZE and (more := peer.recv(4096)):
                answer += more
    except OSError as error:
        return f"no answer from {address[0]}:{port}: {error}"
    if answer[:3] == METHOD_ON_CHANNEL_0 and answer[7:ANSWER_SIZE] == START_IDS:
        return ""
    return f"{address[0]}:{port} does not speak AMQP 0-9-1"
