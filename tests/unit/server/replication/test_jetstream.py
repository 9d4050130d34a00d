"""Answers as nats-server 2.15.1 gives them, and what they mean."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from vouchmq.server.replication import jetstream
from vouchmq.server.replication.jetstream import (
    Cluster,
    JetStreamError,
    Replica,
    Stored,
    StreamConfig,
    StreamInfo,
)
from vouchmq.server.replication.nats_protocol import Message

NO_LEADER = Message("in.1", "", b"NATS/1.0 503\r\nNats-Subject: vq.LOG.1\r\n\r\n", b"")


def answer(payload: bytes, header: bytes = b"") -> Message:
    return Message("in.1", "", header, payload)


def test_an_ack() -> None:
    assert jetstream.parse_ack(answer(b'{"stream":"LOG","seq":22}'), "LOG") == 22


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        (
            answer(
                b'{"error":{"code":400,"err_code":10071,'
                b'"description":"wrong last sequence: 5"},"stream":"LOG","seq":0}'
            ),
            10071,
            "wrong last sequence: 5",
        ),
        (NO_LEADER, 0, "no leader"),
        (answer(b'{"stream":"OTHER","seq":22}'), 0, "OTHER"),
        (answer(b'{"stream":"LOG","seq":0}'), 0, "another stream"),
        (answer(b""), 0, "not JetStream's"),
        (answer(b'{"seq":"x"}'), 0, "not JetStream's"),
    ],
)
def test_what_is_no_ack(message: Message, code: int, text: str) -> None:
    with pytest.raises(JetStreamError, match=text) as raised:
        jetstream.parse_ack(message, "LOG")
    assert raised.value.code == code


def test_a_stream() -> None:
    info = jetstream.parse_info(
        answer(
            b'{"type":"io.nats.jetstream.api.v1.stream_info_response","total":0,'
            b'"config":{"name":"LOG","subjects":["vq.LOG.\\u003e"],"retention":"limits",'
            b'"num_replicas":3,"storage":"file","deny_delete":true,"metadata":{"_nats.level":"5"}},'
            b'"state":{"messages":2,"bytes":87,"first_seq":3,"last_seq":4,"num_subjects":1},'
            b'"cluster":{"name":"c","leader":"n1","replicas":'
            b'[{"name":"n2","current":true,"active":12,"lag":1,"peer":"x"}]}}'
        )
    )
    assert info.config.subjects == ["vq.LOG.>"]
    assert info.settings["metadata"] == {"_nats.level": "5"}
    assert (info.state.first_seq, info.state.last_seq) == (3, 4)
    assert [(each.name, each.current) for each in info.cluster.replicas] == [("n2", True)]


@pytest.mark.parametrize(
    ("followers", "hears"),
    [
        ([], True),
        ([0, 0], True),
        ([2_900_000_000, 99_000_000_000], True),
        ([3_100_000_000, 99_000_000_000], False),
        ([0, 99_000_000_000, 99_000_000_000, 99_000_000_000], False),
        ([0, 0, 99_000_000_000, 99_000_000_000], True),
    ],
)
def test_a_leader_hears_a_majority_or_not(followers: list[int], hears: bool) -> None:
    heard = Cluster(leader="n1", replicas=[Replica(active=each) for each in followers])
    assert StreamInfo(cluster=heard).hears_majority(3.0) is hears
    gone = Cluster(leader="n1", replicas=[Replica(offline=True) for _ in followers])
    assert StreamInfo(cluster=gone).hears_majority(3.0) is (not followers)


def test_a_server_without_a_quorum_names_no_leader_and_hears_no_majority() -> None:
    config = StreamConfig(num_replicas=3)
    assert not StreamInfo(config=config).hears_majority(3.0)
    # Nor one that leads, but does not know of the others yet.
    assert not StreamInfo(config=config, cluster=Cluster(leader="n1")).hears_majority(3.0)
    replicas = [Replica(), Replica()]
    assert not StreamInfo(config=config, cluster=Cluster(replicas=replicas)).hears_majority(3.0)
    led = Cluster(leader="n1", replicas=replicas)
    assert StreamInfo(config=config, cluster=led).hears_majority(3.0)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"max_bytes": 10, "deny_delete": True, "max_age": 0, "no_ack": False}, ""),
        ({"max_bytes": 11}, "was asked for max_bytes = 11, and the stream has 10"),
        ({"first_seq": 7}, "was asked for first_seq = 7, and the stream has no value"),
        ({"deny_delete": False}, "for deny_delete = false, and the stream has true"),
    ],
)
def test_a_stream_has_the_settings_that_were_asked_for(
    wanted: dict[str, object], text: str
) -> None:
    info = jetstream.parse_info(answer(b'{"config":{"max_bytes":10,"deny_delete":true}}'))
    with pytest.raises(JetStreamError, match=text) if text else nullcontext():
        jetstream.require_settings(info, wanted)


def test_no_stream() -> None:
    missing = answer(
        b'{"error":{"code":404,"err_code":10059,"description":"stream not found"},"total":0}'
    )
    with pytest.raises(JetStreamError) as raised:
        jetstream.parse_info(missing)
    assert raised.value.code == jetstream.STREAM_NOT_FOUND
    with pytest.raises(JetStreamError, match="no leader"):
        jetstream.parse_info(NO_LEADER)


def test_a_batch() -> None:
    header = b"NATS/1.0\r\nNats-Stream: LOG\r\nNats-Sequence: 9\r\nNats-Last-Sequence: 7\r\n\r\n"
    assert jetstream.parse_stored(answer(b"body", header)) == Stored(9, 7, b"body")
    end = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 9\r\n\r\n"
    assert jetstream.parse_stored(answer(b"", end)) is None
    with pytest.raises(JetStreamError) as raised:
        jetstream.parse_stored(answer(b"", b"NATS/1.0 404 Message Not Found\r\n\r\n"))
    assert raised.value.code == jetstream.NO_MESSAGE_FOUND
    with pytest.raises(JetStreamError, match="408 Bad Request"):
        jetstream.parse_stored(answer(b"", b"NATS/1.0 408 Bad Request\r\n\r\n"))
    with pytest.raises(JetStreamError, match="without its sequence"):
        jetstream.parse_stored(answer(b"body", b"NATS/1.0\r\nNats-Stream: LOG\r\n\r\n"))


def test_the_next_message() -> None:
    message = answer(b'{"message":{"subject":"vq.LOG.1","seq":2,"hdrs":"TkE=","data":"YmJi"}}')
    assert jetstream.parse_next(message) == Stored(2, 0, b"bbb")
    empty = answer(b'{"message":{"subject":"vq.LOG.1","seq":3}}')
    assert jetstream.parse_next(empty) == Stored(3, 0, b"")
    for wrong in (b"{}", b'{"message":{"seq":1,"data":"?"}}'):
        with pytest.raises(JetStreamError):
            jetstream.parse_next(answer(wrong))
    with pytest.raises(JetStreamError) as raised:
        jetstream.parse_next(
            answer(b'{"error":{"code":404,"err_code":10037,"description":"no message found"}}')
        )
    assert raised.value.code == jetstream.NO_MESSAGE_FOUND


def test_a_purge() -> None:
    jetstream.parse_done(answer(b'{"success":true,"purged":2}'))
    for wrong in (b'{"error":{"code":500,"description":"no"}}', b'{"success":false}'):
        with pytest.raises(JetStreamError):
            jetstream.parse_done(answer(wrong))


def test_requests() -> None:
    assert jetstream.append_headers(41) == b"Nats-Expected-Last-Sequence: 41\r\n"
    assert jetstream.batch_request(5, 2, 9) == b'{"seq":5,"batch":2,"max_bytes":9}'
    assert jetstream.batch_request(5, 2, 9, "a.1") == (
        b'{"seq":5,"batch":2,"max_bytes":9,"next_by_subj":"a.1"}'
    )
    assert jetstream.next_request(5, "a.1") == b'{"seq":5,"next_by_subj":"a.1"}'
    assert jetstream.next_request(5) == b'{"seq":5,"next_by_subj":">"}'
    assert jetstream.purge_request("vq.LOG.1") == b'{"filter":"vq.LOG.1"}'
