"""The servers of the log by the settings: how they are spoken to, whether they may be trusted.

Faults of settings are told in one line each, before anything is opened. What only the servers know
is asked of them: a start waits for servers that are not there yet, and is refused by those whose
settings lose records. Must not know what goes into the log.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vouchmq.server.edge.replicated.log_tls import LogTls
from vouchmq.server.errors import SettingsError
from vouchmq.server.replication import jetstream, monitoring
from vouchmq.server.replication.addresses import AddressError, parse_servers
from vouchmq.server.replication.client import Client
from vouchmq.server.replication.connection import Options
from vouchmq.server.replication.credentials import (
    Credentials,
    CredentialsError,
    parse_credentials,
)
from vouchmq.server.replication.jetstream import API, JetStreamError
from vouchmq.server.replication.log import NatsLog
from vouchmq.server.replication.monitoring import MonitoringError, ServerReport
from vouchmq.server.replication.reports import Topics
from vouchmq.server.replication.settings_check import (
    server_faults,
    setting_faults,
    stream_faults,
    unseen_servers,
)
from vouchmq.store.replication import record
from vouchmq.store.replication.log_writer import RECORD_BYTES
from vouchmq.store.replication.record import Subjects

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping, Sequence

    from vouchmq.server.replication.addresses import Server
    from vouchmq.server.replication.jetstream import StreamInfo
    from vouchmq.server.replication.nats_protocol import Message
    from vouchmq.server.settings.settings import Settings
    from vouchmq.store.replication.record import Record

# The largest message, with the header of a record and those of NATS.
MESSAGE_BYTES: Final = RECORD_BYTES + 4096
# To connect and to be answered.
ANSWER_LIMIT_S: Final = 10.0
# A question that changes nothing is asked again after so long: while servers elect who leads, they
# drop what they are asked, and answer the next one.
ASK_AGAIN_S: Final = 1.0


@dataclass(frozen=True)
class Engine:
    """Where the log is, and how its servers are spoken to."""

    servers: tuple[Server, ...]
    options: Options
    stream: str
    monitors: tuple[str, ...]

    @property
    def subjects(self) -> Subjects:
        """Those of its records."""
        return Subjects(self.stream)

    @property
    def topics(self) -> Topics:
        """Those beside it."""
        return Topics(self.stream)

    @property
    def pattern(self) -> str:
        """All subjects of its records."""
        return f"vq.{self.stream}.>"

    def log(self, loop: asyncio.AbstractEventLoop) -> NatsLog:
        """A connection to it."""
        return NatsLog(self.stream, self.servers, self.options, loop, random.SystemRandom())


def engine_of(settings: Settings) -> Engine:
    """The log that the settings name.

    Raises:
        SettingsError: an address, a file or a combination cannot be used
    """
    if settings.ha_confirm != "log" and not settings.ha_log:
        raise SettingsError(f"ha_confirm: {settings.ha_confirm} needs a shared log: set ha_log")
    try:
        servers, credentials = parse_servers(settings.ha_log)
    except AddressError as error:
        raise SettingsError(f"ha_log: {error}") from error
    if settings.ha_credentials:
        if credentials != Credentials():
            raise SettingsError("ha_credentials: ha_log has credentials too, use one of them")
        credentials = _read_credentials(settings.ha_credentials)
    if not settings.ha_monitors and not settings.ha_unsafe_log:
        raise SettingsError(
            "ha_monitors: name the monitoring addresses of the log's servers, such as"
            " http://host:8222; nothing else tells whether they sync what they acknowledge"
        )
    for each in settings.ha_monitors:
        if not each.startswith(("http://", "https://")):
            raise SettingsError(f"ha_monitors: {each} is no address: write http://host:8222")
    files = (settings.ha_tls_ca_file, settings.ha_tls_cert_file, settings.ha_tls_key_file)
    # Of the monitors too: the authority of the servers is the one that counts there.
    needs_tls = any(files) or any(each.needs_tls for each in servers)
    options = Options(
        credentials=credentials,
        tls=LogTls(*files) if needs_tls else None,
        name=f"vouchmq {settings.node}",
    )
    return Engine(servers, options, settings.ha_stream, settings.ha_monitors)


def _read_credentials(path: str) -> Credentials:
    try:
        return parse_credentials(Path(path).read_text("utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"ha_credentials: {path}: {error.strerror}") from error
    except (CredentialsError, UnicodeDecodeError) as error:
        raise SettingsError(f"ha_credentials: {path}: {error}") from error


async def ask(
    engine: Engine,
    what: str,
    payload: bytes,
    *,
    headers: bytes = b"",
    limit_s: float = ANSWER_LIMIT_S,
    changes_nothing: bool = False,
) -> Message:
    """Ask one of the servers one question; again and again if that changes nothing.

    Raises:
        JetStreamError: nobody answers
    """
    again_s = ASK_AGAIN_S if changes_nothing else 0.0
    question = _Question(engine, what, payload, headers, limit_s, again_s)
    try:
        async with asyncio.timeout(limit_s):
            return await question.answer
    except TimeoutError:
        trouble = question.client.trouble or f"no answer after {limit_s:g} s"
        raise JetStreamError(trouble) from None
    finally:
        question.end()


class _Question:
    """One question to whichever server is there, over a connection of its own.

    Args:
        engine: the log
        what: subject
        payload: content
        headers: lines with CRLF
        limit_s: for an answer
        again_s: after so long it is asked once more; 0: never
    """

    def __init__(
        self,
        engine: Engine,
        what: str,
        payload: bytes,
        headers: bytes,
        limit_s: float,
        again_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Message] = self._loop.create_future()
        self._what = what
        self._payload = payload
        self._headers = headers
        self._limit_s = limit_s
        self._again_s = again_s
        self._timer: asyncio.TimerHandle | None = None
        self.client = Client(
            engine.servers,
            engine.options,
            self._loop,
            random.SystemRandom(),
            went_up=self._ask,
            # The next server is tried.
            went_down=lambda _: None,
        )
        self.client.start()

    def end(self) -> None:
        """Nobody waits for the answer any more."""
        if self._timer is not None:
            self._timer.cancel()
        self.client.stop()

    def _ask(self) -> None:
        if self._again_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(self._again_s, self._ask)
        if self.client.is_up:
            self.client.request(
                self._what,
                [self._payload],
                self._answered,
                self._failed,
                limit_s=self._limit_s,
                headers=self._headers,
            )

    def _answered(self, message: Message) -> bool:
        if not self.answer.done():
            self.answer.set_result(message)
        return True

    def _failed(self, reason: str) -> None:
        if not self.answer.done() and not self._again_s:
            self.answer.set_exception(JetStreamError(reason))


async def ask_info(engine: Engine) -> StreamInfo:
    """What the stream's leader says of it.

    Raises:
        JetStreamError: there is no such stream, or nobody answers
    """
    answer = await ask(engine, f"{API}STREAM.INFO.{engine.stream}", b"", changes_nothing=True)
    return jetstream.parse_info(answer)


async def create(engine: Engine, *, replicas: int, max_bytes: int, log_id: bytes) -> None:
    """Make the stream, and its first record.

    Raises:
        JetStreamError: it cannot be made, or has records already
    """
    await create_stream(engine, replicas=replicas, max_bytes=max_bytes)
    await append_origin(engine, record.origin(log_id), 0)


async def create_stream(
    engine: Engine, *, replicas: int, max_bytes: int, first_sequence: int = 1
) -> None:
    """Make the stream without a record. One that an earlier attempt has left without a record, with
    other settings, gets these.

    Raises:
        JetStreamError: it cannot be made, or is made with other settings
    """
    wanted = _wanted(engine, replicas=replicas, max_bytes=max_bytes)
    if first_sequence > 1:
        wanted["first_seq"] = first_sequence
    request = jetstream.settings_request(wanted)
    made = await ask(engine, f"{API}STREAM.CREATE.{engine.stream}", request)
    try:
        info = jetstream.parse_info(made)
    except JetStreamError as error:
        if error.code != jetstream.STREAM_NAME_IN_USE:
            raise
        await set_up_empty(engine, replicas=replicas, max_bytes=max_bytes)
        return
    jetstream.require_settings(info, wanted)


def _wanted(engine: Engine, *, replicas: int, max_bytes: int) -> dict[str, object]:
    return jetstream.stream_settings(
        engine.stream,
        engine.pattern,
        replicas=replicas,
        max_bytes=max_bytes,
        max_message_bytes=-1,
    )


async def set_up_empty(engine: Engine, *, replicas: int, max_bytes: int) -> None:
    """Have a stream without a record the settings with which it would be made. Others that it has
    stay if they do no harm to a log.

    Raises:
        JetStreamError: it has records, is for something else, or cannot be changed
    """
    wanted = _wanted(engine, replicas=replicas, max_bytes=max_bytes)
    info = await ask_info(engine)
    if info.state.messages:
        raise JetStreamError("it exists and has records", jetstream.WRONG_LAST_SEQUENCE)
    if info.config.subjects != [engine.pattern]:
        raise JetStreamError("it exists, and its subjects are not those of a log")
    harmful = setting_faults(info.settings, engine.pattern, MESSAGE_BYTES)
    kept = {name: value for name, value in info.settings.items() if name not in harmful}
    found = await _update(engine, kept, wanted)
    if faults := _other_faults(engine, found, wanted):
        raise JetStreamError(f"it exists, and {faults[0]}")


async def resize(engine: Engine, max_bytes: int) -> StreamInfo:
    """Set the largest size of the log, and nothing else; gives what the stream is then.

    Raises:
        JetStreamError: it has no log, or more than that, or the servers refuse, or have set
            something else, or another setting keeps the log from having the room
    """
    info = await ask_info(engine)
    if info.config.subjects != [engine.pattern] or await find_log(engine) is None:
        raise JetStreamError("it has no log")
    if max_bytes < info.state.bytes:
        raise JetStreamError(f"it has {info.state.bytes} bytes already")
    wanted: dict[str, object] = {"max_bytes": max_bytes}
    found = await _update(engine, info.settings, wanted)
    # Of replicas brokers are told at their start, and may have been told not to mind.
    if faults := _other_faults(engine, found, {**wanted, "num_replicas": 0}):
        raise JetStreamError(f"its max_bytes is {max_bytes} now, and it {faults[0]}")
    return found


def _other_faults(engine: Engine, info: StreamInfo, asked: Mapping[str, object]) -> list[str]:
    """What is wrong with settings that nobody has asked for."""
    faults = setting_faults(info.settings, engine.pattern, MESSAGE_BYTES)
    return [text for name, text in faults.items() if name not in asked]


async def _update(
    engine: Engine, settings: Mapping[str, object], wanted: Mapping[str, object]
) -> StreamInfo:
    """Have a stream other settings in place of those that it has; gives what it has then.

    Raises:
        JetStreamError: the servers refuse, or have set something else
    """
    request = jetstream.settings_request({**settings, **wanted})
    answer = await ask(engine, f"{API}STREAM.UPDATE.{engine.stream}", request)
    info = jetstream.parse_info(answer)
    jetstream.require_settings(info, wanted)
    return info


async def append_origin(engine: Engine, origin: bytes, last: int) -> None:
    """Append the first record of a log to a stream without records, which ends with `last`.

    Raises:
        JetStreamError: nobody answers, or something else is there
    """
    answer = await ask(
        engine, engine.subjects.lasting, origin, headers=jetstream.append_headers(last)
    )
    jetstream.parse_ack(answer, engine.stream)


@dataclass(frozen=True)
class LogFound:
    """The log in a stream.

    Args:
        log_id: its id
        is_finished: nobody may follow it before
        sequence: of the record that has made it so
        checksum: of that record
        block: the last one of the journal with which the log began
    """

    log_id: bytes
    is_finished: bool
    sequence: int
    checksum: int
    block: int


async def find_log(engine: Engine) -> LogFound | None:
    """Which log the stream has; None if it does not begin as a log does.

    Raises:
        JetStreamError: there is no such stream, or nobody answers
        UnsupportedFormat: a newer program wrote it
    """
    # Whatever is there: nothing that stands before an origin is a log.
    first = await _next_record(engine, 1)
    if first is None or first[1].header.kind not in record.ORIGINS:
        return None
    at, one = first
    log_id = one.body
    is_finished = one.header.kind == record.ORIGIN
    while not is_finished:
        # Claims of those who copied may be in between; no other before it is complete.
        found = await _next_record(engine, at + 1, engine.subjects.lasting)
        if found is None:
            break
        at, one = found
        is_finished = one.header.kind == record.COMPLETE
    return LogFound(log_id, is_finished, at, one.checksum, one.header.block)


async def _next_record(engine: Engine, first: int, subject: str = "") -> tuple[int, Record] | None:
    """The next record from a sequence on, with a subject or any, and its sequence."""
    request = jetstream.next_request(first, subject)
    what = f"{API}STREAM.MSG.GET.{engine.stream}"
    answer = await ask(engine, what, request, changes_nothing=True)
    try:
        stored = jetstream.parse_next(answer)
    except JetStreamError as error:
        if error.code == jetstream.NO_MESSAGE_FOUND:
            return None
        raise
    one = record.open_record(stored.raw)
    return (stored.sequence, one) if one is not None else None


def see_servers(
    monitors: tuple[str, ...],
    tls: ssl.SSLContext | None,
    ask_server: Callable[[str, ssl.SSLContext | None], ServerReport] = monitoring.ask,
) -> dict[str, ServerReport | str]:
    """What each monitoring address says, or why it says nothing; this blocks."""
    reports: dict[str, ServerReport | str] = {}
    for each in monitors:
        try:
            reports[each] = ask_server(each, tls)
        except MonitoringError as error:
            reports[each] = str(error)
    return reports


def faults_of(
    info: StreamInfo, pattern: str, reports: Mapping[str, ServerReport | str]
) -> tuple[list[str], list[str]]:
    """What forbids the use of this log, and what could not be seen but need not be.

    Of the servers that hold the stream a majority has to be seen: one that is down, as after the
    loss of its machine, keeps no broker from its start.
    """
    seen = {each: report for each, report in reports.items() if not isinstance(report, str)}
    unseen = [
        *server_faults({a: b for a, b in reports.items() if a not in seen}, MESSAGE_BYTES),
        *unseen_servers(info, reports.values()),
    ]
    faults = [
        *server_faults(seen, MESSAGE_BYTES),
        *stream_faults(info.settings, pattern, MESSAGE_BYTES),
    ]
    holders = {info.cluster.leader, *(each.name for each in info.cluster.replicas)} - {""}
    names = {each.server_name for each in seen.values()}
    if 2 * len(holders & names) <= len(holders) or not names:
        return [*faults, *unseen], []
    return faults, unseen


async def check(engine: Engine) -> tuple[list[str], list[str]]:
    """See `faults_of`, of the servers as they are now.

    Raises:
        JetStreamError: there is no such stream, or nobody answers
    """
    info = await ask_info(engine)
    tls = engine.options.tls
    job = partial(see_servers, engine.monitors, tls() if tls is not None else None)
    reports = await asyncio.get_running_loop().run_in_executor(None, job)
    return faults_of(info, engine.pattern, reports)


@dataclass(frozen=True)
class Seen:
    """What can be known of a log from outside.

    Args:
        info: of the stream
        faults: what forbids the use of the log
        unseen: what could not be seen, and need not be
        log: which the stream has
    """

    info: StreamInfo
    faults: Sequence[str]
    unseen: Sequence[str]
    log: LogFound | None


async def see(engine: Engine) -> Seen:
    """Everything that is asked before a log is used.

    Raises:
        JetStreamError: there is no such stream, or nobody answers
    """
    faults, unseen = await check(engine)
    return Seen(await ask_info(engine), faults, unseen, await find_log(engine))
