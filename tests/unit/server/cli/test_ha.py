"""`vouchmq ha`: what it prints, and its exit codes."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.unit.server.cli.brokers import AnsweringBroker
from vouchmq.server.cli import main as program
from vouchmq.store.disk import FileDisk
from vouchmq.store.journal.segment import segment_name
from vouchmq.store.recovery.recover import open_journal
from vouchmq.store.replication.log_view import START
from vouchmq.store.replication.position_file import PositionFile

LOG = ("--ha-log", "nats://127.0.0.1:1")
LEADER = {
    "node": "a",
    "role": "leader",
    "stream": "orders",
    "server": "127.0.0.1:4222",
    "epoch": 3,
    "sequence": 70,
    "lsn": 8,
    "trouble": "",
    "is_serving": True,
    "is_stalled": False,
    "uncommitted_bytes": 0,
}
STANDBY = {
    **{name: value for name, value in LEADER.items() if not name.startswith(("is_", "unc"))},
    "role": "standby",
    "leader": "b",
    "lag": 2,
    "synced_sequence": 60,
    "is_complete": True,
    "can_take_over": True,
}


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have commands ask a broker that answers so; gives it."""

    def answered_by(facts: dict[str, object]) -> AnsweringBroker:
        broker = AnsweringBroker({"ha status": facts, "ha handover": {}})
        monkeypatch.setattr("vouchmq.server.cli.client.LocalBroker", lambda *_: broker)
        return broker

    return answered_by


def test_a_leader_that_serves_is_well(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ask(LEADER)
    assert program.main(["ha", "status"]) == 0
    assert "role:                 leader\n" in capsys.readouterr().out


def test_a_leader_that_waits_for_a_standby_says_so(
    ask: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ask({**LEADER, "is_stalled": True, "standby_waiting_bytes": 70})
    assert program.main(["ha", "status"]) == 1
    said = capsys.readouterr().out
    assert "publishers blocked:   yes\n" in said
    assert "bytes on no standby:  70\n" in said


def test_a_standby_that_can_take_over_is_well(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ask(STANDBY)
    assert program.main(["ha", "status"]) == 0
    said = capsys.readouterr().out
    assert "leader:               b\n" in said
    assert "can take over:        yes\n" in said


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        # It has all of the log, as far as it knows, and the log does not answer it.
        ({**STANDBY, "can_take_over": False}, "can take over:        no\n"),
        ({**STANDBY, "can_take_over": False, "role": "candidate"}, "can take over:        no\n"),
        ({**LEADER, "is_serving": False}, "serves clients:       no\n"),
        ({**LEADER, "is_stalled": True}, "publishers blocked:   yes\n"),
    ],
)
def test_who_can_do_neither_is_not_and_says_so(
    ask: Any, facts: dict[str, object], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(facts)
    assert program.main(["ha", "status"]) == 1
    assert line in capsys.readouterr().out


@pytest.mark.parametrize("facts", [LEADER, STANDBY])
def test_a_server_of_the_log_that_is_lost_is_no_failure_while_the_log_answers(
    ask: Any, facts: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    ask({**facts, "trouble": "connection refused"})
    assert program.main(["ha", "status"]) == 0
    assert "trouble:              connection refused\n" in capsys.readouterr().out


def test_a_leader_tells_the_size_of_the_log_and_of_what_standbys_lack(
    ask: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    size = {"bytes": 3 << 30, "max_bytes": 1 << 40, "records": 1, "replicas": 3}
    standby = {
        "node": "b",
        "address": "b:5672",
        "can_take_over": True,
        "lag": 183,
        "lag_bytes": 98276,
        "synced_sequence": 5,
        "heard_s": 0.5,
    }
    ask({**LEADER, "log": {**size, "current_replicas": 2}, "standbys": [standby]})
    assert program.main(["ha", "status"]) == 0
    said = capsys.readouterr().out
    assert (
        "log:                  3.0 GiB of at most 1.0 TiB, 1 record,"
        " 2 of 3 servers have all of it\n"
    ) in said
    assert "b at b:5672, can take over, 183 records and 96.0 KiB behind, synced up to" in said
    ask({**LEADER, "log": {**size, "max_bytes": -1, "current_replicas": 3}})
    assert program.main(["ha", "status"]) == 0
    assert "log:                  3.0 GiB, no limit, 1 record, 3 of 3" in capsys.readouterr().out


def test_programs_get_all_of_it(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ask(STANDBY)
    assert program.main(["ha", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == STANDBY


def test_a_handover_is_asked_for(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    broker = ask(LEADER)
    assert program.main(["ha", "handover"]) == 0
    assert broker.asked == [("ha handover", {})]
    assert capsys.readouterr().out == "handing over\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["ha", "create"], "vouchmq: ha_log: name the servers of the log"),
        (["ha", "create", "--ha-log", "a"], "vouchmq: ha_log: a is no address"),
        (["ha", "create", "--max-bytes", "much"], "vouchmq: invalid value for '--max-bytes'"),
        (["ha", "create", "--max-bytes", "0.5"], "vouchmq: invalid value for '--max-bytes'"),
        (
            ["ha", "create", "--max-bytes", "200GX"],
            "vouchmq: invalid value for '--max-bytes': expected an amount such as 200GB or 1048576,"
            " not '200GX'; see vouchmq ha create --help\n",
        ),
        (
            ["ha", "create", "--max-bytes", "255MiB", *LOG],
            "vouchmq: --max-bytes: expected at least 268435456, 4 segments of the journal, not",
        ),
        (["ha", "resize", *LOG], "vouchmq: missing option '--max-bytes'"),
        (["ha", "resize", "--max-bytes", "1GB"], "vouchmq: ha_log: name the servers of the log"),
        (["ha", "create", "--ha-log", "nats://a", "--ha-stream", "a.b"], "vouchmq: --ha-stream"),
        (["ha", "create", "--from", "."], "vouchmq: ha_log: name the servers of the log"),
        (["ha", "create", "--from", ""], "vouchmq: invalid value for '--from'"),
        (["ha", "rescue"], "vouchmq: ha_log: name the servers of the log"),
        (["ha", "create", "--from", "no-dir", *LOG], "vouchmq: no-dir is no data directory"),
        (["ha", "rescue", "--data-dir", "no-dir", *LOG], "vouchmq: no-dir is no data directory"),
        (["ha", "position", "--data-dir", "no-dir"], "vouchmq: cannot read data directory no-dir"),
    ],
)
def test_mistakes_are_told_in_a_line(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(text)
    assert said.count("\n") == 1


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A directory with a message and a half."""
    with closing(FileDisk(tmp_path)) as disk:
        journal, _ = open_journal(disk, segment_size_bytes=1 << 20, wall_ms=lambda: 1)
        for raw in (b"one", b"two"):
            journal.append_run((1,), b"tail", [raw])
            journal.write()
        journal.close()
    return tmp_path


def position(directory: Path, *more: str) -> int:
    code: int = program.main(["ha", "position", "--data-dir", str(directory), *more])
    return code


def test_a_directory_of_no_log_has_a_last_block(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert position(stopped, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "directory": str(stopped),
        "is_running": False,
        "lsn": 2,
        "block": 3,
        "damage": [],
    }


def test_a_directory_tells_its_log_and_how_far_it_is(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(FileDisk(stopped)) as disk, closing(PositionFile(disk)) as file:
        file.put(bytes(15) + b"!", START._replace(sequence=7, epoch=3))
    assert position(stopped) == 0
    said = capsys.readouterr().out
    assert f"log:                  {'00' * 15}21\n" in said
    assert "epoch:                3\nhas records up to:    7\nlast LSN:             2\n" in said
    before = sorted(stopped.iterdir())
    assert position(stopped) == 0
    assert sorted(stopped.iterdir()) == before


def damage(directory: Path) -> None:
    """Have two segments, the first of which has rotted."""
    with closing(FileDisk(directory)) as disk:
        journal, _ = open_journal(disk, segment_size_bytes=1 << 20, wall_ms=lambda: 1)
        journal.append_run((1,), b"tail", [b"three"])
        journal.write()
        ticket = journal.begin_sync()
        for target in ticket.targets:
            target.sync()
        for file in journal.end_sync(ticket):
            file.close()
        journal.close()
    path = directory / segment_name(1)
    octets = bytearray(path.read_bytes())
    octets[150] ^= 1
    path.write_bytes(octets)


def test_damage_is_told_and_makes_no_log(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(stopped)
    assert position(stopped) == 1
    assert f"{segment_name(1)} is damaged at offset" in capsys.readouterr().out
    assert program.main(["ha", "create", "--from", str(stopped), *LOG]) == 1
    said = capsys.readouterr().err
    assert f"{segment_name(1)} is damaged at offset" in said
    assert said.count("\n") == 1


def test_a_directory_that_is_in_use_or_empty_makes_no_log(
    stopped: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(FileDisk(stopped)) as disk:
        disk.lock()
        assert program.main(["ha", "create", "--from", str(stopped), *LOG]) == 1
        assert "is in use by another broker" in capsys.readouterr().err
    empty = tmp_path_factory.mktemp("empty")
    assert program.main(["ha", "create", "--from", str(empty), *LOG]) == 2
    assert "contains no VouchMQ journal" in capsys.readouterr().err
    assert program.main(["ha", "rescue", "--data-dir", str(stopped), *LOG]) == 1
    assert "belongs to no log: vouchmq ha create --from" in capsys.readouterr().err
