"""Frames that are not AMQP, or come in an order that AMQP does not know, are named as such."""

from __future__ import annotations

import struct

import pamqp.commands as amqp
import pytest

from vouchmq.kit.bulk.frames import BrokenFrameError, FrameWalk, Inbox
from vouchmq.kit.bulk.methods import HEARTBEAT, method_frame, method_of


def opened() -> FrameWalk:
    walk = FrameWalk()
    walk.frame_max = 4096
    walk.inboxes[1] = Inbox()
    return walk


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def deliver(tag: int = 1) -> bytes:
    method = amqp.Basic.Deliver("c", tag, redelivered=False, exchange="", routing_key="q")
    return method_frame(1, method)


def header(size: int, properties: bytes = b"\x00\x00", class_id: int = 60) -> bytes:
    return frame(2, 1, struct.pack(">HHQ", class_id, 0, size) + properties)


WHOLE = deliver() + header(2) + frame(3, 1, b"hi")


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "does not speak AMQP"),
        (b"AMQP\x01\x01\x00\x0a", "another version of AMQP: 1.1.0.10"),
        (frame(1, 1, b"\x00\x3c"), "fewer than four bytes"),
        (frame(1, 1, b"\x00\x3c\x00\xff"), "a method that cannot be read"),
        (frame(1, 1, b"\x00\x3c\x00\x64\x01"), "basic.recover-async, which only clients send"),
        (frame(1, 1, b"\x00\x3c\x00\x3c\x01c"), "cut short"),
        (frame(1, 1, b"\x00\x3c\x00\x3c"), "cut short"),
        (frame(1, 1, b"\x00\x3c\x00\x50\x00"), "cut short"),
        (struct.pack(">BHI", 3, 1, 4089), "more than was agreed"),
        (frame(3, 1, b"x" * 10)[:-1] + b"\x00", "without its end byte"),
        (frame(3, 1, b"x"), "content that no method announced"),
        (frame(2, 0, b"x" * 14), "content that no method announced"),
        (frame(3, 4, b"x"), "channel 4, which is not open"),
        (deliver() + frame(3, 1, b"x"), "a body before its content header"),
        (deliver() + header(2) + header(2), "a second content header"),
        (deliver() + frame(2, 1, b"x" * 13), "content header that is cut short"),
        (deliver() + header(2, class_id=10), "content header of class 10"),
        (deliver() + header(2) + frame(3, 1, b"abc"), "longer than its header says"),
        (deliver() + header(9) + frame(3, 1, b"abc") + deliver(2), "in the middle of a message"),
        (WHOLE + WHOLE[:-1] + b"\x00", "without its end byte"),
        (WHOLE + WHOLE.replace(b"\x01q", b"\x02q"), "cut short"),
    ],
)
def test_a_broken_frame_is_named(stream: bytes, text: str) -> None:
    with pytest.raises(BrokenFrameError, match=text):
        opened().receive_data(stream)


def test_what_came_before_a_broken_frame_is_kept() -> None:
    walk = opened()
    with pytest.raises(BrokenFrameError):
        walk.receive_data(WHOLE + WHOLE + b"garbage of some length")
    assert [each[5] for each in walk.inboxes[1].deliveries] == [b"hi", b"hi"]


def test_a_close_in_the_middle_of_a_message_ends_the_message() -> None:
    walk = opened()
    close = method_frame(1, amqp.Channel.Close(404, "gone", 60, 20))
    walk.receive_data(deliver() + header(10) + frame(3, 1, b"half") + close)
    assert [method.name for _, method in walk.methods] == ["Channel.Close"]
    assert not walk.inboxes[1].deliveries
    walk.receive_data(WHOLE)
    assert len(walk.inboxes[1].deliveries) == 1


def test_a_body_of_many_frames_is_put_together() -> None:
    walk = opened()
    body = bytes(range(256)) * 1000
    pieces = [body[place : place + 4088] for place in range(0, len(body), 4088)]
    stream = deliver() + header(len(body)) + b"".join(frame(3, 1, piece) for piece in pieces)
    walk.receive_data(stream[:70_000])
    walk.receive_data(HEARTBEAT[:0] + stream[70_000:])
    assert [each[5] for each in walk.inboxes[1].deliveries] == [body]


def test_the_answer_to_get_is_handed_out_once() -> None:
    walk = opened()
    got = amqp.Basic.GetOk(5, redelivered=True, exchange="x", routing_key="k", message_count=300)
    walk.receive_data(method_frame(1, got) + header(0))
    inbox = walk.inboxes[1]
    assert inbox.got is not None
    assert inbox.got.message_count == 300
    assert inbox.take_got() == (5, True, "x", "k", b"\x00\x00", b"")
    assert inbox.take_got() is None
    assert not inbox.deliveries


@pytest.mark.parametrize("name", ["my orders", "заказы", "a" * 255, ""])
def test_names_that_pamqp_would_refuse_are_sent(name: str) -> None:
    method = amqp.Queue.Declare()
    method.queue = name
    method.durable = method.auto_delete = True
    payload = method_frame(3, method)[7:-1]
    read = method_of(payload)
    assert isinstance(read, amqp.Queue.Declare)
    assert (read.queue, read.passive, read.durable, read.exclusive) == (name, False, True, False)
    assert (read.auto_delete, read.nowait, read.arguments) == (True, False, {})


def test_a_field_that_does_not_fit_is_named() -> None:
    method = amqp.Queue.Declare()
    method.queue = "a" * 256
    with pytest.raises(ValueError, match=r"Queue\.Declare: queue"):
        method_frame(1, method)
