"""Settings of servers and streams that lose records: each is found, and named in one line."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import msgspec
import pytest

from tests.unit.server.replication.reports import GOOD, RECORD_BYTES, REPORTS, SUBJECT, info, report
from vouchmq.server.replication import monitoring
from vouchmq.server.replication.monitoring import MonitoringError, ServerReport, parse_report
from vouchmq.server.replication.settings_check import find_faults, stream_faults


def test_nothing_is_wrong() -> None:
    assert find_faults(info(), SUBJECT, REPORTS, RECORD_BYTES) == []


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("num_replicas", 1, "has 1 of 3 replicas that it needs: set its replicas to 3"),
        ("storage", "memory", "is kept in memory: its storage must be file"),
        ("retention", "workqueue", "it must be limits"),
        ("retention", "interest", "must be limits"),
        ("discard", "old", "discards old records when it is full: its discard must be new"),
        ("discard_new_per_subject", True, "its discard_new_per_subject must be false"),
        ("max_age", 1, "its max_age must be 0"),
        ("max_msgs", 10, "takes no more than 10 records: its max_msgs must be -1"),
        ("max_msgs_per_subject", 1, "its max_msgs_per_subject must be -1"),
        ("deny_delete", False, "its deny_delete must be true"),
        ("deny_purge", True, "its deny_purge must be false"),
        ("allow_rollup_hdrs", True, "its allow_rollup_hdrs must be false"),
        ("allow_msg_ttl", True, "its allow_msg_ttl must be false"),
        ("subject_delete_marker_ttl", 10**9, "its subject_delete_marker_ttl must be 0"),
        ("allow_msg_counter", True, "its allow_msg_counter must be false"),
        ("allow_msg_schedules", True, "its allow_msg_schedules must be false"),
        ("allow_atomic", True, "its allow_atomic must be false"),
        ("allow_batched", True, "its allow_batched must be false"),
        ("sealed", True, "is sealed"),
        ("no_ack", True, "its no_ack must be false"),
        ("persist_mode", "async", "its persist_mode must be default"),
        ("compression", "zip", "is compressed with zip, which was not tried"),
        ("allow_direct", False, "its allow_direct must be true"),
        ("max_msg_size", 1000, "takes records of up to 1000 bytes: its max_msg_size must be -1"),
        ("subjects", [], "has the subjects none: it must have vq.LOG.> only"),
        ("subjects", [SUBJECT, "x"], "has the subjects vq.LOG.>, x: it must have vq.LOG.> only"),
        ("mirror", {"name": "A"}, "it must have no mirror"),
        ("sources", [{"name": "A"}], "it must have no sources"),
        ("subject_transform", {"dest": "A"}, "no subject_transform"),
        ("republish", {"src": ">", "dest": "A.>"}, "it must have no republish"),
        ("template_owner", "A", "it must have no template_owner"),
        # What no server has today, and a later one may have.
        ("max_rate", 5, "has the setting max_rate = 5, which this version does not know"),
        ("shrink", {"at": [1]}, 'the setting shrink = {"at":[1]}, which this'),
        ("a\nb", "\n" + 100 * "x", "the setting a?b = ?" + 59 * "x" + "…, which"),
    ],
)
def test_one_setting_of_the_stream(name: str, value: object, text: str) -> None:
    [fault] = stream_faults({**GOOD, name: value}, SUBJECT, RECORD_BYTES)
    assert fault.startswith("stream LOG ")
    assert len(fault.splitlines()) == 1
    assert text in fault


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_bytes", 10**9),
        ("max_consumers", 3),
        ("consumer_limits", {"max_ack_pending": 4}),
        ("duplicate_window", 10**9),
        ("description", "the log of the shop"),
        ("metadata", {"team": "shop"}),
        ("placement", {"tags": ["ssd"]}),
        ("compression", "s2"),
        ("first_seq", 10**9),
        ("mirror_direct", True),
        ("max_msg_size", RECORD_BYTES),
        ("num_replicas", 5),
        ("max_msgs", 0),
        # Off, whatever it means.
        ("max_rate", 0),
        ("shrink", False),
        ("shrink", None),
    ],
)
def test_a_setting_that_does_no_harm(name: str, value: object) -> None:
    assert stream_faults({**GOOD, name: value}, SUBJECT, RECORD_BYTES) == []


def test_what_a_server_does_not_tell_is_off() -> None:
    """So a server that lacks a setting which the log needs is refused as well."""
    given = {name: each for name, each in GOOD.items() if name in ("name", "subjects")}
    faults = stream_faults(given, SUBJECT, RECORD_BYTES)
    assert [each.rpartition("its ")[2].split(" must")[0] for each in faults] == [
        "replicas to 3",
        "storage",
        "stream LOG has the retention , which removes records: it",
        "discard",
        "deny_delete",
        "allow_direct",
    ]


@pytest.mark.parametrize("value", ["10", [], {}, None, 1.5])
@pytest.mark.parametrize("name", ["max_msgs", "deny_delete", "num_replicas", "subjects", "storage"])
def test_a_value_that_is_none_is_a_fault(name: str, value: object) -> None:
    assert len(stream_faults({**GOOD, name: value}, SUBJECT, RECORD_BYTES)) == 1


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (report("n2", "2.9.10"), "install version 2.14 or later"),
        (report("n2", "2.13.9"), "install version 2.14 or later"),
        (report("n2", "unknown"), "install version 2.14 or later"),
        (report("n2", sync=""), "sync_interval: always"),
        (report("n2", sync='"sync_always":false,'), "sync_interval: always"),
        (ServerReport("2.15.1", "n2", 1048576), "add a jetstream block"),
        (msgspec.structs.replace(report("n2"), max_payload=65536), "set max_payload to 600000"),
    ],
)
def test_one_setting_of_a_server(found: ServerReport, text: str) -> None:
    reports = {**REPORTS, "http://n2:8222": found}
    [fault] = find_faults(info(), SUBJECT, reports, RECORD_BYTES)
    assert fault.startswith("server n2 ")
    assert text in fault


def test_later_versions_are_good() -> None:
    for version in ("2.14.0", "2.14.3-RC.1", "v2.20.1", "3.0.0"):
        reports = {**REPORTS, "http://n2:8222": report("n2", version)}
        assert find_faults(info(), SUBJECT, reports, RECORD_BYTES) == []


def test_a_server_that_nobody_has_asked() -> None:
    reports = {address: each for address, each in REPORTS.items() if "n3" not in address}
    [fault] = find_faults(info(), SUBJECT, reports, RECORD_BYTES)
    assert fault.startswith("server n3 holds the stream")


def test_a_server_that_does_not_answer() -> None:
    reports = {**REPORTS, "http://n2:8222": "it does not answer: refused"}
    cannot, unknown = find_faults(info(), SUBJECT, reports, RECORD_BYTES)
    assert cannot == "the server monitored at http://n2:8222 cannot be checked: " + (
        "it does not answer: refused"
    )
    assert unknown.startswith("server n2 holds the stream")


def test_asking_over_http() -> None:
    sent = msgspec.json.encode(report("n1"))

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_report = self.path == "/varz"
            self.send_response(200 if is_report else 404)
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            assert monitoring.ask(address + "/") == report("n1")
            with pytest.raises(MonitoringError, match="Not Found"):
                monitoring.ask(address + "/elsewhere")
        finally:
            server.shutdown()
            thread.join()
    with pytest.raises(MonitoringError, match="does not answer"):
        monitoring.ask(address)


@pytest.mark.parametrize("address", ["file:///etc/passwd", "n1:8222", "nats://n1:4222"])
def test_what_is_no_address_of_monitoring(address: str) -> None:
    with pytest.raises(MonitoringError, match="http://host:8222"):
        monitoring.ask(address)


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"version":1,"server_name":"n1"}'])
def test_what_is_no_report(text: bytes) -> None:
    with pytest.raises(MonitoringError, match="something else"):
        parse_report(text)
