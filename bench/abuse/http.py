"""What clients of the HTTP API can do while everybody else publishes.

    python -m bench.abuse http_slow_heads http_listings http_guesses http_streams http_bodies

The broker runs with its management process and ten thousand queues. Besides the client that asks
for a message every ten milliseconds, of which all cases tell, the row has how many answers of each
status the abusers got.
"""

from __future__ import annotations

import base64
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Final

from bench import frames
from bench.abuse.cases import Case, Stage, declare_nowait, finish, until

QUEUE_COUNT: Final = 10_000
CLIENT_COUNT: Final = 1_000
ABUSE_S: Final = 5.0
PATIENCE_S: Final = 30.0
BODY_BYTES: Final = 100_000_000
PIECE: Final = b"[" * 65536
READY: Final = re.compile(r"VouchMQ management ready on http://127\.0\.0\.1:(\d+)")
FLAGS: Final = ("--management", "on", "--management-port", "0", "--prometheus-port", "0")


def managed_queues(stage: Stage) -> None:
    """Declare queues, and wait for the management process."""
    client = stage.client()
    for number in range(stage.sized(QUEUE_COUNT)):
        client.socket.sendall(declare_nowait(f"shown-{number}"))
    finish(client)
    until(lambda: port_of(stage) != 0)


def port_of(stage: Stage) -> int:
    """Where the HTTP API listens; 0 when it does not yet."""
    found = READY.search((stage.directory / "vouchmq.log").read_text())
    return int(found[1]) if found is not None else 0


def login(password: str = "guest") -> dict[str, str]:  # noqa: S107 - that of every broker
    """The header of Basic authentication."""
    pair = base64.b64encode(f"guest:{password}".encode()).decode()
    return {"authorization": f"Basic {pair}"}


def asked(port: int, path: str, headers: dict[str, str]) -> str:
    """The status of one request, or what became of it."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
    except (OSError, HTTPException) as error:
        return type(error).__name__
    else:
        return str(answer.status)
    finally:
        connection.close()


def by_many(stage: Stage, count: int, abuse: Callable[[int], str]) -> None:
    """Have so many clients do it again and again for a while."""
    told: Counter[str] = Counter()
    ends_at = time.monotonic() + ABUSE_S
    port = port_of(stage)

    def go_on() -> None:
        while time.monotonic() < ends_at:
            told[abuse(port)] += 1

    threads = [threading.Thread(target=go_on) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stage.found["answers"] = dict(told)


def slow_heads(stage: Stage) -> None:
    """A thousand connections on which a request comes a byte at a time."""
    told: Counter[str] = Counter()
    port = port_of(stage)
    clients = []
    for _ in range(stage.sized(CLIENT_COUNT)):
        client = stage.stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        client.setblocking(False)
        clients.append(client)
    ends_at = time.monotonic() + 3 * ABUSE_S
    while clients and time.monotonic() < ends_at:
        for client in list(clients):
            try:
                client.send(b"x")
                octets = client.recv(1024)
            except BlockingIOError:
                continue
            except OSError as error:
                told[type(error).__name__] += 1
                clients.remove(client)
                continue
            told[octets.partition(b"\r\n")[0].decode() or "closed"] += 1
            clients.remove(client)
        time.sleep(0.2)
    stage.found["answers"] = {**told, "still open": len(clients)}


def listings(stage: Stage) -> None:
    """Forty clients that ask for all queues again and again."""
    by_many(stage, 40, lambda port: asked(port, "/api/queues", login()))


def guesses(stage: Stage) -> None:
    """Sixteen clients that guess a password."""
    by_many(stage, 16, lambda port: asked(port, "/api/whoami", login(str(time.monotonic()))))


def streams(stage: Stage) -> None:
    """Two hundred streams of events that nobody reads, while queues come and go."""
    told: Counter[str] = Counter()
    port = port_of(stage)
    for _ in range(stage.sized(200)):
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        stage.stack.callback(connection.close)
        connection.request("GET", "/api/events", headers=login())
        told[str(connection.getresponse().status)] += 1
    client = stage.client()
    ends_at = time.monotonic() + ABUSE_S
    while time.monotonic() < ends_at:
        client.call(frames.queue_declare("come-and-go"))
        client.call(frames.queue_delete("come-and-go"))
    stage.found["answers"] = dict(told)


def bodies(stage: Stage) -> None:
    """Eight clients that send bodies of 100 MB."""

    def send(port: int) -> str:
        head = f"POST /api/definitions HTTP/1.1\r\nhost: x\r\ncontent-length: {BODY_BYTES}\r\n"
        fields = "".join(f"{name}: {value}\r\n" for name, value in login().items())
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
            octets = b""
            with suppress(OSError):
                client.sendall(f"{head}{fields}\r\n".encode())
                for _ in range(BODY_BYTES // len(PIECE)):
                    client.sendall(PIECE)
            with suppress(OSError):
                octets = client.recv(1024)
        return octets.partition(b"\r\n")[0].decode() or "closed"

    by_many(stage, 8, send)


HTTP: Final = (
    Case("http_slow_heads", slow_heads.__doc__ or "", managed_queues, slow_heads, FLAGS),
    Case("http_listings", listings.__doc__ or "", managed_queues, listings, FLAGS),
    Case("http_guesses", guesses.__doc__ or "", managed_queues, guesses, FLAGS),
    Case("http_streams", streams.__doc__ or "", managed_queues, streams, FLAGS),
    Case("http_bodies", bodies.__doc__ or "", managed_queues, bodies, FLAGS),
)
