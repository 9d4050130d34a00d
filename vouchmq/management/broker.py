"""The broker, as the management process knows it: a few connections to its control socket.

    ask, rows ─▶ a connection that is free ─▶ a frame ─▶ control socket ─▶ frames of the answer
    watch ─▶ a connection of its own, until nobody reads any more

A connection carries one request at a time; a few of them are kept, so that one long listing keeps
no others waiting. A broker that has gone is asked again by the next request, on a new connection.
A broker that hangs keeps nobody waiting, see `pulse.py`. Nothing is remembered here.

Must not know HTTP.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vouchmq.management.pulse import USUAL, Patience, Pulse
from vouchmq.server.admin.frames import FrameReader, request_frame
from vouchmq.server.edge.control.client import short_address

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

READ_BYTES: Final = 262144
CONNECTIONS: Final = 4
CONNECT_LIMIT_S: Final = 2.0
# However long a broker goes on with other work meanwhile: an import of definitions takes long.
ANSWER_LIMIT_S: Final = 600.0
# What is answered at once.
PROBE: Final = "listeners"

Row = dict[str, Any]


class BrokerUnavailable(Exception):  # noqa: N818 - the broker is what is missing
    """Nobody answers on the control socket.

    Args:
        text: why
        answered_at_ms: the last answer was at, in milliseconds since 1970; None: there was none
    """

    def __init__(self, text: str, answered_at_ms: int | None = None) -> None:
        super().__init__(text)
        self.answered_at_ms = answered_at_ms


class CommandRefused(Exception):  # noqa: N818 - not an error of this process
    """The broker does not do what it was asked for.

    Args:
        text: why, as AMQP's reply text where there is one
        code: as in HTTP and AMQP
        facts: everything that it answered
    """

    def __init__(self, text: str, code: int, facts: Row) -> None:
        super().__init__(text)
        self.text = text
        self.code = code
        self.facts = facts


class Broker:
    """Asks one broker.

    Args:
        directory: its data directory
        patience: for how long to wait for it when it hangs
    """

    def __init__(self, directory: Path, patience: Patience = USUAL) -> None:
        self._directory = directory
        self._free: list[_Connection] = []
        self._turns = asyncio.Semaphore(CONNECTIONS)
        self._pulse = Pulse(self._probe, patience)

    async def ask(self, command: str, **arguments: object) -> Row:
        """Have a command done; gives the last frame of its answer.

        Raises:
            CommandRefused: the broker does not do it
            BrokerUnavailable: it does not answer
        """
        _, answer = await self.both(command, **arguments)
        return answer

    async def rows(self, listing: str, **selection: object) -> list[Row]:
        """The rows of a listing, by the names of its columns.

        Raises:
            CommandRefused: the broker has no such listing
            BrokerUnavailable: it does not answer
        """
        return await self.found(f"list {listing}", **selection)

    async def found(self, command: str, **arguments: object) -> list[Row]:
        """The rows that a command finds, by the names of their columns.

        Raises:
            CommandRefused: the broker does not do it
            BrokerUnavailable: it does not answer
        """
        rows, _ = await self.both(command, **arguments)
        return rows

    async def both(self, command: str, **arguments: object) -> tuple[list[Row], Row]:
        """The rows that a command answers with, and the last frame.

        Raises:
            CommandRefused: the broker does not do it
            BrokerUnavailable: it does not answer
        """
        request = _request(command, arguments)
        await self._turn()
        try:
            connection = await self._connection()
            rows: list[Row] = []
            columns: list[str] = []
            try:
                async with asyncio.timeout(ANSWER_LIMIT_S):
                    async for content in connection.answer(request, self._pulse):
                        columns = content.get("columns", columns)
                        rows += [
                            dict(zip(columns, row, strict=True)) for row in content.get("rows", ())
                        ]
            except (OSError, EOFError, ValueError) as error:
                connection.close()
                raise self._unavailable(error) from error
            except BaseException:
                # What comes of the answer now would be taken for that of another request.
                connection.close()
                raise
            self._free.append(connection)
        finally:
            self._turns.release()
        if not content["ok"]:
            raise CommandRefused(content["error"], content.get("code", 400), content)
        return rows, content

    async def _turn(self) -> None:
        """Wait until fewer than `CONNECTIONS` requests are under way."""
        try:
            async with self._pulse.waiting():
                await self._turns.acquire()
        except TimeoutError as error:
            raise self._unavailable(error) from error

    async def _probe(self) -> None:
        # Of a broker that has gone, whoever waits is told by the end of their connection.
        with suppress(BrokerUnavailable):
            connection = await self._connect()
            try:
                async for _ in connection.answer(_request(PROBE, {})):
                    self._pulse.heard()
            except (OSError, EOFError, ValueError):
                pass
            finally:
                connection.close()

    def _unavailable(self, error: Exception) -> BrokerUnavailable:
        return BrokerUnavailable(_reason(error), self._pulse.answered_at_ms)

    async def _connection(self) -> _Connection:
        while self._free:
            connection = self._free.pop()
            if connection.is_open:
                return connection
            connection.close()
        return await self._connect()

    async def _connect(self) -> _Connection:
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                with short_address(self._directory) as address:
                    return _Connection(*await asyncio.open_unix_connection(address))
        except OSError as error:
            raise self._unavailable(error) from error

    async def watch(self, command: str, **arguments: object) -> AsyncIterator[Row]:
        """The rows of a command that goes on telling, as they come.

        Raises:
            CommandRefused: the broker does not do it
            BrokerUnavailable: it does not answer, or has gone
        """
        async for row in self._watched(command, arguments, self._pulse):
            yield row

    async def hold(self, command: str, **arguments: object) -> None:
        """Have a command begun that lasts as long as it is waited for.

        Raises:
            CommandRefused: the broker does not do it
            BrokerUnavailable: it does not answer, or has gone
        """
        async for _ in self._watched(command, arguments, None):
            pass

    async def frames(self, command: str, **arguments: object) -> AsyncGenerator[Row, None]:
        """The frames of an answer as they come, a refusal too, on a connection of its own.

        Raises:
            BrokerUnavailable: it does not answer, or has gone
        """
        connection = None
        try:
            connection = await self._connect()
            async for content in connection.answer(_request(command, arguments), self._pulse):
                yield content
        except (OSError, EOFError, ValueError) as error:
            raise self._unavailable(error) from error
        finally:
            if connection is not None:
                connection.close()

    async def _watched(
        self, command: str, arguments: dict[str, object], pulse: Pulse | None
    ) -> AsyncIterator[Row]:
        connection = await self._connect()
        columns: list[str] = []
        try:
            async for content in connection.answer(_request(command, arguments), pulse):
                if not content.get("ok", True):
                    raise CommandRefused(content["error"], content.get("code", 400), content)
                columns = content.get("columns", columns)
                for row in content.get("rows", ()):
                    yield dict(zip(columns, row, strict=True))
        except (OSError, EOFError, ValueError) as error:
            raise self._unavailable(error) from error
        finally:
            connection.close()

    def close(self) -> None:
        """Close what is open."""
        self._pulse.close()
        while self._free:
            self._free.pop().close()


class _Connection:
    """One connection; what has been read of an answer goes with it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = FrameReader()

    @property
    def is_open(self) -> bool:
        """False once the broker is known to have closed it."""
        return not self._reader.at_eof() and not self._writer.is_closing()

    async def answer(self, request: bytes, pulse: Pulse | None = None) -> AsyncIterator[Row]:
        """Send a request; gives the frames of its answer, to the last one.

        Args:
            request: one frame
            pulse: tells whether it is worth waiting; None: wait as long as it takes

        Raises:
            OSError, EOFError: the broker has gone
            TimeoutError: it hangs
            ValueError: it sends what is no frame
        """
        waiting = pulse.waiting if pulse is not None else nullcontext
        self._writer.write(request)
        async with waiting():
            await self._writer.drain()
        while True:
            async with waiting():
                data = await self._reader.read(READ_BYTES)
            if not data:
                break
            if pulse is not None:
                pulse.heard()
            self._frames.add(data)
            for content in self._frames:
                yield content
                if "ok" in content:
                    return
        raise EOFError("no answer")

    def close(self) -> None:
        """Close it."""
        self._writer.close()


def _request(command: str, arguments: Mapping[str, object]) -> bytes:
    """A command as a frame.

    Raises:
        CommandRefused: there is a value in it that no frame can have
    """
    try:
        return request_frame({"command": command, **arguments})
    except OverflowError:
        raise CommandRefused(f"{command}: an integer does not fit into 64 bits", 400, {}) from None
    except RecursionError:
        raise CommandRefused(f"{command}: nested too deeply", 400, {}) from None


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the broker does not answer"
    if isinstance(error, OSError):
        return f"no broker answers ({error.strerror or error})"
    return "the broker has closed the connection"
