"""One real server: appends, reads, purges, a full stream, credentials, TLS, settings."""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from tests.engine.servers import (
    MISSING,
    STREAM,
    SUBJECTS,
    NatsServer,
    program,
    single_server,
    wait_until,
)
from tests.engine.talk import Found, Questions, read_all
from tests.unit.server.replication.answers import Answers
from tests.unit.server.replication.keys import public_of, seed_of, signed
from tests.unit.server.replication.scripted_server import until
from vouchmq.server.replication import monitoring
from vouchmq.server.replication.addresses import Server
from vouchmq.server.replication.connection import Options
from vouchmq.server.replication.credentials import Credentials, parse_credentials
from vouchmq.server.replication.log import NatsLog
from vouchmq.server.replication.settings_check import find_faults

pytestmark = pytest.mark.skipif(program() is None, reason=MISSING)

SUBJECT = f"vq.{STREAM}.1"
SECRET = bytes(range(32))
SYSTEM_SECRET = bytes(range(1, 33))


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NatsServer]:
    """A server with what the test adds to its configuration."""
    made = single_server(tmp_path, settings=getattr(request, "param", ""))
    made.start()
    try:
        wait_until(made.is_ready, "a server")
        yield made
    finally:
        made.kill()


@asynccontextmanager
async def started_on(
    server: Server, options: Options | None = None
) -> AsyncIterator[tuple[NatsLog, Answers]]:
    """The log on what is there."""
    loop, answers = asyncio.get_running_loop(), Answers()
    engine = NatsLog(STREAM, [server], options or Options(), loop, random.Random())
    engine.start(answers)
    try:
        await until(lambda: engine.client.is_up)
        yield engine, answers
    finally:
        engine.stop()


@asynccontextmanager
async def started(
    server: Server, options: Options | None = None
) -> AsyncIterator[tuple[NatsLog, Answers]]:
    """The log on a new stream."""
    async with Questions([server], options) as questions:
        await questions.create_stream(1)
    async with started_on(server, options) as both:
        yield both


async def append(engine: NatsLog, answers: Answers, expected: int, raw: bytes) -> None:
    """Append, and wait for the acknowledgement."""
    engine.send(expected, SUBJECT, expected, [raw])
    await answers.wait_for("acked", expected, expected + 1)


async def test_records_are_appended_read_and_purged(server: NatsServer) -> None:
    records = [random.Random(size).randbytes(size) for size in (0, 1, 100, 1 << 16, 700_000)]
    async with started(server.server) as (engine, answers):
        for number, raw in enumerate(records):
            await append(engine, answers, number, raw)
        engine.send(77, SUBJECT, 2, [b"too late"])
        await answers.wait_for("refused", 77)
        assert await read_all([server.server]) == [*enumerate(records, 1)]
        engine.send(78, f"vq.{STREAM}.2", 5, [b"an", b"other"])
        await answers.wait_for("acked", 78, 6)
        engine.purge(SUBJECT)
        async with Questions([server.server]) as questions:
            await questions.up.wait()
            while (await questions.info()).state.messages > 1:
                pass
        assert await read_all([server.server]) == [(6, b"another")]


async def test_a_long_log_is_read_in_batches(server: NatsServer) -> None:
    async with started(server.server) as (engine, answers):
        for number in range(700):
            await append(engine, answers, number, b"%d" % number)
        loop = asyncio.get_running_loop()
        reader = NatsLog(STREAM, [server.server], Options(), loop, random.Random())
        found = await Found().read(reader, 301)
    assert found == [(number + 1, b"%d" % number) for number in range(300, 700)]


async def test_the_records_of_a_subject(server: NatsServer) -> None:
    async with started(server.server) as (engine, answers):
        for number in range(600):
            engine.send(number, f"vq.{STREAM}.{number % 2}", number, [b"%d" % number])
            await answers.wait_for("acked", number, number + 1)
        engine.read_subject(1000, f"vq.{STREAM}.1")
        await answers.wait_for("ended", 1000, 600)
        engine.read_subject(1001, f"vq.{STREAM}.7")
        await answers.wait_for("ended", 1001, 600)
    found = [what for what in answers.told if what[0] == "found"]
    assert found == [("found", 1000, each + 1, b"%d" % each) for each in range(1, 600, 2)]


async def test_records_survive_a_kill(server: NatsServer) -> None:
    async with started(server.server) as (engine, answers):
        await append(engine, answers, 0, b"first")
        server.kill()
        await answers.wait_for("lost")
        engine.read_from(5, 1)
        server.start()
        await answers.wait_for("ended", 5, 1)
        await append(engine, answers, 1, b"second")
    assert ("found", 5, 1, b"first") in answers.told


async def test_a_full_stream(server: NatsServer) -> None:
    async with Questions([server.server]) as questions:
        await questions.create_stream(1, max_bytes=10_000)
    async with started_on(server.server) as (engine, answers):
        await append(engine, answers, 0, bytes(8000))
        engine.send(7, SUBJECT, 1, [bytes(8000)])
        await answers.wait_for("refused", 7)
        assert engine.trouble == "maximum bytes exceeded"


async def test_a_stream_that_is_not_there(server: NatsServer) -> None:
    async with started_on(server.server) as (engine, answers):
        engine.send(7, SUBJECT, 0, [b"a"])
        await answers.wait_for("refused", 7)
        assert "does not exist" in engine.trouble
        engine.read_from(8, 1)
        await until(lambda: "stream not found" in engine.trouble)


USERS = 'authorization { users: [ { user: me, password: "it" } ] }'
TOKEN = 'authorization { token: "it" }'
KEYS = f"authorization {{ users: [ {{ nkey: {public_of(SECRET)} }} ] }}"


def operator() -> str:
    """The configuration of a server whose users have JWTs of an account."""
    said = {"name": "test", "nats": {"type": "operator", "version": 2}}
    own = signed(SECRET, "O", {"sub": public_of(SECRET, "O"), **said})
    account, granted = account_of(SECRET, {"mem_storage": -1, "disk_storage": -1, "streams": -1})
    # JetStream wants an account for itself, too.
    system, nothing = account_of(SYSTEM_SECRET, {})
    preloaded = f"resolver_preload {{ {account}: {granted}, {system}: {nothing} }}"
    return f"operator: {own}\nsystem_account: {system}\nresolver: MEMORY\n{preloaded}"


def account_of(secret: bytes, granted: dict[str, int]) -> tuple[str, str]:
    """The key of an account, and its JWT."""
    limits = {"subs": -1, "conn": -1, "leaf": -1, "data": -1, "payload": -1, **granted}
    claims = {"limits": limits, "type": "account", "version": 2}
    key = public_of(secret, "A")
    return key, signed(SECRET, "O", {"sub": key, "name": "test", "nats": claims})


def user_file() -> str:
    """The credentials file of one of its users."""
    claims = {"subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2}
    token = signed(SECRET, "A", {"sub": public_of(SECRET), "name": "me", "nats": claims})
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed_of(SECRET)}\n------END USER NKEY SEED------\n"
    )


@pytest.mark.parametrize(
    ("server", "credentials"),
    [
        (USERS, Credentials(user="me", password="it")),
        (TOKEN, Credentials(token="it")),
        (KEYS, parse_credentials(seed_of(SECRET))),
        (operator(), parse_credentials(user_file())),
    ],
    ids=["password", "token", "key", "jwt"],
    indirect=["server"],
)
async def test_credentials(server: NatsServer, credentials: Credentials) -> None:
    async with started(server.server, Options(credentials=credentials)) as (engine, answers):
        await append(engine, answers, 0, b"mine")
    async with Questions([server.server]) as questions:
        await until(lambda: questions.reasons)
        assert "Authorization Violation" in questions.reasons[0]


@pytest.fixture
def tls_server(
    request: pytest.FixtureRequest, tmp_path: Path, certificates: Path
) -> Iterator[NatsServer]:
    """A server that speaks TLS only, and asks for certificates of clients."""
    files = f'cert_file: "{certificates}/server.pem", key_file: "{certificates}/server.key"'
    more = f'ca_file: "{certificates}/ca.pem", verify: true, {request.param}'
    made = single_server(tmp_path, settings=f"tls {{ {files}, {more} }}")
    made.start()
    try:
        wait_until(made.is_ready, "a server")
        yield made
    finally:
        made.kill()


def trusting(certificates: Path, authority: str = "ca", client: str = "client") -> ssl.SSLContext:
    """What a client needs for it."""
    context = ssl.create_default_context(cafile=certificates / f"{authority}.pem")
    if client:
        context.load_cert_chain(certificates / f"{client}.pem")
    return context


@pytest.mark.parametrize(
    ("tls_server", "is_first"),
    [("", False), ("handshake_first: true", True)],
    ids=["after INFO", "first"],
    indirect=["tls_server"],
)
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_tls(
    tls_server: NatsServer,
    is_first: bool,
    certificates: Path,
    run: Callable[[Coroutine[None, None, None]], None],
) -> None:
    async def check() -> None:
        options = Options(tls=lambda: trusting(certificates), tls_first=is_first)
        async with started(tls_server.server, options) as (engine, answers):
            await append(engine, answers, 0, bytes(500_000))
            assert await read_all([tls_server.server], options) == [(1, bytes(500_000))]

    run(check())


@pytest.mark.parametrize("tls_server", [""], indirect=True)
@pytest.mark.parametrize(
    ("authority", "client", "reason"),
    [
        ("other", "client", "its certificate is not valid"),
        # Why is only in the server's log.
        ("ca", "stranger", "takes only clients with a certificate that is valid"),
        ("ca", "", "takes only clients with a certificate that is valid"),
    ],
)
async def test_certificates_of_strangers(
    tls_server: NatsServer, authority: str, client: str, reason: str, certificates: Path
) -> None:
    options = Options(tls=lambda: trusting(certificates, authority, client))
    async with Questions([tls_server.server], options) as questions:
        await until(lambda: questions.reasons)
        assert re.search(reason, questions.reasons[0]), questions.reasons
        assert not questions.client.is_up


async def test_settings_of_a_server_by_itself(server: NatsServer) -> None:
    """Everything is right but for the replicas, of which one server has one."""
    async with Questions([server.server]) as questions:
        await questions.create_stream(1)
        info = await questions.info()
    reports = {server.monitor: await asyncio.to_thread(monitoring.ask, server.monitor)}
    [fault] = find_faults(info, SUBJECTS, reports, 600_000)
    assert fault == "stream LOG has 1 of 3 replicas that it needs: set its replicas to 3"


async def test_settings_as_they_are_without_any(tmp_path: Path) -> None:
    server = single_server(tmp_path, sync='"2m"')
    server.start()
    try:
        await asyncio.to_thread(wait_until, server.is_ready, "a server")
        async with Questions([server.server]) as questions:
            await questions.create_stream(1, discard="old", deny_delete=False, allow_direct=False)
            info = await questions.info()
        reports = {server.monitor: await asyncio.to_thread(monitoring.ask, server.monitor)}
    finally:
        server.kill()
    faults = find_faults(info, SUBJECTS, reports, 2_000_000)
    assert [fault.rpartition(": ")[2] for fault in faults] == [
        "always } and restart it",
        "set max_payload to 2000000 or more",
        "set its replicas to 3",
        "its discard must be new",
        "its deny_delete must be true",
        "its allow_direct must be true",
    ]
