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
from contextlib import contextmanager
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
from vouchmq.server.edge.starting.stop_signals import STOP_SIGNALS
from vouchmq.server.edge.tls import https_context
from vouchmq.server.errors import StartupError

if TYPE_CHECKING:
    import socket
    import ssl
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
# For a TLS handshake, as of AMQP (LIMIT-25).
HANDSHAKE_S: Final = 5.0
# Loggers of what runs the servers.
LIBRARIES: Final = ("asyncio", "uvicorn.error")


def run_watched(options: str) -> int:
    """Run with options in JSON; returns the exit code."""
    return run(fast_json.decode(options, type=Options))


def run_command(options: Mapping[str, object]) -> int:
    """`vouchmq manage`: the same, for a broker that somebody else has started."""
    return run(Options(**options))  # type: ignore[arg-type]


def run(options: Options) -> int:
    """Serve until a signal, or until the broker that has started it ends."""
    configure_logs(options.log_level, options.log_format)
    for name in LIBRARIES:
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.addHandler(_Faults())
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
    # The broker, which starts this process, has them blocked in all threads but one.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    if STOP_SIGNALS.asked:
        return 0
    if options.is_watched:
        _watch_input(loop, stopping.set)
    broker = Broker(Path(options.data_dir))
    # With connections of its own: a scrape waits for no visitor.
    scraped = Broker(Path(options.data_dir))
    try:
        context = https_context(options.cert_file, options.key_file) if options.cert_file else None
    except StartupError as error:
        log.error("management.listen_failed", reason=str(error))
        return FAILED
    loop.add_signal_handler(signal.SIGHUP, _load_certificate, context, options)
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
        servers.append((_server(app, context), sockets))
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
    if options.cert_file:
        facts["is_tls"] = True
    clock = asyncio.get_running_loop().time
    is_awaited = False
    while True:
        began = clock()
        try:
            await broker.hold("announce management", **facts)
        except CommandRefused:
            pass  # An older broker does not take it, and works without.
        except BrokerUnavailable as error:
            # One that was there for a while has gone. Who has started this process knows of itself.
            is_awaited = is_awaited and clock() - began < ANNOUNCE_S
            if not (is_awaited or options.is_watched):
                is_awaited = True
                reason = str(error)
                log.warning("management.broker_awaited", data_dir=options.data_dir, reason=reason)
        await asyncio.sleep(ANNOUNCE_S)


def _load_certificate(context: ssl.SSLContext | None, options: Options) -> None:
    """Show new connections the certificate as it is now."""
    if context is None:
        return
    try:
        https_context(options.cert_file, options.key_file)
        context.load_cert_chain(
            Path(options.cert_file).expanduser(), Path(options.key_file).expanduser()
        )
    except (OSError, StartupError) as error:
        log.error(
            "tls.reload_failed", reason=str(error), meaning="the certificates in use are kept"
        )
    else:
        log.info("tls.reloaded", path=options.cert_file)


class _Faults(logging.Handler):
    """What libraries log: errors are faults of this process, all else is what clients do wrong."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        reason = record.getMessage().partition("\n")[0]
        log.error("internal_error", where="management", reason=reason, exc_info=record.exc_info)


class _Server(uvicorn.Server):
    """One that leaves signals to who runs it, and waits for handshakes no longer than it must."""

    def __init__(self, config: uvicorn.Config, context: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._context = context

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`, which leaves a client a minute for its handshake."""
        loop = asyncio.get_running_loop()
        limit_s = HANDSHAKE_S if self._context is not None else None
        self.servers = [
            await loop.create_server(
                self._protocol,
                sock=each,
                ssl=self._context,
                ssl_handshake_timeout=limit_s,
                backlog=BACKLOG,
            )
            for each in sockets or ()
        ]
        self.started = True

    def _protocol(self) -> asyncio.Protocol:
        protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See `uvicorn.Server`."""
        yield


def _server(app: ASGIApp, context: ssl.SSLContext | None) -> _Server:
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
        ),
        context,
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
        scheme = "https" if options.cert_file else "http"
        sys.stdout.write(f"VouchMQ metrics ready on {scheme}://{shown}:{ports[1]}/metrics\n")
        sys.stdout.write(f"VouchMQ management ready on {scheme}://{shown}:{ports[0]}\n")
    sys.stdout.flush()
