"""A RabbitMQ with its management plugin, where Debian's rabbitmq-server is installed."""

from __future__ import annotations

import contextlib
import io
import os
import socket
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Final

import pytest

from tests.waiting import wait_until
from tools import referee

PLUGINS: Final = ("rabbitmq_management",)


class Peer:
    """The node; who asks for it is skipped where there is none.

    Args:
        directory: for its files
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "peer"
        self._port, self.http_port = _free_ports()
        self.url = f"amqp://guest:guest@127.0.0.1:{self._port}/%2F"

    def __enter__(self) -> Peer:
        if not Path(referee.SERVER).exists():
            pytest.skip("rabbitmq-server is not installed")
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = referee.start(
                self._directory, self._port, PLUGINS, management_port=self.http_port
            )
        if status:
            self.stop()
            pytest.skip(f"rabbitmq-server does not start: {said.getvalue().strip()[-300:]}")
        wait_until(self._answers)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        self.stop()

    def stop(self) -> None:
        """End it."""
        referee.stop(self._directory)

    def _answers(self) -> bool:
        with contextlib.closing(HTTPConnection("127.0.0.1", self.http_port, timeout=10)) as asked:
            try:
                asked.request("GET", "/api/whoami")
                return asked.getresponse().status == 401
            except OSError:
                return False


def _free_ports() -> tuple[int, int]:
    """Two; the node takes the first with 20,000 added as well."""
    found: list[int] = []
    with contextlib.ExitStack() as bound:
        # Below those that the operating system assigns to clients.
        for port in range(20000 + os.getpid() % 5000, 32000):
            sock = bound.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                sock.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == 2:
                return found[0], found[1]
    raise OSError("no free ports")
