"""Backups of a running broker, and what is there after a restore.

Nothing that was confirmed before a backup began may be missing from it; what came later may be
there up to one moment, without holes.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.broker_process import (
    PROJECT,
    BrokerProcess,
    StartError,
    clean_environment,
    run_command,
)
from tests.integration.moving import blocking, drain
from tests.waiting import wait_until

MIB = 1024 * 1024
GROUP = 50
SEGMENT_FLAGS = ("--segment-size-bytes", str(MIB), "--log-level", "info")
PERSISTENT = pika.BasicProperties(delivery_mode=2)
LOST = (pika.exceptions.AMQPError, OSError)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path, flags=SEGMENT_FLAGS)
    process.start()
    try:
        yield process
        assert process.complaints() == []
    finally:
        process.kill9()


def backup(broker: BrokerProcess, target: Path, *flags: str) -> dict[str, Any]:
    """Make one; what it says of itself."""
    done = run_command(
        *("store", "backup", str(target), "--data-dir", str(broker.data_dir), "--json", *flags)
    )
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def started_backup(broker: BrokerProcess, target: Path, *flags: str) -> subprocess.Popen[str]:
    """Begin one that takes its time; wait until it copies."""
    copier = subprocess.Popen(
        [
            *(sys.executable, "-m", "vouchmq", "store", "backup", str(target)),
            *("--data-dir", str(broker.data_dir), "--json", *flags),
        ],
        cwd=PROJECT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: list(target.glob("*.partial/*.journal")) or copier.poll() is not None)
    assert copier.poll() is None, copier.stderr.read() if copier.stderr else ""
    return copier


def restored(backup_path: str, directory: Path) -> None:
    """Make a data directory of a backup; both are intact."""
    for command in (
        ("store", "check", backup_path),
        ("store", "restore", backup_path, str(directory), "--json"),
        ("store", "check", str(directory)),
    ):
        done = run_command(*command)
        assert done.returncode == 0, done.stderr + done.stdout
        if "restore" in command:
            assert json.loads(done.stdout)["path"] == str(directory)


def fill(broker: BrokerProcess, queue: str, *, count: int, size: int = 4096) -> list[bytes]:
    """Confirmed messages, each with its number in front."""
    bodies = [b"%08d" % number + bytes(size) for number in range(count)]
    with blocking(broker) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.tx_select()
        # A transaction is one block, and a block is in one segment.
        for at in range(0, count, GROUP):
            for body in bodies[at : at + GROUP]:
                channel.basic_publish("", queue, body, PERSISTENT)
            channel.tx_commit()
    return bodies


def contents(broker: BrokerProcess, queue: str) -> list[bytes]:
    with blocking(broker) as connection:
        return [body for body, _ in drain(connection.channel(), queue)]


def files(broker: BrokerProcess) -> set[str]:
    return {path.name for path in broker.data_dir.glob("*.journal")}


def purge(broker: BrokerProcess, queue: str) -> None:
    with blocking(broker) as connection:
        connection.channel().queue_purge(queue)


class Load:
    """Publishes with a confirm for each message, and consumes from another queue."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.confirmed: list[int] = []
        self.worked = 0

    def wait_for_more(self, count: int) -> int:
        """Wait until so many more are confirmed; gives how many are in all, at least."""
        least = len(self.confirmed) + count
        self._broker.wait_until(lambda: len(self.confirmed) >= least)
        return least

    def publish(self) -> None:
        with suppress(*LOST), blocking(self._broker) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            number = 0
            while True:
                body = b"%08d" % number + bytes(8192)
                channel.basic_publish("", "kept", body, PERSISTENT)
                self.confirmed.append(number)
                channel.basic_publish("", "worked", body, PERSISTENT)
                number += 1

    def consume(self) -> None:
        with suppress(*LOST), blocking(self._broker) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=10)
            for method, _, _ in channel.consume("worked"):
                assert method is not None
                channel.basic_ack(method.delivery_tag)
                self.worked += 1


@contextmanager
def under_load(broker: BrokerProcess) -> Iterator[Load]:
    """The broker has to be killed before the end of the block."""
    for queue in ("kept", "worked"):
        fill(broker, queue, count=0)
    load = Load(broker)
    threads = [threading.Thread(target=load.publish), threading.Thread(target=load.consume)]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        broker.kill9()
        for thread in threads:
            thread.join()


def test_nothing_that_was_confirmed_before_is_missing(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """Backups under load, the broker killed under load, its directory lost, the newest restored."""
    target = tmp_path / "backups"
    with under_load(broker) as load:
        for _ in range(3):
            before = load.wait_for_more(100)
            made = backup(broker, target)
    assert load.worked
    # Those that were not the last are as good as ever.
    assert len(list(target.iterdir())) == 3
    for path in target.iterdir():
        assert run_command("store", "check", str(path)).returncode == 0
    shutil.rmtree(broker.data_dir)
    restored(made["path"], broker.data_dir)
    broker.start()
    numbers = [int(body[:8]) for body in contents(broker, "kept")]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= before
    worked = [int(body[:8]) for body in contents(broker, "worked")]
    assert worked == sorted(set(worked))


def test_only_what_is_new_is_copied(broker: BrokerProcess, tmp_path: Path) -> None:
    """And a backup does not need the one that it shares files with."""
    target = tmp_path / "backups"
    bodies = fill(broker, "q", count=1500)
    first = backup(broker, target)
    assert first["copied_segments"] == first["segments"] > 5
    same = backup(broker, target)
    assert (same["copied_segments"], same["segments"]) == (0, first["segments"])
    more = fill(broker, "other", count=300)
    second = backup(broker, target)
    assert 1 <= second["copied_segments"] <= 3 < second["segments"]
    assert second["copied_bytes"] < second["size_bytes"] // 3
    for old in (first, same):
        shutil.rmtree(old["path"])
    restored(second["path"], tmp_path / "new" / "data")
    again = BrokerProcess(tmp_path / "new")
    again.start()
    try:
        assert contents(again, "q") == bodies
        assert contents(again, "other") == more
    finally:
        again.kill9()
    # What the broker did on the restored directory has left the backup alone.
    assert run_command("store", "check", second["path"]).returncode == 0


def test_segments_that_die_meanwhile_are_kept(broker: BrokerProcess, tmp_path: Path) -> None:
    target = tmp_path / "backups"
    bodies = fill(broker, "q", count=1500)
    before = files(broker)
    before.remove(max(before))  # that one takes more
    copier = started_backup(broker, target, "--rate", "2MiB")
    purge(broker, "q")
    broker.wait_until(lambda: broker.listed("store")[0]["segments"] == 1)
    output, _ = copier.communicate()
    assert copier.returncode == 0
    broker.wait_until(lambda: not before & files(broker))
    restored(json.loads(output)["path"], tmp_path / "new" / "data")
    again = BrokerProcess(tmp_path / "new")
    again.start()
    try:
        assert contents(again, "q") == bodies
    finally:
        again.kill9()


def test_a_copier_that_dies_keeps_nothing(broker: BrokerProcess, tmp_path: Path) -> None:
    target = tmp_path / "backups"
    fill(broker, "q", count=1500)
    before = files(broker)
    before.remove(max(before))  # that one takes more
    copier = started_backup(broker, target, "--rate", "1MiB")
    purge(broker, "q")
    second = run_command(
        *("store", "backup", str(tmp_path / "elsewhere"), "--data-dir", str(broker.data_dir))
    )
    assert (second.returncode, "another backup is being made" in second.stderr) == (1, True)
    copier.send_signal(signal.SIGKILL)
    copier.communicate()
    broker.wait_for_log("backup.given_up", "whoever made it has gone")
    broker.wait_until(lambda: not before & files(broker))
    [left] = target.iterdir()
    assert left.name.endswith(".partial")
    made = backup(broker, target)
    assert list(target.iterdir()) == [Path(made["path"])]


def test_a_broker_that_dies_leaves_no_backup(broker: BrokerProcess, tmp_path: Path) -> None:
    target = tmp_path / "backups"
    fill(broker, "q", count=1500)
    copier = started_backup(broker, target, "--rate", "2MiB")
    broker.kill9()
    _, error = copier.communicate()
    assert copier.returncode == 1
    assert "the broker ended during the backup" in error
    assert list(target.iterdir()) == []


def test_no_broker_starts_on_a_backup(broker: BrokerProcess, tmp_path: Path) -> None:
    """It may share its files with others."""
    made = backup(broker, tmp_path / "backups")
    broker.stop()
    broker.data_dir = Path(made["path"])
    with pytest.raises(StartError, match="is a backup"):
        broker.start()


def test_what_cannot_be_done_is_one_line(broker: BrokerProcess, tmp_path: Path) -> None:
    fill(broker, "q", count=10)
    made = backup(broker, tmp_path / "backups")
    place = ("--data-dir", str(broker.data_dir))
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    for words, code, arguments in (
        ("is not empty", 1, ("restore", made["path"], str(full))),
        ("is not a backup", 1, ("restore", str(full), str(tmp_path / "x"))),
        (
            f"not a backup: the newest backup in it is {made['path']}",
            1,
            ("restore", str(tmp_path / "backups"), str(tmp_path / "x")),
        ),
        ("inside of the data directory", 1, ("backup", str(broker.data_dir / "b"), *place)),
        ("no broker runs", 2, ("backup", str(tmp_path / "b"), "--data-dir", str(full))),
        ("cannot make a backup", 1, ("backup", str(full / "file"), *place)),
    ):
        done = run_command("store", *arguments)
        assert (done.returncode, words in done.stderr) == (code, True), done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_damage_is_found_before_it_is_restored(broker: BrokerProcess, tmp_path: Path) -> None:
    fill(broker, "q", count=10)
    made = backup(broker, tmp_path / "backups")
    [segment] = Path(made["path"]).glob("*.journal")
    content = bytearray(segment.read_bytes())
    content[-100] ^= 1
    segment.unlink()
    segment.write_bytes(content)
    done = run_command("store", "restore", made["path"], str(tmp_path / "new"))
    assert (done.returncode, "checksum is wrong" in done.stderr) == (1, True)
    assert run_command("store", "check", made["path"]).returncode == 1
    # What is there is no data directory.
    started = BrokerProcess(tmp_path)
    started.data_dir = tmp_path / "new"
    with pytest.raises(StartError, match="a restore that was not finished"):
        started.start()
