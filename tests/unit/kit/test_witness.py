"""What a witness writes, in which order, and that it is there when the caller goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import LIMIT_S
from vouchmq.kit.bulk.frames import Delivery, Returned
from vouchmq.kit.bulk.properties import encode_properties
from vouchmq.kit.witness import Witness


def lines(directory: Path) -> list[dict[str, Any]]:
    """Every line of every file, in the order of the files' names."""
    return [
        json.loads(line)
        for path in sorted(directory.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def told(directory: Path) -> list[tuple[str, str, str, int]]:
    return [(each["e"], each["m"], each["k"], each["r"]) for each in lines(directory)]


class Clock:
    """Gives what it is told to."""

    def __init__(self, *times_us: int) -> None:
        self._times = iter(times_us)
        self._last = 0

    def __call__(self) -> int:
        self._last = next(self._times, self._last)
        return self._last * 1000


def test_a_line_has_what_a_judge_needs(tmp_path: Path) -> None:
    with Witness(tmp_path, "p1", clock=Clock(1_000, 2_000)) as witness:
        witness.sent(["m-1"], "orders")
    assert [path.name for path in tmp_path.iterdir()] == ["p1-1000-00000000.jsonl"]
    assert lines(tmp_path) == [
        {"w": "p1", "o": 1000, "n": 0, "e": "sent", "k": "orders", "t": 2000, "m": "m-1", "r": 0}
    ]


def test_every_event_has_its_word(tmp_path: Path) -> None:
    with Witness(tmp_path, "w") as witness:
        witness.sent(["a", "b"], "x/k")
        witness.confirmed(["a"], "x/k")
        witness.nacked(["b"], "x/k")
        witness.returned(["a"], "x/k")
        witness.received(["a"], "q", redelivered=True)
        witness.acked(["a"], "q")
        witness.rejected(["a"], "q")
        witness.drained(["b"], "q")
        witness.emptied("q")
    assert told(tmp_path) == [
        ("sent", "a", "x/k", 0),
        ("sent", "b", "x/k", 0),
        ("confirmed", "a", "x/k", 0),
        ("nacked", "b", "x/k", 0),
        ("returned", "a", "x/k", 0),
        ("received", "a", "q", 1),
        ("acked", "a", "q", 0),
        ("rejected", "a", "q", 0),
        ("drained", "b", "q", 0),
        ("drained", "", "q", 0),
    ]
    assert [each["n"] for each in lines(tmp_path)] == list(range(10))


def test_any_text_is_an_id(tmp_path: Path) -> None:
    odd = ['"', "\\", "ü\n\t", "\x00", "заказ", "\ud800", "", "a b"]
    with Witness(tmp_path, "w") as witness:
        witness.sent(odd, 'k"ey')
    assert [each["m"] for each in lines(tmp_path)] == odd
    assert {each["k"] for each in lines(tmp_path)} == {'k"ey'}


def test_time_never_goes_back(tmp_path: Path) -> None:
    with Witness(tmp_path, "w", clock=Clock(50, 60, 40, 70)) as witness:
        for _ in range(3):
            witness.sent(["m"], "k")
    assert [each["t"] for each in lines(tmp_path)] == [60, 60, 70]


def test_files_are_rotated_and_numbers_go_on(tmp_path: Path) -> None:
    with Witness(tmp_path, "w", file_bytes=200) as witness:
        for number in range(10):
            witness.sent([f"m{number}"], "k")
    assert len(list(tmp_path.iterdir())) > 3
    assert [each["n"] for each in lines(tmp_path)] == list(range(10))


def test_a_witness_that_comes_back_begins_anew(tmp_path: Path) -> None:
    for _ in range(2):
        with Witness(tmp_path, "w") as witness:
            witness.sent(["m"], "k")
    assert [each["n"] for each in lines(tmp_path)] == [0, 0]
    assert len({each["o"] for each in lines(tmp_path)}) == 2


@pytest.mark.parametrize("name", ["", "a/b", "..", "a-b", "x" * 65, "a b"])
def test_a_name_must_do_as_a_file_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="expected a witness name"):
        Witness(tmp_path, name)


def test_a_closed_witness_says_so(tmp_path: Path) -> None:
    witness = Witness(tmp_path, "w")
    witness.close()
    witness.close()
    with pytest.raises(ValueError, match="witness w is closed"):
        witness.sent(["m"], "k")


def test_a_full_disk_leaves_no_half_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    left = [30]

    def full(file: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(28, "No space left on device")
        size = write(file, bytes(data)[: left[0]])
        left[0] -= size
        return size

    with Witness(tmp_path, "w") as witness:
        witness.sent(["first"], "k")
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(OSError, match="No space left"):
                witness.sent(["lost"], "k")
        witness.sent(["second"], "k")
    assert [(each["n"], each["m"]) for each in lines(tmp_path)] == [(0, "first"), (1, "second")]


def test_what_a_killed_client_wrote_is_there(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from vouchmq.kit.witness import Witness\n"
        "witness = Witness(sys.argv[1], 'victim')\n"
        "witness.sent([f'm{number}' for number in range(1000)], 'k')\n"
        "witness.confirmed(['m0'], 'k')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=LIMIT_S)
    assert done.returncode == -9
    assert len(lines(tmp_path)) == 1001
    assert lines(tmp_path)[-1]["e"] == "confirmed"


class PublishError(Exception):
    """Named as aiormq names it."""


class NackError(Exception):
    """Named as pika names it."""


@pytest.mark.parametrize(
    ("error", "events"),
    [
        (None, ["sent", "confirmed"]),
        (PublishError(), ["sent", "returned"]),
        (NackError(), ["sent", "nacked"]),
        (ConnectionError(), ["sent"]),
    ],
)
def test_one_publish_is_told_by_how_it_ends(
    tmp_path: Path, error: Exception | None, events: list[str]
) -> None:
    def publish() -> None:
        if error is not None:
            raise error

    with Witness(tmp_path, "w") as witness:
        try:
            with witness.publishing("m", "k"):
                publish()
        except (PublishError, NackError, ConnectionError) as raised:
            assert raised is error
    assert [each["e"] for each in lines(tmp_path)] == events


def row(message_id: str, key: str = "q", exchange: str = "") -> tuple[str, str, bytes, bytes]:
    return exchange, key, encode_properties({"message_id": message_id}), b""


def test_a_run_of_the_bulk_client_is_told(tmp_path: Path) -> None:
    with Witness(tmp_path, "w") as witness:
        watch = witness.watch()
        rows = [row("a"), row("b", "k", "x"), row("c")]
        watch.sending(0, rows)
        watch.returned(1, Returned(312, "NO_ROUTE", "x", "k", rows[1][2], b""))
        watch.settled([0, 1], confirmed=True)
        watch.settled([2], confirmed=False)
    assert [each[:3] for each in told(tmp_path)] == [
        ("sent", "a", "q"),
        ("sent", "c", "q"),
        ("sent", "b", "x/k"),
        ("returned", "b", "x/k"),
        ("confirmed", "a", "q"),
        ("confirmed", "b", "x/k"),
        ("nacked", "c", "q"),
    ]


def deliveries() -> Iterator[Delivery]:
    for tag, (message_id, redelivered) in enumerate([("a", False), ("b", True)], 1):
        yield tag, redelivered, "", "q", encode_properties({"message_id": message_id}), b""


def test_deliveries_of_the_bulk_client_are_told(tmp_path: Path) -> None:
    with Witness(tmp_path, "w") as witness:
        ids = witness.took(list(deliveries()), "q")
        witness.acked(ids, "q")
        witness.took(list(deliveries())[:1], "q", drained=True)
    assert told(tmp_path) == [
        ("received", "a", "q", 0),
        ("received", "b", "q", 1),
        ("acked", "a", "q", 0),
        ("acked", "b", "q", 0),
        ("drained", "a", "q", 0),
    ]
