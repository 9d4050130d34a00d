"""The management process from start to end: sockets, servers, and when to stop.

    options ─▶ bound sockets ─▶ two uvicorn servers on one loop ─▶ signal, or the broker's end

Its log goes where the broker's goes, in the same form.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import uvicorn
import uvloop
from msgspec import json as fast_json

from vouchmq.management.api.app import api_app
from vouchmq.management.broker import Broker, BrokerUnavailable, CommandRefused
from vouchmq.management.metrics.app import metrics_app
from vouchmq.management.options import Options
from vouchmq.management.web.app import WebApp
from vouchmq.management.web.guard import Guard
from vouchmq.management.web.protocol import Limits, limited
from vouchmq.server.edge.listening import ListenError, open_sockets
from vouchmq.server.edge.logging import configure_logs

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from starlette.types import ASGIApp

log = structlog.get_logger(__name__)

FAILED: Final = 1
STANDARD_INPUT: Final = 0
# Answers that are on their way when it is to end.
GRACE_S: Final = 1
BACKLOG: Final = 128
# Between attempts to tell a broker that does not answer.
ANNOUNCE_S: Final = 1.0
MOST_HEADER_BYTES: Final = 65536


def run_watched(options: str) -> int:
    """Run with options in JSON; returns the exit code."""
    return run(fast_json.decode(options, type=Options))


def run_command(options: Mapping[str, object]) -> int:
    """`vouchmq manage`: the same, for a broker that somebody else has started."""
    return run(Options(**options))  # type: ignore[arg-type]


def run(options: Options) -> int:
    """Serve until a signal, or until the broker that has started it ends."""
    configure_logs(options.log_level, options.log_format)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(options))
    except Exception:
        log.exception("internal_error", where="management")
        return FAILED


async def _serve(options: Options) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if options.is_watched:
        _watch_input(loop, stopping.set)
    broker = Broker(Path(options.data_dir))
    # With connections of its own: a scrape waits for no visitor.
    scraped = Broker(Path(options.data_dir))
    servers: list[tuple[_Server, list[socket.socket]]] = []
    wanted = (
        (options.management_port, Guard(WebApp(api_app(broker)))),
        (options.prometheus_port, Guard(metrics_app(scraped))),
    )
    for port, app in wanted:
        try:
            sockets = open_sockets(options.hosts, port)
            for each in sockets:
                # Who reads the ready line may connect.
                each.listen(BACKLOG)
        except (ListenError, OSError) as error:
            log.error("management.listen_failed", reason=str(error))
            return FAILED
        servers.append((_server(app), sockets))
    running = [asyncio.create_task(server.serve(sockets)) for server, sockets in servers]
    ports = [_port_of(sockets) for _, sockets in servers]
    announcing = asyncio.create_task(_announce(broker, options, *ports))
    _tell_ready(options, ports)
    ended = asyncio.create_task(stopping.wait())
    await asyncio.wait([ended, *running], return_when=asyncio.FIRST_COMPLETED)
    is_asked = stopping.is_set()
    # It tells with a traceback of each request that is cut off now, such as a stream of events.
    logging.getLogger("uvicorn.error").disabled = True
    for server, _ in servers:
        server.should_exit = True
    await asyncio.gather(*running)
    ended.cancel()
    announcing.cancel()
    broker.close()
    scraped.close()
    return 0 if is_asked else FAILED


async def _announce(broker: Broker, options: Options, port: int, metrics_port: int) -> None:
    """Have the broker know where this process listens, whenever there is a broker."""
    facts = {"pid": os.getpid(), "hosts": options.hosts, "port": port, "metrics_port": metrics_port}
    while True:
        # An older broker does not take it, and works without.
        with suppress(BrokerUnavailable, CommandRefused):
            await broker.hold("announce management", **facts)
        await asyncio.sleep(ANNOUNCE_S)


class _Server(uvicorn.Server):
    """One that leaves signals to who runs it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See `uvicorn.Server`."""
        yield


def _server(app: ASGIApp) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            http=limited(Limits()),
            ws="none",
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=GRACE_S,
            h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        )
    )


def _watch_input(loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
    """Hear of the end of whoever has the other end of standard input."""

    def look() -> None:
        if not os.read(STANDARD_INPUT, 1):
            loop.remove_reader(STANDARD_INPUT)
            ended()

    loop.add_reader(STANDARD_INPUT, look)


def _port_of(sockets: Sequence[socket.socket]) -> int:
    return int(sockets[0].getsockname()[1])


def _tell_ready(options: Options, ports: Sequence[int]) -> None:
    host = options.hosts[0]
    shown = f"[{host}]" if ":" in host else host
    if options.log_format == "json":
        event = {
            "event": "management.ready",
            "level": "info",
            "host": host,
            "management_port": ports[0],
            "prometheus_port": ports[1],
        }
        sys.stdout.write(f"{json.dumps(event)}\n")
    else:
        sys.stdout.write(f"VouchMQ metrics ready on http://{shown}:{ports[1]}/metrics\n")
        sys.stdout.write(f"VouchMQ management ready on http://{shown}:{ports[0]}\n")
    sys.stdout.flush()
