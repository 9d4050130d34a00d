"""A broker that another process has started: that of all workers of pytest-xdist."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from vouchmq.testing.broker import Broker
from vouchmq.testing.errors import BrokerError
from vouchmq.testing.process import LOG_NAME, BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Mapping


class SharedBroker(Broker):
    """The broker of all workers. What would hit the tests of others is refused.

    Virtual hosts, and what is done to one of them, are as in `Broker`.

    Args:
        data_dir: its data directory
        port: where it listens
        settings: what it was started with
    """

    def __init__(self, data_dir: str, port: int, settings: Mapping[str, object]) -> None:
        super().__init__(settings=settings)
        directory = Path(data_dir)
        self._process = BrokerProcess(directory, directory.with_name(LOG_NAME), settings)
        self._process.ports["port"] = port

    @property
    def is_running(self) -> bool:
        """True as long as the tests run."""
        return True

    def start(self, *, timeout_s: float = 0.0) -> None:
        """It runs already."""
        del timeout_s

    def stop(self, *, timeout_s: float = 0.0) -> NoReturn:
        """Refused."""
        del timeout_s
        self._refuse("stop")

    def kill(self) -> NoReturn:
        """Refused."""
        self._refuse("kill")

    def restart(self, *, timeout_s: float = 0.0) -> NoReturn:
        """Refused."""
        del timeout_s
        self._refuse("restart")

    def close(self) -> None:
        """Nothing: others use it."""

    def disk_full(self) -> NoReturn:
        """Refused."""
        self._refuse("disk_full")

    def disk_alarm(self) -> NoReturn:
        """Refused."""
        self._refuse("disk_alarm")

    def held_confirms(self) -> NoReturn:
        """Refused."""
        self._refuse("held_confirms")

    def frozen(self) -> NoReturn:
        """Refused."""
        self._refuse("frozen")

    def advance_clock(self, seconds: float) -> NoReturn:
        """Refused."""
        del seconds
        self._refuse("advance_clock")

    def heal(self) -> None:
        """Nothing: what lasts beyond a test is refused."""

    def cut_connections(self) -> NoReturn:
        """Refused; `VHost.cut_connections` is not."""
        self._refuse("cut_connections")

    def _refuse(self, what: str) -> NoReturn:
        raise BrokerError(
            f"{what}: the tests of other workers use this broker as well (--vouchmq-shared)"
        )
