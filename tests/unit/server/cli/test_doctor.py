"""`vouchmq doctor`: what each check finds of set-ups that are wrong."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from tests.unit.server.replication.reports import GOOD, info
from vouchmq.server.cli.doctor import choices, disk, host, limits, run, shared_log
from vouchmq.server.cli.doctor.findings import Finding, Level
from vouchmq.server.cli.main import main
from vouchmq.server.edge.replicated.engine import Engine, LogFound, Seen
from vouchmq.server.replication.jetstream import (
    STREAM_NOT_FOUND,
    Cluster,
    JetStreamError,
    Replica,
    StreamState,
)
from vouchmq.server.settings.settings import Settings

GIB = 1 << 30
MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
23 22 0:21 / /fast rw,relatime - tmpfs tmpfs rw
24 22 0:22 / /with\\040space rw,relatime - xfs /dev/sdb rw,nobarrier
25 22 0:23 / /layer rw,relatime - overlay overlay rw
26 22 0:24 / /far rw,relatime shared:1 - nfs4 server:/ rw
"""


def levels(found: Iterable[Finding]) -> list[Level]:
    return [each.level for each in found]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A /proc with some mounts, and a process 7."""
    root = tmp_path / "root"
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/7").mkdir()
    (root / "proc/self/mountinfo").write_text(MOUNTS)
    return root


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        *(("/", "ext4"), ("/faster/d", "ext4"), ("/fast", "tmpfs"), ("/fast/d", "tmpfs")),
        *(("/with space/d", "xfs"), ("/layer/d", "overlay"), ("/far/d", "nfs4")),
    ],
)
def test_the_mount_of_a_directory(root: Path, place: str, kind: str) -> None:
    mount = disk.mount_of(Path(place), root)
    assert mount is not None
    assert mount.kind == kind


def test_file_systems_that_forget_or_do_not_sync(root: Path) -> None:
    def found(place: str) -> list[tuple[Level, str]]:
        settings = Settings(data_dir=Path(place))
        return [(each.level, each.text) for each in disk.check_directory(settings, root)][-1:]

    assert found("/fast/d")[0][0] is Level.ERROR
    assert found("/layer/d")[0][0] is Level.WARNING
    assert found("/far/d")[0][0] is Level.WARNING
    assert found("/d")[0][0] is Level.OK
    assert found("/with space/d") == [
        (Level.ERROR, "/with space is mounted with nobarrier: a sync does not reach the disk")
    ]


def test_a_directory_that_others_may_read_or_that_is_a_file(tmp_path: Path) -> None:
    place = tmp_path / "data"
    place.mkdir(mode=0o755)
    [first, *_] = disk.check_directory(Settings(data_dir=place))
    assert (first.level, first.mend) == (Level.WARNING, f"chmod 700 {place}")
    place.chmod(0o700)
    assert Level.WARNING not in levels(disk.check_directory(Settings(data_dir=place)))[:1]
    file = tmp_path / "file"
    file.touch()
    [only] = disk.check_directory(Settings(data_dir=file))
    assert (only.level, only.text) == (Level.ERROR, f"{file} is a file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_of_somebody_else(tmp_path: Path) -> None:
    place = tmp_path / "data"
    place.mkdir(mode=0o500)
    assert levels(disk.check_directory(Settings(data_dir=place)))[0] is Level.ERROR


def test_free_space_against_the_limit(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    free = found.f_bavail * found.f_frsize

    def level(limit: int) -> Level:
        [only] = disk.check_space(Settings(data_dir=tmp_path), limit)
        return only.level

    assert level(0) is Level.WARNING
    assert level(free * 2) is Level.ERROR
    assert level(int(free * 0.75)) is Level.WARNING
    assert level(free // 100) is Level.OK


def test_times_of_syncs_that_are_too_short_or_long(tmp_path: Path) -> None:
    def level(*times_ms: float) -> Level:
        [only] = disk.check_syncs(Settings(data_dir=tmp_path), lambda _: list(times_ms))
        return only.level

    assert level(0.001, 0.002, 90.0) is Level.WARNING
    assert level(0.05, 1.0, 90.0) is Level.OK
    assert level(25.0, 30.0) is Level.WARNING

    def refuse(_: Path) -> list[float]:
        raise OSError(5, "Input/output error")

    [only] = disk.check_syncs(Settings(data_dir=tmp_path), refuse)
    assert only.level is Level.ERROR
    assert "Input/output error" in only.text


def test_syncs_are_measured_and_leave_nothing(tmp_path: Path) -> None:
    times = disk.sync_times_ms(tmp_path)
    assert len(times) == disk.SYNCS
    assert min(times) > 0
    assert list(tmp_path.iterdir()) == []


def test_descriptors_of_the_process_that_runs(root: Path) -> None:
    limits = root / "proc/7/limits"
    for text, level in (("1024", Level.WARNING), ("65536", Level.OK), ("unlimited", Level.OK)):
        limits.write_text(f"Limit Soft Hard Units\nMax open files   {text}   {text}   files\n")
        assert levels(host.check_descriptors(7, root)) == [level]
    assert len(levels(host.check_descriptors(None, root))) == 1


def test_memory_against_the_watermark() -> None:
    def level(text: str, total: int = 10 * GIB) -> Level:
        settings = Settings(vm_memory_high_watermark=text)
        limits = run.alarm_limits(settings, total, is_running=False)
        [only] = host.check_memory(total, limits["memory"])
        return only.level

    assert level("0.6") is Level.OK
    assert level("0.9") is Level.WARNING
    assert level("9GB", 10 * GIB) is Level.WARNING
    assert level("0.6", GIB // 4) is Level.WARNING


def test_a_clock_that_went_back_or_is_not_kept(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    file = tmp_path / "segment"
    file.touch()
    now = file.stat().st_mtime
    for late_s, is_kept, expected in (
        (7200, True, [Level.WARNING]),
        (0, False, [Level.NOTE]),
        (0, True, [Level.OK]),
        (0, None, []),
    ):
        at = now - late_s
        kept = is_kept
        found = host.check_clock(settings, lambda at=at: at, lambda kept=kept: kept)  # type: ignore[misc]
        assert levels(found) == expected


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        [only] = host.check_ports(Settings(host=("127.0.0.1",), port=port))
    assert only.level is Level.ERROR
    assert f"127.0.0.1:{port}" in only.text
    [only] = host.check_ports(Settings(host=("127.0.0.1",), port=0))
    assert only.level is Level.OK


def test_a_library_that_ignores_syncs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = root / "proc/7/maps"
    maps.write_text("7f00-7f01 r-xp /usr/lib/libc.so\n")
    assert levels(host.check_preloads(7, root)) == []
    maps.write_text("7f00-7f01 r-xp /usr/lib/libeatmydata.so\n")
    assert levels(host.check_preloads(7, root)) == [Level.ERROR]
    monkeypatch.setenv("LD_PRELOAD", "libeatmydata.so")
    assert levels(host.check_preloads(None, root)) == [Level.ERROR]


def test_durability_is_that_of_the_broker_that_runs() -> None:
    off = Settings(durability_fsync=False)
    assert levels(choices.check_durability(off, None)) == [Level.ERROR]
    assert levels(choices.check_durability(off, {})) == [Level.OK]
    assert levels(choices.check_durability(Settings(), {"durability_fsync": "off"})) == [
        Level.ERROR
    ]


def test_the_first_user_with_a_known_password(tmp_path: Path) -> None:
    new = tmp_path / "new"

    def found(**chosen: object) -> list[Level]:
        return levels(choices.check_logins(Settings(data_dir=new, **chosen)))  # type: ignore[arg-type]

    everywhere = {"host": ("0.0.0.0",), "loopback_users": ()}
    assert found() == []
    assert found(host=("0.0.0.0",)) == [Level.NOTE]
    assert found(**everywhere) == [Level.ERROR]
    assert found(**everywhere, default_pass="other") == []
    new.mkdir()
    (new / "segment").touch()
    assert found(**everywhere) == []


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One that is valid for 30 days."""
    place = tmp_path_factory.mktemp("tls")
    key, file = place / "key.pem", place / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30"]
    names = ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(file)]
    subprocess.run([*command, *names], check=True, capture_output=True)
    return file, key


def test_certificates_that_end(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    file, key = map(str, certificate)
    settings = Settings(tls_port=5671, tls_cert_file=file, tls_key_file=key)
    now = datetime.now(UTC)
    for days, level in ((0, Level.OK), (15, Level.WARNING), (31, Level.ERROR)):
        found = choices.check_certificates(settings, now + timedelta(days=days))
        assert levels(found) == [level]
    until = choices.expiry_of(certificate[0].read_text())
    assert abs(until - now - timedelta(days=30)) < timedelta(minutes=10)
    missing = Settings(tls_port=5671, tls_cert_file=str(tmp_path / "none"), tls_key_file=key)
    assert levels(choices.check_certificates(missing)) == [Level.ERROR]
    assert levels(choices.check_certificates(Settings())) == []


def test_the_certificate_for_the_log_ends_too(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    file, key = map(str, certificate)
    settings = Settings(ha_log="tls://log", ha_tls_cert_file=file, ha_tls_key_file=key)
    now = datetime.now(UTC)
    for days, level in ((0, Level.OK), (15, Level.WARNING), (31, Level.ERROR)):
        (found,) = choices.check_certificates(settings, now + timedelta(days=days))
        assert (found.level, found.subject) == (level, "TLS of the log")
    broken = replace(settings, ha_tls_key_file=str(tmp_path / "none"))
    (found,) = choices.check_certificates(broken)
    assert found.level is Level.ERROR
    assert "ha_tls_key_file" in found.text
    # Without a log nobody shows it.
    assert levels(choices.check_certificates(replace(settings, ha_log=""))) == []


@pytest.mark.parametrize(
    "text", ["", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----"]
)
def test_what_is_no_certificate(text: str) -> None:
    with pytest.raises(ValueError, match="no certificate"):
        choices.expiry_of(text)


def test_the_worst_comes_last_and_decides_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["doctor", "--data-dir", str(tmp_path), "--port", "0"]
    main(words)
    assert capsys.readouterr().out.splitlines()[-1].endswith(" found")
    assert main([*words, "--durability-fsync", "off"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].startswith("error   durability: durability_fsync is off")
    assert main([*words, "--durability-fsync", "off", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["findings"][-1] == {
        "level": "error",
        "subject": "durability",
        "text": "durability_fsync is off: confirmed messages are lost when the power fails",
        "mend": "remove durability_fsync = off; it is for tests and benchmarks",
    }
    assert document["wrong"] >= 1
    assert run.running(Settings(data_dir=tmp_path)) is None


def test_a_broker_that_is_swapped_out(root: Path) -> None:
    file = root / "proc/7/status"
    file.write_text("VmRSS:  10 kB\nVmSwap:\t 2048 kB\n")
    [found] = limits.check_swap(7, root)
    assert (found.level, found.text.startswith("2.0 MiB of")) == (Level.WARNING, True)
    file.write_text("VmSwap:\t 0 kB\n")
    assert levels(limits.check_swap(7, root)) == [Level.OK]
    assert levels(limits.check_swap(None, root)) == []
    assert levels(limits.check_swap(8, root)) == []


def test_a_broker_that_its_quota_stops(root: Path) -> None:
    (root / "proc/7/cgroup").write_text("0::/a.slice\n")
    group = root / "sys/fs/cgroup/a.slice"
    group.mkdir(parents=True)
    for stat, wanted in (
        ("usage_usec 5\nnr_periods 100\nnr_throttled 20\n", [Level.WARNING]),
        ("usage_usec 5\nnr_periods 100\nnr_throttled 1\n", [Level.OK]),
        ("usage_usec 5\nnr_periods 0\nnr_throttled 0\n", []),
        ("usage_usec 5\n", []),
    ):
        (group / "cpu.stat").write_text(stat)
        assert levels(limits.check_throttling(7, root)) == wanted
    assert levels(limits.check_throttling(None, root)) == []


def test_few_connections_may_wait(root: Path) -> None:
    file = root / "proc/sys/net/core/somaxconn"
    file.parent.mkdir(parents=True)
    file.write_text("128\n")
    assert levels(limits.check_backlog(root)) == [Level.WARNING]
    file.write_text("4096\n")
    assert levels(limits.check_backlog(root)) == []


def test_files_that_may_not_be_as_large_as_a_segment(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(data_dir=tmp_path)
    line = "Max file size             {}                unlimited            bytes\n"
    (root / "proc/7/limits").write_text(line.format(1000))
    assert levels(limits.check_files(settings, 7, root)) == [Level.ERROR]
    (root / "proc/7/limits").write_text(line.format("unlimited"))
    assert levels(limits.check_files(settings, 7, root)) == []
    real = os.statvfs(tmp_path)

    class Full:
        f_files = real.f_files or 1
        f_favail = 0

    monkeypatch.setattr(os, "statvfs", lambda _: Full)
    assert levels(limits.check_files(settings, 7, root)) == [Level.ERROR]
    Full.f_favail = 5
    assert levels(limits.check_files(settings, 7, root)) == [Level.WARNING]


def test_a_disk_whose_cache_is_not_emptied(root: Path) -> None:
    disk_of = root / "sys/devices/x/block/sda"
    partition = disk_of / "sda1"
    partition.mkdir(parents=True)
    (disk_of / "queue").mkdir()
    cache_type = disk_of / "device/scsi_disk/0:0/cache_type"
    cache_type.parent.mkdir(parents=True)
    link = root / "sys/dev/block/8:1"
    link.parent.mkdir(parents=True)
    link.symlink_to(partition)
    settings = Settings(data_dir=Path("/d"))
    for kernel, said, wanted in (
        ("write back", "write back", []),
        ("write through", "write back", [Level.ERROR]),
        ("write through", "write through", [Level.NOTE]),
    ):
        (disk_of / "queue/write_cache").write_text(f"{kernel}\n")
        cache_type.write_text(f"{said}\n")
        assert levels(disk.check_write_cache(settings, root)) == wanted
    # There is no disk below it.
    assert levels(disk.check_write_cache(Settings(data_dir=Path("/fast/d")), root)) == []


LOG = Settings(ha_log="nats://a:4222", ha_monitors=("http://a:8222",))


def log_found(
    settings: Settings = LOG, *, error: JetStreamError | None = None, **changes: object
) -> list[tuple[Level, str]]:
    """What is found of a log that is well but for this."""
    seen = Seen(info(), (), (), LogFound(bytes(16), True, 1, 0, 0))

    def look(_: Engine) -> Seen:
        if error is not None:
            raise error
        return replace(seen, **changes)  # type: ignore[arg-type]

    return [(each.level, each.text) for each in shared_log.check_log(settings, look)]


def test_a_shared_log_that_is_well_or_not() -> None:
    assert log_found(Settings()) == []
    assert log_found() == [(Level.OK, "3 of 3 servers have all of the stream vouchmq")]
    assert log_found(replace(LOG, ha_monitors=()))[0][1].startswith("ha_monitors: name the")
    silent = JetStreamError("nobody answers")
    assert log_found(error=silent) == [(Level.ERROR, "it does not answer: nobody answers")]
    missing = JetStreamError("stream not found", STREAM_NOT_FOUND)
    assert log_found(error=missing) == [(Level.ERROR, "there is no stream vouchmq")]
    assert log_found(faults=["server a has no JetStream"])[0] == (
        Level.ERROR,
        "server a has no JetStream",
    )
    unsafe = replace(LOG, ha_unsafe_log=True)
    assert log_found(unsafe, faults=["it is one server"])[0][0] is Level.WARNING
    assert log_found(unseen=["server b cannot be checked"])[0][0] is Level.WARNING
    assert log_found(log=None)[0][0] is Level.ERROR
    unfinished = LogFound(bytes(16), False, 1, 0, 0)
    assert log_found(log=unfinished)[0][1] == "the log in the stream vouchmq is not complete"


def test_confirms_that_wait_for_a_standby_without_a_shared_log() -> None:
    (found,) = shared_log.check_log(Settings(ha_confirm="log+standby"))
    assert found.level is Level.ERROR
    assert "set ha_log" in found.text


def test_servers_of_a_shared_log_that_lack_something() -> None:
    alone = msgspec.structs.replace(info(), cluster=Cluster())
    assert log_found(info=alone)[0][0] is Level.ERROR
    behind = Cluster(leader="n1", replicas=[Replica(name="n2", current=True), Replica(name="n3")])
    found = log_found(info=msgspec.structs.replace(info(), cluster=behind))
    assert found == [(Level.WARNING, "2 of 3 servers have all of the stream vouchmq")]


def test_a_shared_log_that_is_nearly_full() -> None:
    limited = info({**GOOD, "max_bytes": 10 * GIB})
    for used, wanted in ((7, [Level.OK]), (9, [Level.OK, Level.WARNING])):
        state = StreamState(messages=1, bytes=used * GIB)
        found = log_found(info=msgspec.structs.replace(limited, state=state))
        assert [level for level, _ in found] == wanted
    assert found[-1][1] == "it has 9.0 GiB of at most 10.0 GiB; a full one blocks publishers"


def test_a_broker_that_serves_nobody_yet(tmp_path: Path) -> None:
    settings = replace(LOG, data_dir=tmp_path)
    found = run.check_waiting(settings, 7)
    assert found.level is Level.NOTE
    assert found.text.startswith("process 7 uses ")
    assert found.text.endswith("it recovers, or waits for the shared log")


def test_a_management_process_that_is_not_there() -> None:
    there = {"management": [{"port": 15672}], "settings": {"management": "on"}}
    assert levels(run.check_management(there)) == [Level.OK]
    assert levels(run.check_management({**there, "management": []})) == [Level.ERROR]
    assert levels(run.check_management({"management": [], "settings": {}})) == []
