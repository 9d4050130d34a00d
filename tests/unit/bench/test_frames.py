"""The load generator's frames are what AMQP means: a foreign codec reads each of them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final

import pamqp.base
import pamqp.body
import pamqp.commands
import pamqp.frame
import pamqp.header
import pytest

from bench import frames
from bench.client import Address, handshake_steps
from bench.generator import message_cycle, plan_for
from bench.scenarios import catalogue
from bench.scenarios.traffic import (
    KEY_COUNT,
    MESSAGE_COUNT,
    SMALLEST_SIZE,
    routing_keys,
    unlike_messages,
)
from bench.shape import Consumer, Message, Mode, Publisher, Scenario, Shape

ADDRESS: Final = Address("127.0.0.1", 5672, "guest", "secret", "/")


def decoded(octets: bytes) -> list[pamqp.frame.FrameTypes]:
    """Decode all frames in a buffer; nothing may be left over."""
    found = []
    while octets:
        size, _, value = pamqp.frame.unmarshal(octets)
        found.append(value)
        octets = octets[size:]
    return found


def only(octets: bytes) -> pamqp.frame.FrameTypes:
    """Decode a buffer that must hold one frame."""
    (value,) = decoded(octets)
    return value


def test_publish_is_method_header_and_body() -> None:
    octets = frames.publish("logs", "info", b"hello", persistent=True)
    method, header, body = decoded(octets)
    assert isinstance(method, pamqp.commands.Basic.Publish)
    assert (method.exchange, method.routing_key) == ("logs", "info")
    assert not method.mandatory
    assert isinstance(header, pamqp.header.ContentHeader)
    assert (header.body_size, header.properties.delivery_mode) == (5, 2)
    assert isinstance(body, pamqp.body.ContentBody)
    assert body.value == b"hello"


def test_transient_publish_says_so() -> None:
    header = decoded(frames.publish("", "q", b"x", persistent=False))[1]
    assert isinstance(header, pamqp.header.ContentHeader)
    assert header.properties.delivery_mode == 1


def test_large_body_is_cut_at_frame_max() -> None:
    body = bytes(300_000)
    octets = frames.publish("", "q", body, persistent=False)
    split, rest = frames.split(octets)
    assert rest == b""
    assert max(len(frame.payload) for frame in split) == frames.FRAME_MAX - frames.FRAME_OVERHEAD
    assert b"".join(frame.payload for frame in split[2:]) == body


@pytest.mark.parametrize(
    ("octets", "expected"),
    [
        (frames.tune_ok(), pamqp.commands.Connection.TuneOk(2047, 131072, 0)),
        (frames.connection_open("/"), pamqp.commands.Connection.Open("/")),
        (frames.connection_close(), pamqp.commands.Connection.Close(200, "done", 0, 0)),
        (frames.channel_close(), pamqp.commands.Channel.Close(200, "done", 0, 0)),
        (
            frames.exchange_declare("f", "fanout"),
            pamqp.commands.Exchange.Declare(exchange="f", exchange_type="fanout"),
        ),
        (frames.exchange_delete("f"), pamqp.commands.Exchange.Delete(exchange="f")),
        (
            frames.queue_declare("q", durable=True),
            pamqp.commands.Queue.Declare(queue="q", durable=True),
        ),
        (
            frames.queue_declare("q", passive=True),
            pamqp.commands.Queue.Declare(queue="q", passive=True),
        ),
        (
            frames.queue_bind("q", "f", "k"),
            pamqp.commands.Queue.Bind(queue="q", exchange="f", routing_key="k"),
        ),
        (frames.queue_delete("q"), pamqp.commands.Queue.Delete(queue="q")),
        (frames.qos(200), pamqp.commands.Basic.Qos(0, 200, False)),
        (
            frames.consume("q", "t", no_ack=True),
            pamqp.commands.Basic.Consume(queue="q", consumer_tag="t", no_ack=True),
        ),
        (
            frames.consume("q", "t", no_ack=False),
            pamqp.commands.Basic.Consume(queue="q", consumer_tag="t"),
        ),
        (frames.confirm_select(), pamqp.commands.Confirm.Select()),
        (frames.tx_select(), pamqp.commands.Tx.Select()),
        (frames.tx_commit(), pamqp.commands.Tx.Commit()),
    ],
    ids=lambda value: value.name if isinstance(value, pamqp.base.Frame) else "",
)
def test_method_decodes_to_what_was_meant(octets: bytes, expected: pamqp.base.Frame) -> None:
    value = only(octets)
    assert type(value) is type(expected)
    assert dict(value) == dict(expected)


def test_channel_open_leaves_its_reserved_field_empty() -> None:
    # Not compared as the others are: the codec's own default for that field is "0".
    value = only(frames.channel_open())
    assert isinstance(value, pamqp.commands.Channel.Open)
    assert value.out_of_band == ""


def test_start_ok_carries_the_account() -> None:
    value = only(frames.start_ok("guest", "secret"))
    assert isinstance(value, pamqp.commands.Connection.StartOk)
    assert (value.mechanism, value.response) == ("PLAIN", "\0guest\0secret")
    assert value.client_properties == {}


def test_split_keeps_an_incomplete_frame_for_later() -> None:
    whole = frames.channel_open() + frames.tx_select()
    for cut in range(len(whole)):
        first, rest = frames.split(whole[:cut])
        second, nothing = frames.split(rest + whole[cut:])
        assert [frame.ids for frame in first + second] == [(20, 10), (90, 10)]
        assert nothing == b""


def test_split_refuses_a_wrong_frame_end() -> None:
    with pytest.raises(ValueError, match="no frame end"):
        frames.split(frames.tx_select()[:-1] + b"\0")


def test_reply_text_reads_what_the_broker_says() -> None:
    closing = pamqp.commands.Channel.Close(404, "NOT_FOUND - no queue 'q'", 50, 10)
    (frame,), _ = frames.split(pamqp.frame.marshal(closing, 1))
    assert frame.ids == frames.CHANNEL_CLOSE
    assert frames.reply_text(frame) == "404 NOT_FOUND - no queue 'q'"


def test_declare_ok_tells_name_and_count() -> None:
    octets = pamqp.frame.marshal(pamqp.commands.Queue.DeclareOk("bench-0", 70_000, 2), 1)
    (frame,), _ = frames.split(octets)
    assert frames.queue_name_and_count(frame) == ("bench-0", 70_000)


def test_address_reads_a_url() -> None:
    assert Address.parse("amqp://me:p%40ss@localhost:5673/a%2Fb") == Address(
        "localhost", 5673, "me", "p@ss", "a/b"
    )
    assert Address.parse("amqp://127.0.0.1") == Address("127.0.0.1", 5672)
    with pytest.raises(ValueError, match="not an amqp"):
        Address.parse("http://localhost")


def test_transactions_commit_after_each_message() -> None:
    (message,) = message_cycle(Publisher(("q",), 16, 1, mode=Mode.TX))
    *_, last = decoded(message)
    assert isinstance(last, pamqp.commands.Tx.Commit)


def test_stamp_lies_at_the_start_of_the_body() -> None:
    message = frames.publish("", "q", b"STAMP..." + bytes(92), persistent=True)
    assert message[frames.body_offset(message, 100) :].startswith(b"STAMP...")


@dataclass(frozen=True)
class Planned:
    """What stands in a plan for one publisher: each message with its two places."""

    messages: list[tuple[int, int, bytes]]

    @property
    def values(self) -> list[pamqp.frame.FrameTypes]:
        """All frames, decoded."""
        return decoded(b"".join(octets for _, _, octets in self.messages))


def planned(shape: Shape) -> list[Planned]:
    """Read the publishers of a plan back."""
    numbers = range(100, 100 + len(shape.publishers)), range(300, 300 + len(shape.consumers))
    found: list[Planned] = []
    for line in plan_for(shape, ADDRESS, *numbers).splitlines():
        if line.startswith("publisher "):
            found.append(Planned([]))
        elif line.startswith("message "):
            _, stamp, number, octets = line.split()
            found[-1].messages.append((int(stamp), int(number), bytes.fromhex(octets)))
    return found


def test_stamp_and_number_of_a_message_lie_where_its_own_length_puts_them() -> None:
    block = frames.properties(message_id=frames.NUMBER.decode())
    messages = (Message("a", block, 16), Message("a.longer.key", block, 300))
    publisher = Publisher((), 300, 9, stamped=True, has_numbers=True, messages=messages)
    (plan,) = planned(Shape(publishers=(publisher,)))
    for (stamp, number, octets), message in zip(plan.messages, messages, strict=True):
        assert octets[number : number + 16] == frames.NUMBER
        assert len(octets) - stamp == message.body_size + 1
    assert len({len(octets) for _, _, octets in plan.messages}) == 2


def test_a_message_of_real_traffic_has_seven_properties_and_is_like_no_other() -> None:
    messages = unlike_messages(persistent=True)
    publisher = Publisher((), 1024, 1, persistent=True, has_numbers=True, messages=messages)
    (plan,) = planned(Shape(publishers=(publisher,)))
    headers = [value for value in plan.values if isinstance(value, pamqp.header.ContentHeader)]
    assert len({octets for _, _, octets in plan.messages}) == len(headers) == MESSAGE_COUNT
    for header in headers:
        present = {name for name, value in header.properties if value}
        assert present == {
            *("content_type", "headers", "delivery_mode", "correlation_id", "message_id"),
            *("timestamp", "message_type"),
        }
        assert set(header.properties.headers or {}) == {"trace-id", "tenant", "attempt"}
    sizes = {header.body_size for header in headers}
    assert min(sizes) >= SMALLEST_SIZE
    assert max(sizes) <= 1024
    assert len(sizes) > 300
    assert len(set(routing_keys())) == KEY_COUNT
    assert {message.routing_key for message in messages} <= set(routing_keys())


def test_transient_traffic_says_so_in_each_message() -> None:
    publisher = Publisher((), 1024, 1, messages=unlike_messages(persistent=False))
    (plan,) = planned(Shape(publishers=(publisher,)))
    headers = [value for value in plan.values if isinstance(value, pamqp.header.ContentHeader)]
    assert {header.properties.delivery_mode for header in headers} == {1}


def test_consumers_of_a_backlog_subscribe_when_the_clock_starts() -> None:
    filler = Publisher(("a",), 16, 70, mode=Mode.WINDOW)
    consumer = Consumer("a", 16, ack_every=1, more_queues=("b",))
    plan = plan_for(Shape(consumers=(consumer,), fill=(filler,)), ADDRESS, [], [5])
    run, subscribing = plan.splitlines()
    assert run.split()[-1] == "70"
    *_, count, octets = subscribing.split()
    methods = decoded(bytes.fromhex(octets))
    assert int(count) == len(methods) == 2
    for method, expected in zip(methods, [("a", "bench-0"), ("b", "bench-1")], strict=True):
        assert isinstance(method, pamqp.commands.Basic.Consume)
        assert (method.queue, method.consumer_tag) == expected
    plan = plan_for(Shape(consumers=(consumer,)), ADDRESS, [], [5])
    assert plan.splitlines() == ["run 3000 60000 0", "consumer 5 1 1 16 16 0 0 0 "]


@pytest.mark.parametrize("scenario", catalogue.SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_plan_holds_only_frames(scenario: Scenario) -> None:
    """What a plan sends, decoded again, is the shape: keys, sizes, durability, steps."""
    shape = scenario.shape
    for publisher, plan in zip(shape.publishers, planned(shape), strict=True):
        values = plan.values
        methods = [value for value in values if isinstance(value, pamqp.commands.Basic.Publish)]
        headers = [value for value in values if isinstance(value, pamqp.header.ContentHeader)]
        keys = tuple(message.routing_key for message in publisher.messages)
        assert tuple(method.routing_key for method in methods) == (keys or publisher.routing_keys)
        sizes = [message.body_size for message in publisher.messages]
        assert [header.body_size for header in headers] == (
            sizes or [publisher.body_size] * len(publisher.routing_keys)
        )
        assert {header.properties.delivery_mode for header in headers} == {
            2 if publisher.persistent else 1
        }
        assert all(stamp >= 0 for stamp, _, _ in plan.messages) == publisher.stamped
    consumers = range(300, 300 + len(shape.consumers))
    lines = plan_for(replace(shape, publishers=()), ADDRESS, [], consumers).splitlines()
    steps = [line.split()[2] for line in lines if line.startswith("step ")]
    assert bool(steps) == bool(shape.churn_client_count)
    for step in steps:
        octets = bytes.fromhex(step)
        assert octets == frames.PROTOCOL_HEADER or decoded(octets)


def test_handshake_begins_with_the_protocol_header() -> None:
    first, *others = handshake_steps(ADDRESS)
    assert first == (1, b"AMQP" + struct.pack(">BBBB", 0, 0, 9, 1))
    assert all(replies == 1 for replies, _ in others)


@pytest.mark.parametrize("scenario", catalogue.SCENARIOS, ids=lambda scenario: scenario.name)
def test_each_row_with_publishers_and_consumers_tells_both_latencies(scenario: Scenario) -> None:
    shape = scenario.shape
    if shape.consumers and shape.publishers:
        assert all(consumer.stamped for consumer in shape.consumers)
        consumed = [entry for entry in shape.publishers if entry.fan_count]
        assert all(publisher.stamped for publisher in consumed)
