"""The audit finds each broken promise: it is what the other tests here rest on."""

from __future__ import annotations

from tests.engine import nodes
from tests.engine.nodes import LOG_ID, History
from tests.engine.writers import Attempt, Outcome, Seen, Writer, audit
from vouchmq.server.replication.addresses import Server
from vouchmq.store.replication import record
from vouchmq.store.replication.log_view import LogView
from vouchmq.store.replication.record import RecordHeader

NOWHERE = [Server("127.0.0.1", 1, needs_tls=False)]


async def writers(*attempts: dict[bytes, Attempt]) -> list[Writer]:
    """Writers with these attempts, which never run."""
    made = [Writer(f"w{number}", NOWHERE, Seen()) for number in range(len(attempts))]
    for writer, own in zip(made, attempts, strict=True):
        writer.attempts.update(own)
    return made


async def test_a_log_as_it_should_be() -> None:
    one = {
        b"a": Attempt(1, Outcome.ACKED, acked_at=1),
        b"b": Attempt(2, Outcome.REFUSED),
        b"d": Attempt(3, Outcome.FOUND, has_doubt=True),
        b"e": Attempt(4, has_doubt=True),
    }
    two = {b"c": Attempt(2, Outcome.ACKED, acked_at=2), b"f": Attempt(4)}
    seen = Seen({1: b"a"})
    log = [(1, b"a"), (2, b"c"), (3, b"d")]
    made = await writers(one, two)
    assert audit(made, seen, log) == []
    # What nobody has answered may stand there or not.
    assert audit(made, seen, [*log, (4, b"e")]) == []


async def test_each_breach() -> None:
    acked = Attempt(1, Outcome.ACKED, acked_at=1)
    for attempts, log, breach in (
        ({b"a": acked}, [], "what was acked at 1 is not there"),
        ({b"a": Attempt(1, Outcome.FOUND)}, [], "what was found at 1 is not there"),
        ({b"a": Attempt(1)}, [(1, b"x")], "nobody has sent what stands at 1"),
        (
            {b"a": Attempt(2), b"b": acked},
            [(1, b"b"), (2, b"b")],
            "a record stands in the log twice",
        ),
        ({b"b": acked, b"a": Attempt(5)}, [(1, b"b"), (2, b"a")], "a record for 5 stands at 2"),
        ({b"a": Attempt(1, Outcome.REFUSED)}, [(1, b"a")], "what stands at 1 was refused"),
        ({b"a": Attempt(1, Outcome.ACKED, acked_at=2)}, [(1, b"a")], "an ack of 2 for 1"),
        ({b"a": acked, b"b": acked}, [(1, b"a")], "1 was won twice"),
        ({b"a": Attempt(2)}, [(2, b"a")], "the sequences of the log are not 1, 2, 3 …"),
    ):
        assert breach in audit(await writers(attempts), Seen(), log), breach


async def test_what_readers_have_seen() -> None:
    seen = Seen()
    seen.add("one", 1, b"a")
    seen.add("two", 1, b"b")
    made = await writers({b"a": Attempt(1)})
    assert audit(made, seen, [(1, b"a")]) == ["two reads another record at 1"]
    assert audit(made, Seen({1: b"a"}), []) == ["what was read at 1 is not there"]


async def test_purged_records() -> None:
    acked = {b"%d" % each: Attempt(each, Outcome.ACKED, acked_at=each) for each in (1, 2, 3)}
    made = await writers(acked)
    seen = Seen({1: b"1", 2: b"2"})
    assert audit(made, seen, [(2, b"2"), (3, b"3")], range(1, 2)) == []
    assert audit(made, seen, [(3, b"3")], range(1, 2)) == [
        "the sequences of the log are not 1, 2, 3 …",
        "what was acked at 2 is not there",
        "what was read at 2 is not there",
    ]
    log = [(1, b"1"), (2, b"2"), (3, b"3")]
    assert audit(made, seen, log, range(1, 2)) == ["the sequences of the log are not 1, 2, 3 …"]


def log_of(*blocks: tuple[int, bytes]) -> list[tuple[int, bytes]]:
    """A log with these blocks, each in a record of its own, and a claim before each epoch."""
    log = [record.origin(LOG_ID)]
    at = LogView(log_id=LOG_ID)
    at.found(1, log[0])
    for epoch, body in blocks:
        if epoch > at.at.epoch:
            _append(log, at, record.CLAIM, epoch, record.claim_body("node", bytes(16)))
        _append(log, at, record.BLOCKS, epoch, body)
    return [*enumerate(log, 1)]


def _append(log: list[bytes], view: LogView, kind: int, epoch: int, body: bytes) -> None:
    at = view.at
    place = (at.generation, at.offset, at.block, at.lsn)
    header = RecordHeader(kind, at.checksum, epoch, at.number + 1, at.number, *place)
    log.append(record.seal(header, [body])[0] + body)
    view.found(len(log), log[-1])


def test_promised_blocks() -> None:
    one, two, three = ((1, block(1)), (1, block(2)), (2, block(3)))
    log = log_of(one, two, three)
    assert nodes.audit(History([one, two, three]), log) == []
    # A leader that was deaf learns late of its last record.
    assert nodes.audit(History([one, three, two]), log) == []
    assert nodes.audit(History([two, one]), log) == [
        "promised blocks of epoch 1 stand in another order"
    ]
    assert "1 promised blocks" in nodes.audit(History([(2, block(2))]), log)[0]
    assert nodes.audit(History(), log_of(one, one)) == ["a block stands in the log twice"]
    assert "does not continue" in nodes.audit(History(), [*log[:3], (4, log[4][1])])[0]
    assert nodes.audit(History(broken=["a hole"]), log) == ["a hole"]


def block(number: int) -> bytes:
    """As a node writes them."""
    return f"node 1 {number} ".encode() + bytes([number]) * 99
