"""The audit finds each broken promise: it is what the other tests here rest on."""

from __future__ import annotations

from tests.engine.writers import Attempt, Outcome, Seen, Writer, audit
from vouchmq.server.replication.addresses import Server

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
