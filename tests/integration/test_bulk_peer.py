"""The bulk client against a peer that misbehaves: silence, cuts, broken frames, closes."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator

import pamqp.commands as amqp
import pytest
from pamqp import heartbeat

from tests.integration.scripted_peer import (
    ScriptedPeer,
    Session,
    content,
    delivery,
    published,
)
from tests.waiting import LIMIT_S, wait_until
from vouchmq.kit.bulk import BulkChannel, BulkClosed, BulkConnection, BulkError, BulkTimeout
from vouchmq.kit.bulk.confirms import Row
from vouchmq.kit.bulk.methods import method_frame


def rows(count: int, size: int = 10) -> Iterator[Row]:
    return (("", "q", b"\x00\x00", b"b" * size) for _ in range(count))


def wait_quietly(session: Session) -> None:
    """Read whatever comes until the client hangs up."""
    for _ in session.frames(5.0):
        pass


def confirming(session: Session) -> int:
    """Let the client open a channel with confirms."""
    channel = session.open_channel()
    session.expect(amqp.Confirm.Select)
    return channel


def opened(peer: ScriptedPeer, **options: float) -> BulkChannel:
    read_s = options.get("read_timeout_s", 5.0)
    channel = BulkConnection.open(peer.url, read_timeout_s=read_s).channel()
    if options.get("confirms"):
        channel.confirm_select()
    return channel


# The login.


def test_the_login_agrees_on_the_smaller_of_both() -> None:
    with ScriptedPeer(wait_quietly, heartbeat_s=60, frame_max=8192) as peer:
        connection = BulkConnection.open(peer.url, heartbeat_s=7, name="etl")
        assert connection.frame_max == 8192
        assert connection.heartbeat_s == 7
        assert connection.server_properties["product"] == "script"
        assert connection.capabilities == {"basic.nack"}
        assert "geheim" not in repr(connection)
        connection.close()
    assert peer.tuned is not None
    assert (peer.tuned.frame_max, peer.tuned.heartbeat) == (8192, 7)
    assert peer.vhost == "shop"


def test_no_limits_of_the_broker_mean_ours() -> None:
    with (
        ScriptedPeer(wait_quietly, heartbeat_s=0, frame_max=0) as peer,
        BulkConnection.open(peer.url) as connection,
    ):
        assert connection.frame_max == 131072
        assert connection.heartbeat_s == 30


def test_a_peer_that_hangs_up_on_the_login_is_told_without_the_password() -> None:
    def script(session: Session) -> None:
        session.socket.recv(8)
        session.say(amqp.Connection.Start(0, 9, {}, "PLAIN", "en_US"))
        session.expect(amqp.Connection.StartOk, is_answered=False)

    with (
        ScriptedPeer(script, logs_in=False) as peer,
        pytest.raises(BulkClosed, match="during the login of 'user'") as caught,
    ):
        BulkConnection.open(peer.url)
    assert "geheim" not in str(caught.value)
    assert (caught.value.code, caught.value.is_connection) == (0, True)


def test_a_peer_without_plain_is_named() -> None:
    def script(session: Session) -> None:
        session.say(amqp.Connection.Start(0, 9, {}, "EXTERNAL", "en_US"))

    with (
        ScriptedPeer(script, logs_in=False) as peer,
        pytest.raises(BulkClosed, match="does not offer PLAIN"),
    ):
        BulkConnection.open(peer.url)


def test_a_peer_that_says_nothing_is_given_up_in_time() -> None:
    with ScriptedPeer(wait_quietly, logs_in=False) as peer:
        began = time.monotonic()
        with pytest.raises(BulkClosed, match="no answer in time"):
            BulkConnection.open(peer.url, connect_timeout_s=0.3)
        assert time.monotonic() - began > 0.2


def test_something_else_than_amqp_is_named() -> None:
    def script(session: Session) -> None:
        session.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with (
        ScriptedPeer(script, logs_in=False) as peer,
        pytest.raises(BulkClosed, match="does not speak AMQP"),
    ):
        BulkConnection.open(peer.url)


def test_urls_are_tried_in_their_order() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = f"amqp://user:geheim@127.0.0.1:{closed.getsockname()[1]}"
    with (
        ScriptedPeer(wait_quietly, logs_in=False) as silent,
        ScriptedPeer(wait_quietly) as good,
    ):
        urls = f"{dead}, {silent.url}?timeout=0.2,{good.url}"
        BulkConnection.open(urls).close()
        assert good.tuned is not None
    with pytest.raises(BulkError, match=r"Connection refused.*; .*Connection refused") as caught:
        BulkConnection.open(f"{dead},{dead}")
    assert "geheim" not in str(caught.value)


# Heartbeats.


def test_a_silent_broker_is_given_up_after_two_heartbeats() -> None:
    with ScriptedPeer(wait_quietly, heartbeat_s=1) as peer:
        connection = BulkConnection.open(peer.url)
        began = time.monotonic()
        with pytest.raises(BulkClosed, match="nothing heard for 2 s, heartbeat 1 s"):
            # Longer than a test may take.
            connection.poll(10 * LIMIT_S)
        assert time.monotonic() - began > 1.5
        with pytest.raises(BulkClosed, match="nothing heard"):
            connection.channel()


def test_heartbeats_are_sent_while_waiting_and_by_beat() -> None:
    beats: list[float] = []

    def script(session: Session) -> None:
        for read in session.frames(LIMIT_S):
            if isinstance(read, heartbeat.Heartbeat):
                beats.append(time.monotonic())
                session.send(b"\x08\x00\x00\x00\x00\x00\x00\xce")

    with ScriptedPeer(script, heartbeat_s=1) as peer:
        connection = BulkConnection.open(peer.url)
        wait_until(lambda: len(beats) >= 2, between=lambda: connection.poll(0.3))
        had = len(beats)
        wait_until(lambda: len(beats) >= had + 2, between=connection.beat)
        connection.close()


# Closes and losses.


def test_a_close_of_the_connection_in_the_middle_of_a_body_is_raised() -> None:
    def script(session: Session) -> None:
        channel = session.open_channel()
        session.send(delivery(channel, 1, b"whole"), delivery(channel, 2, b"half", announced=99))
        session.say(amqp.Connection.Close(320, "CONNECTION_FORCED - maintenance", 0, 0))
        session.expect(amqp.Connection.CloseOk)

    with ScriptedPeer(script) as peer:
        channel = opened(peer)
        # Whatever was whole can still be had: without acks it is nowhere else any more.
        assert [each[5] for each in channel.wait(2, LIMIT_S)] == [b"whole"]
        with pytest.raises(BulkClosed) as caught:
            channel.take(1)
        assert (caught.value.code, caught.value.is_connection) == (320, True)
        assert caught.value.text == "CONNECTION_FORCED - maintenance"
        with pytest.raises(BulkClosed, match="320 CONNECTION_FORCED"):
            channel.ack(1)


def test_a_close_of_a_channel_in_the_middle_of_a_body_spares_the_others() -> None:
    def script(session: Session) -> None:
        first = session.open_channel()
        second = session.open_channel()
        session.send(delivery(first, 1, b"half", announced=99))
        session.say(amqp.Channel.Close(406, "PRECONDITION_FAILED - timeout", 60, 80), first)
        session.expect(amqp.Channel.CloseOk)
        session.send(delivery(second, 1, b"other"))
        assert session.open_channel() == first
        wait_quietly(session)

    with ScriptedPeer(script) as peer:
        first = opened(peer)
        connection = first.connection
        assert isinstance(connection, BulkConnection)
        second = connection.channel()
        assert [each[5] for each in second.wait(1, LIMIT_S)] == [b"other"]
        with pytest.raises(BulkClosed, match="406 PRECONDITION_FAILED - timeout") as caught:
            first.take(1)
        assert not caught.value.is_connection
        assert connection.channel().ended is None
        connection.close()


def test_a_broker_that_hangs_up_in_the_middle_of_a_body_is_lost() -> None:
    def script(session: Session) -> None:
        session.send(delivery(session.open_channel(), 1, b"half", announced=99))

    with ScriptedPeer(script) as peer:
        channel = opened(peer)
        assert channel.wait(0, 0.0) == []
        with pytest.raises(BulkClosed, match="the broker closed the socket") as caught:
            channel.wait(1, LIMIT_S)
        assert caught.value.code == 0


def test_a_broken_frame_ends_the_connection_and_says_why() -> None:
    def script(session: Session) -> None:
        session.send(delivery(session.open_channel(), 1, b"whole") + b"garbage, garbage")
        wait_quietly(session)

    with ScriptedPeer(script) as peer:
        channel = opened(peer)
        assert len(channel.wait(2, LIMIT_S)) == 1
        with pytest.raises(BulkClosed, match="does not speak AMQP: it sent b'garbage,'"):
            channel.connection.poll(0.0)


def test_a_call_that_is_not_answered_ends_its_channel() -> None:
    def script(session: Session) -> None:
        session.open_channel()
        session.expect(amqp.Basic.Qos, is_answered=False)
        wait_quietly(session)

    with ScriptedPeer(script) as peer:
        channel = opened(peer, read_timeout_s=0.3)
        with pytest.raises(BulkTimeout, match=r"no answer to Basic\.Qos in 0\.3 s"):
            channel.qos(5)
        with pytest.raises(BulkClosed, match=r"no answer to Basic\.Qos"):
            channel.ack(1)
        channel.connection.close()


def test_an_answer_to_something_else_is_an_error() -> None:
    def script(session: Session) -> None:
        channel = session.open_channel()
        session.expect(amqp.Basic.Qos, is_answered=False)
        session.say(amqp.Queue.PurgeOk(3), channel)
        wait_quietly(session)

    with ScriptedPeer(script) as peer:
        channel = opened(peer)
        with pytest.raises(BulkError, match=r"Queue\.PurgeOk in answer to Basic\.Qos"):
            channel.qos(5)
        channel.connection.close()


def test_a_cancel_by_the_broker_ends_the_waiting() -> None:
    def script(session: Session) -> None:
        channel = session.open_channel()
        session.send(delivery(channel, 1, b"last"))
        session.say(amqp.Basic.Cancel("c-7", nowait=False), channel)
        session.expect(amqp.Basic.CancelOk)
        wait_quietly(session)

    with ScriptedPeer(script) as peer:
        channel = opened(peer)
        # It would wait longer than a test may take.
        assert [each[5] for each in channel.wait(9, 10 * LIMIT_S)] == [b"last"]
        assert channel.wait(9, 10 * LIMIT_S) == []
        assert channel.cancelled == "c-7"
        channel.connection.close()


# Cuts.


def test_any_cut_of_the_bytes_gives_the_same_deliveries() -> None:
    bodies = [b"x" * size for size in (0, 1, 500, 4000, 20_000) for _ in range(20)]

    def script(session: Session) -> None:
        channel = session.open_channel()
        stream = b"".join(
            delivery(channel, tag, b"") if not text else delivery(channel, tag, text)
            for tag, text in enumerate(bodies, 1)
        )
        place = 0
        chance = random.Random(5)
        while place < len(stream):
            size = chance.choice((1, 3, 8, 30, 200, 5000, 60_000))
            session.send(stream[place : place + size])
            place += size
            if chance.random() < 0.2:
                time.sleep(0.002)
        wait_quietly(session)

    with ScriptedPeer(script) as peer:
        channel = opened(peer)
        taken = channel.wait(len(bodies), LIMIT_S)
        assert [each[5] for each in taken] == bodies
        assert [each[0] for each in taken] == list(range(1, len(bodies) + 1))
        assert channel.arrived == (0, 0)
        channel.connection.close()


def test_take_stops_at_the_message_that_passes_the_bytes() -> None:
    def script(session: Session) -> None:
        channel = session.open_channel()
        session.send(*(delivery(channel, tag, b"x" * 98) for tag in range(1, 11)))
        wait_quietly(session)

    with ScriptedPeer(script) as peer:
        channel = opened(peer)
        channel.connection.poll_until(lambda: channel.arrived[0] == 10, LIMIT_S)
        assert channel.arrived == (10, 1000)
        assert [each[0] for each in channel.take(9, max_bytes=250)] == [1, 2, 3]
        assert channel.arrived == (7, 700)
        assert len(channel.take(2)) == 2
        assert len(channel.take(100, max_bytes=10**9)) == 5
        assert channel.take(1) == []
        channel.connection.close()


# Publishing.


def test_a_broker_that_does_not_read_before_it_has_written_is_no_dead_end() -> None:
    size, count = 30_000, 1500

    def script(session: Session) -> None:
        channel = confirming(session)
        # Far more than the sockets hold, while the client writes as much and nobody reads here.
        text = b"d" * size
        for tag in range(1, count + 1):
            session.send(delivery(channel, tag, text))
        published(session, count)
        session.say(amqp.Basic.Ack(count, multiple=True), channel)
        wait_quietly(session)

    with ScriptedPeer(script) as peer:
        channel = opened(peer, confirms=True)
        assert channel.publish_many(rows(count, size)).confirmed == count
        assert channel.arrived[0] == count
        channel.connection.close()


def test_bodies_are_cut_to_the_frame_size_of_the_broker() -> None:
    biggest: list[int] = []

    def script(session: Session) -> None:
        channel = confirming(session)
        biggest.append(published(session, 3))
        session.say(amqp.Basic.Ack(3, multiple=True), channel)
        wait_quietly(session)

    with ScriptedPeer(script, frame_max=4096) as peer:
        channel = opened(peer, confirms=True)
        assert channel.publish_many(rows(3, 50_000)).confirmed == 3
        channel.connection.close()
    assert biggest == [4096]


def test_a_window_is_never_passed() -> None:
    most: list[int] = []

    def script(session: Session) -> None:
        channel = confirming(session)
        for number in range(1, 31):
            published(session, 1)
            if number % 10 == 0:
                # The client must be waiting now: a full window is out.
                most.append(sum(1 for _ in session.frames(0.1)))
                session.say(amqp.Basic.Ack(number, multiple=True), channel)
        wait_quietly(session)

    with ScriptedPeer(script) as peer:
        channel = opened(peer, confirms=True)
        assert channel.publish_many(rows(30), window=10).confirmed == 30
        channel.connection.close()
    assert most == [0, 0, 0]


def test_a_blocked_connection_pauses_until_it_is_unblocked() -> None:
    seen: list[str] = []

    def script(session: Session) -> None:
        channel = confirming(session)
        session.say(amqp.Connection.Blocked("low on disk"))
        seen.extend(type(read).__name__ for read in session.frames(0.4))
        session.say(amqp.Connection.Unblocked())
        published(session, 5)
        session.say(amqp.Basic.Ack(5, multiple=True), channel)
        wait_quietly(session)

    with ScriptedPeer(script) as peer:
        channel = opened(peer, confirms=True)
        channel.connection.poll_until(lambda: channel.connection.is_blocked, LIMIT_S)
        assert channel.connection.blocked_reason == "low on disk"
        assert channel.publish_many(rows(5)).confirmed == 5
        assert not channel.connection.is_blocked
        channel.connection.close()
    assert seen == []


def test_a_channel_whose_flow_is_stopped_pauses() -> None:
    seen: list[str] = []

    def script(session: Session) -> None:
        channel = confirming(session)
        session.say(amqp.Channel.Flow(active=False), channel)
        seen.extend(type(read).__name__ for read in session.frames(0.3))
        session.say(amqp.Channel.Flow(active=True), channel)
        session.expect(amqp.Channel.FlowOk)
        published(session, 5)
        session.say(amqp.Basic.Ack(5, multiple=True), channel)
        wait_quietly(session)

    with ScriptedPeer(script) as peer:
        channel = opened(peer, confirms=True)
        channel.connection.poll_until(lambda: not channel.may_publish, LIMIT_S)
        assert channel.publish_many(rows(5)).confirmed == 5
        channel.connection.close()
    assert seen == ["FlowOk"]


def test_a_publish_without_confirm_is_given_up_and_says_what_it_knows() -> None:
    def script(session: Session) -> None:
        channel = confirming(session)
        published(session, 20)
        session.say(amqp.Basic.Ack(12, multiple=True), channel)
        session.say(amqp.Basic.Nack(13), channel)
        session.say(amqp.Connection.Blocked("low on memory"))
        wait_quietly(session)

    with ScriptedPeer(script) as peer:
        channel = opened(peer, confirms=True)
        with pytest.raises(
            BulkTimeout, match=r"7 publishes are unconfirmed; .*low on mem"
        ) as caught:
            channel.publish_many(rows(20), timeout_s=0.4)
        result = caught.value.published
        assert result is not None
        assert (result.confirmed, result.nacked) == (12, [12])
        channel.connection.close()


def test_late_confirms_are_not_taken_for_those_of_the_next_publish() -> None:
    def script(session: Session) -> None:
        channel = confirming(session)
        published(session, 3)
        published(session, 2)
        session.say(amqp.Basic.Ack(3, multiple=True), channel)
        session.say(amqp.Basic.Nack(4), channel)
        session.say(amqp.Basic.Ack(5), channel)
        wait_quietly(session)

    with ScriptedPeer(script) as peer:
        channel = opened(peer, confirms=True)
        with pytest.raises(BulkTimeout):
            channel.publish_many(rows(3), timeout_s=0.2)
        result = channel.publish_many(rows(2))
        assert (result.confirmed, result.nacked) == (1, [0])
        channel.connection.close()


def test_a_close_while_publishing_keeps_what_was_confirmed() -> None:
    def script(session: Session) -> None:
        channel = confirming(session)
        published(session, 500)
        session.say(amqp.Basic.Ack(400, multiple=True), channel)
        session.say(amqp.Channel.Close(404, "NOT_FOUND - no exchange 'x'", 60, 40), channel)
        wait_quietly(session)

    with ScriptedPeer(script) as peer:
        channel = opened(peer, confirms=True)
        with pytest.raises(BulkClosed, match="404 NOT_FOUND - no exchange 'x'") as caught:
            channel.publish_many(rows(100_000))
        assert caught.value.published is not None
        assert caught.value.published.confirmed == 400
        channel.connection.close()


def test_a_returned_message_is_told_with_its_row() -> None:
    def script(session: Session) -> None:
        channel = confirming(session)
        published(session, 4)
        back = amqp.Basic.Return(312, "NO_ROUTE", "", "q")
        session.send(method_frame(channel, back), content(channel, 3, b"two"))
        session.say(amqp.Basic.Ack(4, multiple=True), channel)
        wait_quietly(session)

    with ScriptedPeer(script) as peer:
        channel = opened(peer, confirms=True)
        made = [("", "q", b"\x00\x00", text) for text in (b"one", b"two", b"two", b"three")]
        result = channel.publish_many(made, mandatory=True)
        assert result.confirmed == 4
        assert result.returned == [(1, 312, "NO_ROUTE", "", "q")]
        channel.connection.close()


def test_a_confirm_of_what_was_never_sent_is_an_error() -> None:
    def script(session: Session) -> None:
        channel = confirming(session)
        published(session, 1)
        session.say(amqp.Basic.Ack(2), channel)
        wait_quietly(session)

    with ScriptedPeer(script) as peer:
        channel = opened(peer, confirms=True)
        with pytest.raises(BulkError, match="confirmed publish 2, but only 1 were sent"):
            channel.publish_many(rows(1))
        channel.connection.close()


def test_a_broker_that_stops_reading_is_given_up() -> None:
    done = threading.Event()

    def script(session: Session) -> None:
        confirming(session)
        done.wait(8.0)

    with ScriptedPeer(script) as peer:
        channel = opened(peer, confirms=True, read_timeout_s=0.5)
        with pytest.raises(BulkClosed, match=r"the broker has read nothing for 0\.5 s"):
            channel.publish_many(rows(2000, 100_000))
        done.set()


# Threads.


def test_another_thread_may_call_and_write_while_one_polls() -> None:
    rounds = 80

    def script(session: Session) -> None:
        channel = session.open_channel()
        for _ in range(rounds):
            session.expect(amqp.Basic.Qos)
            session.send(delivery(channel, 1, b"x"))
            session.expect(amqp.Basic.Ack)
        wait_quietly(session)

    with ScriptedPeer(script) as peer:
        channel = opened(peer)
        is_over = threading.Event()

        def pump() -> None:
            while not is_over.is_set():
                channel.connection.poll(0.5)

        thread = threading.Thread(target=pump)
        thread.start()
        began = time.monotonic()
        for _ in range(rounds):
            channel.fence()
            wait_until(lambda: channel.arrived[0] == 1)
            channel.ack(channel.take(1)[0][0])
        took = time.monotonic() - began
        is_over.set()
        thread.join()
        channel.connection.close()
    # Whoever waits is woken by the thread that reads, not by its own clock: that would be 40 s.
    assert took < 20
