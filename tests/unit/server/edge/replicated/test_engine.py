"""The servers of the log by the settings: what is refused before anything is opened."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.server.replication.keys import seed_of
from tests.unit.server.replication.reports import GOOD, REPORTS, info, report
from vouchmq.server.edge.replicated.engine import engine_of, faults_of, see_servers
from vouchmq.server.errors import SettingsError
from vouchmq.server.replication.monitoring import MonitoringError, ServerReport
from vouchmq.server.settings.settings import Settings

SETTINGS = Settings(ha_log="nats://a:4222,nats://b", ha_monitors=("http://a:8222",))
PATTERN = "vq.LOG.>"


def test_servers_credentials_and_stream_are_those_of_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "nats.creds"
    file.write_text(seed_of(bytes(range(32))), "utf-8-sig")
    engine = engine_of(replace(SETTINGS, ha_stream="orders", ha_credentials=str(file)))
    assert [str(each) for each in engine.servers] == ["a:4222", "b:4222"]
    assert engine.options.credentials.seed
    assert engine.options.tls is None
    assert engine.pattern == "vq.orders.>"
    assert engine.subjects.lasting == "vq.orders.epochs"


def test_tls_is_spoken_where_an_address_or_a_file_says_so() -> None:
    assert engine_of(replace(SETTINGS, ha_log="tls://a")).options.tls is not None
    paths = ssl.get_default_verify_paths()
    if paths.cafile is not None:
        assert engine_of(replace(SETTINGS, ha_tls_ca_file=paths.cafile)).options.tls is not None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"ha_log": "http://a"}, "ha_log: http://a is no address: write nats://host:4222"),
        ({"ha_monitors": ()}, "ha_monitors: name the monitoring addresses"),
        ({"ha_monitors": ("a:8222",)}, "ha_monitors: a:8222 is no address"),
        ({"ha_credentials": "/nowhere"}, "ha_credentials: /nowhere: No such file"),
        ({"ha_tls_ca_file": "/nowhere"}, "ha_tls_ca_file: /nowhere: No such file"),
        ({"ha_tls_cert_file": "/x"}, "ha_tls_key_file: ha_tls_cert_file needs its key"),
        ({"ha_tls_key_file": "/x"}, "ha_tls_cert_file: ha_tls_key_file needs its certificate"),
        (
            {"ha_log": "nats://u:p@a", "ha_credentials": "/nowhere"},
            "ha_credentials: ha_log has credentials too",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_line(changes: dict[str, object], text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        engine_of(replace(SETTINGS, **changes))  # type: ignore[arg-type]
    (line,) = caught.value.args
    assert line.startswith(text)
    assert "\n" not in line


def test_a_file_without_credentials_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "nats.creds"
    file.write_text("nothing of it\nhere")
    with pytest.raises(SettingsError, match="neither the sections of a user nor one seed"):
        engine_of(replace(SETTINGS, ha_credentials=str(file)))


def test_one_server_that_is_down_keeps_no_broker_from_its_start() -> None:
    reports = dict(REPORTS)
    reports["http://n3:8222"] = "it does not answer"
    faults, unseen = faults_of(info(), PATTERN, reports)
    assert faults == []
    assert unseen == [
        "the server monitored at http://n3:8222 cannot be checked: it does not answer",
        "server n3 holds the stream, and its settings are not known:"
        " name its monitoring address too",
    ]


def test_a_majority_of_the_servers_has_to_be_seen() -> None:
    reports = dict(REPORTS)
    reports["http://n2:8222"] = reports["http://n3:8222"] = "it does not answer"
    faults, unseen = faults_of(info(), PATTERN, reports)
    assert len(faults) == 4
    assert unseen == []


def test_what_is_seen_counts_however_many_are_not() -> None:
    reports: dict[str, ServerReport | str] = dict(REPORTS)
    reports["http://n1:8222"] = report("n1", sync="")
    faults, _ = faults_of(info({**GOOD, "num_replicas": 1}), PATTERN, reports)
    assert len(faults) == 2
    assert "sync_interval: always" in faults[0]
    assert "set its replicas to 3" in faults[1]


def test_every_monitoring_address_is_asked() -> None:
    def ask(address: str, tls: ssl.SSLContext | None) -> ServerReport:
        assert tls is None
        if address == "http://b:8222":
            raise MonitoringError("gone")
        return report("a")

    seen = see_servers(("http://a:8222", "http://b:8222"), None, ask)
    assert seen["http://b:8222"] == "gone"
    assert isinstance(seen["http://a:8222"], ServerReport)
