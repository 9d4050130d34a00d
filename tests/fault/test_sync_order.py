"""No confirm of a persistent message leaves before its fdatasync: shown by system-call trace.

The broker runs below strace while clients publish; the trace is then judged by `sync_trace`,
which is itself shown to find planted reorderings, in made-up traces and in a doctored real one.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pamqp.commands as amqp
import psutil
import pytest

from tests.fault.sync_trace import STRACE, TRACED, SyncTrace
from tests.integration.broker_process import BrokerProcess
from tests.integration.raw_client import PeerClosedError, RawClient, content, method
from tests.waiting import LIMIT_S

QUEUE = "traced"
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def hexed(data: bytes | str) -> str:
    """Text as strace -xx prints it."""
    octets = data.encode() if isinstance(data, str) else data
    return "".join(f"\\x{octet:02x}" for octet in octets)


FILE = f"9<{hexed('/data/1.seg')}>"
OTHER = f"8<{hexed('/data/0.seg')}>"
SOCKET = "7<TCP:[127.0.0.1:5672->127.0.0.1:40000]>"
WRITE_1 = f'10 1.0 pwrite64({FILE}, "{hexed("..[mark 40000.1.1]..")}", 18, 0) = 18'
WRITE_2 = f'10 1.0 pwrite64({FILE}, "{hexed("..[mark 40000.1.2]..")}", 18, 18) = 18'
SYNC = f"11 1.1 fdatasync({FILE}) = 0"


def ack_line(seqno: int, *, multiple: bool = False) -> str:
    """A socket write of one basic.ack."""
    octets = method(1, amqp.Basic.Ack(delivery_tag=seqno, multiple=multiple))
    return f'10 1.2 write({SOCKET}, "{hexed(octets)}", {len(octets)}) = {len(octets)}'


def violations(*lines: str, count: int = 1) -> list[str]:
    """The judgement of a made-up trace."""
    return SyncTrace("\n".join(lines)).judge({(40000, 1): count}).violations


def test_checker_accepts_write_sync_ack() -> None:
    assert violations(WRITE_1, SYNC, ack_line(1)) == []
    assert violations(WRITE_1, WRITE_2, SYNC, ack_line(2, multiple=True), count=2) == []


def test_checker_finds_an_ack_before_its_sync() -> None:
    assert violations(WRITE_1, ack_line(1), SYNC)
    assert violations(ack_line(1), WRITE_1, SYNC)
    assert violations(WRITE_1, ack_line(1))
    assert violations(SYNC, ack_line(1))


def test_checker_finds_a_multiple_ack_that_covers_too_much() -> None:
    assert violations(WRITE_1, SYNC, WRITE_2, ack_line(2, multiple=True), SYNC, count=2)


def test_checker_finds_a_sync_that_began_before_the_write_returned() -> None:
    early = (f"11 1.0 fdatasync({FILE} <unfinished ...>", WRITE_1)
    assert violations(*early, "11 1.1 <... fdatasync resumed>) = 0", ack_line(1))
    late = (WRITE_1, f"11 1.0 fdatasync({FILE} <unfinished ...>")
    assert violations(*late, ack_line(1), "11 1.1 <... fdatasync resumed>) = 0")
    assert not violations(*late, "11 1.1 <... fdatasync resumed>) = 0", ack_line(1))


def test_checker_finds_a_sync_of_another_file_and_a_failed_one() -> None:
    assert violations(WRITE_1, SYNC.replace(FILE, OTHER), ack_line(1))
    assert violations(WRITE_1, SYNC.replace("= 0", "= -1 EIO (Input/output error)"), ack_line(1))


def test_checker_wants_the_directory_of_a_new_file_synced() -> None:
    path = hexed("/data/1.seg")
    made = f'10 1.0 openat(AT_FDCWD</>, "{path}", O_RDWR|O_CREAT|O_CLOEXEC, 0600) = 9<{path}>'
    directory = f"10 1.0 fsync(6<{hexed('/data')}>) = 0"
    assert violations(made, WRITE_1, SYNC, ack_line(1))
    assert violations(directory, made, WRITE_1, SYNC, ack_line(1))
    assert not violations(made, directory, WRITE_1, SYNC, ack_line(1))


def test_checker_misses_no_ack_that_is_split_over_two_writes() -> None:
    octets = method(1, amqp.Basic.Ack(delivery_tag=1))
    parts = [
        f'10 1.2 writev({SOCKET}, [{{iov_base="{hexed(part)}", iov_len={len(part)}}}], 1) '
        f"= {len(part)}"
        for part in (octets[:5], octets[5:])
    ]
    assert violations(WRITE_1, *parts, SYNC)
    assert not violations(WRITE_1, SYNC, *parts)
    assert violations(WRITE_1, SYNC, parts[0]), "an ack that never came whole is not an ack"


@pytest.fixture
def traced(
    referee_url: str | None, tmp_path: Path
) -> Iterator[Callable[..., tuple[BrokerProcess, Path]]]:
    """Starts a broker below strace; gives it and the trace file."""
    if referee_url is not None:
        pytest.skip("traces VouchMQ's own process")
    started: list[BrokerProcess] = []

    def start(*options: str, flags: Sequence[str] = ()) -> tuple[BrokerProcess, Path]:
        log = tmp_path / "trace.log"
        prefix = [*STRACE, "-e", f"trace={TRACED}", *options, "-o", str(log)]
        process = BrokerProcess(tmp_path, prefix=prefix, flags=flags)
        process.start(limit_s=60)
        started.append(process)
        return process, log

    yield start
    for process in started:
        process.kill9()


def finish(process: BrokerProcess, log: Path) -> str:
    """End the broker in good order and read its trace."""
    assert process.stop() == 0, process.output()
    return log.read_text(encoding="ascii", errors="replace")


def open_publisher(url: str) -> RawClient:
    """A connection with one channel in confirm mode."""
    client = RawClient(url).handshake()
    client.open_channel()
    client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
    return client


def marked(client: RawClient, seqno: int, queue: str = QUEUE, *, persistent: bool = True) -> bytes:
    """A publish whose body carries its mark."""
    body = b"[mark %d.1.%d]" % (client.local_port, seqno) + bytes(200)
    return content(1, "", queue, body, persistent=persistent)


def publish_load(client: RawClient, rounds: list[int]) -> None:
    """Publish so many at a time, waiting for the confirms of each round."""
    seqno = 0
    for size in rounds:
        batch = range(seqno + 1, seqno + size + 1)
        client.send(b"".join(marked(client, number) for number in batch))
        seqno += size
        client.confirmed_up_to(seqno)


def declare(url: str, queue: str, *, durable: bool) -> None:
    """Make a queue and leave."""
    with RawClient(url).handshake() as client:
        client.open_channel()
        client.call(1, amqp.Queue.Declare(queue=queue, durable=durable), amqp.Queue.DeclareOk)


@needs_strace
@pytest.mark.parametrize("slow_disk", [False, True])
def test_no_ack_leaves_before_the_sync_that_covers_it(
    traced: Callable[..., tuple[BrokerProcess, Path]], *, slow_disk: bool
) -> None:
    options = ["--inject=fdatasync:delay_exit=10000"] if slow_disk else []
    process, log = traced(*options)
    declare(process.url, QUEUE, durable=True)
    clients = [open_publisher(process.url) for _ in range(3)]
    plans = [[1] * 40, [20] * 10, [3, 50, 1, 7] * 5]
    threads = [
        threading.Thread(target=publish_load, args=(client, plan))
        for client, plan in zip(clients, plans, strict=True)
    ]
    ports = [client.local_port for client in clients]
    for thread in threads:
        thread.start()
    with RawClient(process.url).handshake() as consumer:
        consumer.open_channel()
        consumer.send(method(1, amqp.Basic.Consume(queue=QUEUE)))
        for sent, _ in consumer.deliveries(100):
            consumer.send(method(1, amqp.Basic.Ack(delivery_tag=sent.delivery_tag or 0)))
        for thread in threads:
            thread.join(60)
    for client in clients:
        with client:
            pass
    text = finish(process, log)
    expected = {(port, 1): sum(plan) for port, plan in zip(ports, plans, strict=True)}
    verdict = SyncTrace(text).judge(expected)
    assert verdict.violations == []
    total = sum(map(sum, plans))
    assert len(verdict.acked) == total
    assert 0 < verdict.sync_count < total / 2, "group commit should serve many with one sync"
    assert_doctored_trace_is_caught(text, expected)


def assert_doctored_trace_is_caught(text: str, expected: dict[tuple[int, int], int]) -> None:
    """Plant faults in a real trace, one at a time."""
    honest = SyncTrace(text)
    ack = next(ack for ack in honest.acks if (ack.port, ack.channel) in expected)
    port, channel = ack.port, ack.channel
    _, written = next(
        stored
        for mark, stored in honest.stored.items()
        if (mark.port, mark.channel) == (port, channel)
    )
    lines = list(honest.lines)
    lines.insert(written + 1, lines.pop(ack.line))
    assert SyncTrace("\n".join(lines)).judge(expected).violations, "an ack moved to the front"
    lines = list(honest.lines)
    for name, _, finished in honest.syncs:
        if not name.endswith("/data"):
            lines[finished] = lines[finished].replace("= 0", "= -1 EIO (Input/output error)")
    spoilt = SyncTrace("\n".join(lines)).judge(expected).violations
    assert len(spoilt) == sum(expected.values()), "all syncs failed"


@needs_strace
def test_a_broker_that_does_not_sync_is_caught(
    traced: Callable[..., tuple[BrokerProcess, Path]],
) -> None:
    process, log = traced(flags=["--durability-fsync", "off"])
    declare(process.url, QUEUE, durable=True)
    with open_publisher(process.url) as client:
        publish_load(client, [1, 10, 10])
        port = client.local_port
    verdict = SyncTrace(finish(process, log)).judge({(port, 1): 21})
    assert len(verdict.acked) == 21
    assert len(verdict.violations) == 21


@needs_strace
@pytest.mark.parametrize(("durable", "persistent"), [(True, False), (False, True), (False, False)])
def test_transient_publishes_are_confirmed_without_any_sync(
    traced: Callable[..., tuple[BrokerProcess, Path]], *, durable: bool, persistent: bool
) -> None:
    process, log = traced()
    declare(process.url, QUEUE, durable=durable)
    client = open_publisher(process.url)
    with client:
        time.sleep(0.3)
        began = len(log.read_text(encoding="ascii", errors="replace").splitlines())
        for seqno in range(1, 101):
            client.send(marked(client, seqno, persistent=persistent))
            client.confirmed_up_to(seqno)
        client.send(b"".join(marked(client, n, persistent=persistent) for n in range(101, 301)))
        client.confirmed_up_to(300)
        client.send(content(1, "", "no such queue", b"unroutable", persistent=True))
        client.confirmed_up_to(301)
        port = client.local_port
    trace = SyncTrace(finish(process, log))
    last = max(ack.line for ack in trace.acks if ack.port == port)
    assert last > began
    assert trace.syncs_between(began, last) == 0


@needs_strace
def test_a_slow_disk_delays_those_who_wait_for_it_and_nobody_else(
    traced: Callable[..., tuple[BrokerProcess, Path]],
) -> None:
    process, _ = traced("--inject=fdatasync:delay_exit=2000000")
    declare(process.url, QUEUE, durable=True)
    with open_publisher(process.url) as patient, open_publisher(process.url) as quick:
        began = time.monotonic()
        patient.send(marked(patient, 1))
        for seqno in range(1, 11):
            quick.send(marked(quick, seqno, persistent=False))
            quick.confirmed_up_to(seqno)
        # The sync is not over yet, and whoever waits for it has heard nothing.
        patient.wait_at_most(0.01)
        with pytest.raises(TimeoutError):
            patient.read()
        patient.wait_at_most(LIMIT_S)
        patient.confirmed_up_to(1)
        assert time.monotonic() - began > 1.9
    process.kill9()


@needs_strace
def test_a_failed_sync_confirms_nothing_and_ends_the_broker(
    traced: Callable[..., tuple[BrokerProcess, Path]],
) -> None:
    process, _ = traced("--inject=fdatasync:error=EIO:when=12+")
    declare(process.url, QUEUE, durable=True)
    acked, answer = 0, ""
    with open_publisher(process.url) as client:
        for seqno in range(1, 50):
            client.send(marked(client, seqno))
            try:
                _, answered = client.read()
            except PeerClosedError:
                answer = "closed"
                break
            answer = type(answered).__name__
            if not isinstance(answered, amqp.Basic.Ack):
                break
            acked = seqno
    assert 0 < acked < 49
    assert answer in {"Nack", "Close", "closed"}
    assert process.wait() not in {0, None}
    process.forgiven = ("store.failed",)
    assert process.complaints() == []
    assert "cannot sync" in process.output()
    healthy = BrokerProcess(process.data_dir.parent)
    healthy.start()
    try:
        with RawClient(healthy.url).handshake() as client:
            client.open_channel()
            client.send(method(1, amqp.Basic.Consume(queue=QUEUE, no_ack=True)))
            bodies = [body for _, body in client.deliveries(acked)]
        assert [int(body.split(b"]")[0].split(b".")[-1]) for body in bodies] == list(
            range(1, acked + 1)
        )
        assert healthy.stop() == 0
    finally:
        healthy.kill9()


def test_the_broker_ends_when_its_sync_helper_is_killed(own_broker: BrokerProcess) -> None:
    own_broker.forgiven = ("store.failed",)
    helpers = psutil.Process(own_broker.pid).children()
    if not helpers:
        pytest.skip("this broker syncs without a helper process")
    declare(own_broker.url, QUEUE, durable=True)
    with open_publisher(own_broker.url) as client:
        publish_load(client, [1, 5])
        for helper in helpers:
            os.kill(helper.pid, signal.SIGKILL)
        client.send(marked(client, 7))
        try:
            _, answered = client.read()
            assert not isinstance(answered, amqp.Basic.Ack), "acked without a sync"
        except PeerClosedError:
            pass
    assert own_broker.wait() != 0


def test_the_sync_helper_ends_with_the_broker(own_broker: BrokerProcess) -> None:
    helpers = psutil.Process(own_broker.pid).children()
    own_broker.kill9()
    _, alive = psutil.wait_procs(helpers, timeout=LIMIT_S)
    assert alive == []
