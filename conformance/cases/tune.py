"""Section CONN, second half: tuning, opening out of turn, closing."""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import Final

from vouchmq.conformance import wire
from vouchmq.conformance.case import case
from vouchmq.conformance.client import CAPABILITIES, Connection
from vouchmq.conformance.events import EndedError, SilenceError
from vouchmq.conformance.expect import (
    LateError,
    MismatchError,
    Starting,
    check,
    equal,
    eventually,
    within,
)
from vouchmq.conformance.stage import Stage

WRONG_STATE: Final = "CHANNEL_ERROR - unexpected method in connection state {}"


def at_start(stage: Stage) -> Connection:
    """A connection that owes start-ok."""
    connection = stage.dial()
    connection.wait(0, "connection.start")
    return connection


def at_tune(stage: Stage) -> Connection:
    """A connection that owes tune-ok."""
    connection = at_start(stage)
    connection.start_ok()
    connection.wait(0, "connection.tune")
    return connection


def at_open(stage: Stage) -> Connection:
    """A connection that owes open."""
    connection = at_tune(stage)
    connection.tune_ok()
    return connection


@case("CONN-30", says="tune carries the defaults: 2047 channels, 131072 octets, 60 s")
def tune_values(stage: Stage) -> None:
    connection = at_start(stage)
    connection.start_ok()
    tune = connection.wait(0, "connection.tune")
    values = [tune.number(name) for name in ("channel_max", "frame_max", "heartbeat")]
    equal(values, [2047, 131072, 60], "channel_max, frame_max, heartbeat")


def _bad_tune(channel_max: int, frame_max: int, text: str, stage: Stage) -> None:
    connection = at_tune(stage)
    with connection.hard(530, f"NOT_ALLOWED - negotiated {text}", "connection.tune"):
        connection.tune_ok(channel_max=channel_max, frame_max=frame_max)


for _what, _channels, _frame, _text in (
    (
        "channel-max above the offer",
        *(2048, 131072),
        "channel_max = 2048 is higher than the maximum allowed value (2047)",
    ),
    (
        "channel-max 0",
        *(0, 131072),
        "channel_max = 0 (no limit) is higher than the maximum allowed value (2047)",
    ),
    (
        "frame-max above the offer",
        *(2047, 131073),
        "frame_max = 131073 is higher than the maximum allowed value (131072)",
    ),
    (
        "frame-max below 4096",
        *(2047, 4095),
        "frame_max = 4095 is lower than the minimum allowed value (4096)",
    ),
    (
        "frame-max 0",
        *(2047, 0),
        "frame_max = 0 is higher than the maximum allowed value (131072)",
    ),
):
    case("CONN-31", says=f"{_what} is refused with 530", mark="≡4", slow=True)(
        partial(_bad_tune, _channels, _frame, _text)
    )


@case("CONN-31", says="lower values than offered are taken: 1 channel, 4096 octets")
def low_tune(stage: Stage) -> None:
    connection = stage.connect(channel_max=1, frame_max=4096)
    channel = connection.channel()
    queue = stage.queue(channel)
    channel.publish("", queue, b"x" * 9000)
    channel.holds(queue, 1)
    got = channel.get(queue)
    equal(len(got.body), 9000, "octets of the body")
    check(max(got.body_sizes) <= 4088, f"body frames of {got.body_sizes} octets")


@case("CONN-33", says="channel-max counts open channels, not their numbers")
def channel_max_counts(stage: Stage) -> None:
    connection = stage.connect(channel_max=5)
    for number in (6, 65535, 100, 7):
        connection.channel(number)
    connection.channel(1).close()
    connection.channel(2000)


@case("CONN-33", says="one channel more than channel-max is hard 530, ids 0,0")
def channel_max_exceeded(stage: Stage) -> None:
    connection = stage.connect(channel_max=3)
    for number in (1, 2, 3):
        connection.channel(number)
    with connection.hard(
        530,
        "NOT_ALLOWED - number of channels opened (3) has reached the negotiated channel_max (3)",
    ):
        connection.channel(4)


def _start_ok_of(stage: Stage, size: int) -> Connection:
    connection = at_start(stage)
    padding = wire.method_payload("connection.start_ok", client_properties={"pad": ""})
    spare = size - len(padding) - len(b"PLAIN" + stage.target.plain())
    connection.start_ok(client_properties={"pad": "x" * spare}, locale="")
    return connection


@case("CONN-34", says="a start-ok of 4000 octets is taken")
def large_start_ok(stage: Stage) -> None:
    _start_ok_of(stage, 4000).wait(0, "connection.tune")


@case("CONN-34", says="a start-ok of 8184 octets is taken", mark="≡4", slow=True)
def larger_start_ok(stage: Stage) -> None:
    _start_ok_of(stage, 8184).wait(0, "connection.tune")


@case("CONN-34", says="a start-ok above 8192 octets is 501", mark="≠", slow=True)
def too_large_start_ok(stage: Stage) -> None:
    connection = at_start(stage)
    with connection.hard(501, Starting("FRAME_ERROR - type 1")):
        connection.start_ok(client_properties={"pad": "x" * 9000})


@case("CONN-35", says="a frame on channel 1 before open is hard 505", mark="≠", slow=True)
def channel_before_open(stage: Stage) -> None:
    for stop in (at_start, at_tune, at_open):
        connection = stop(stage)
        with connection.hard(505, Starting("UNEXPECTED_FRAME - ")):
            connection.send_method(1, "channel.open")


def _out_of_turn(state: str, stage: Stage) -> None:
    connection = {"starting": at_start, "tuning": at_tune, "opening": at_open}[state](stage)
    wrong = "connection.tune_ok" if state != "tuning" else "connection.open"
    with connection.hard(504, WRONG_STATE.format(state), wrong):
        connection.send_method(0, wrong)


for _state in ("starting", "tuning"):
    case(
        "CONN-35", says=f"a method out of turn in state {_state} is hard 504", mark="≠", slow=True
    )(partial(_out_of_turn, _state))
case("CONN-35", says="a method out of turn in state opening is hard 504")(
    partial(_out_of_turn, "opening")
)


def _on_channel_0(name: str, stage: Stage) -> None:
    connection = stage.connect()
    with connection.hard(504, WRONG_STATE.format("running"), name):
        connection.send_method(0, name)


for _name in (
    "channel.open",
    "queue.declare",
    "basic.publish",
    "connection.start_ok",
    "connection.secure_ok",
    "connection.tune_ok",
    "connection.open",
    "connection.close_ok",
    "connection.blocked",
):
    case("CONN-51", says=f"{_name} on channel 0 while running is hard 504")(
        partial(_on_channel_0, _name)
    )


@case("CONN-52", says="a class-10 method on an open channel is hard 503")
def connection_method_on_channel(stage: Stage) -> None:
    for name in ("connection.close", "connection.open", "connection.close_ok"):
        connection = stage.connect()
        connection.channel()
        with connection.hard(503, "COMMAND_INVALID - unimplemented method", name):
            connection.send_method(1, name)


@case("CONN-53", says="after close-ok the exclusive names are free")
def close_frees_exclusive_names(stage: Stage) -> None:
    name = stage.name()
    for _ in range(10):
        connection = stage.connect()
        connection.channel().call("queue.declare", queue=name, exclusive=True)
        connection.close()


@case("CONN-53", says="a client close requeues what was unacked")
def close_requeues(stage: Stage) -> None:
    watcher = stage.channel()
    queue = stage.queue(watcher)
    stage.load(watcher, queue, "a", "b")
    connection = stage.connect()
    channel = connection.channel()
    channel.consume(queue)
    channel.deliveries(2)
    connection.close()
    watcher.holds(queue, 2)
    got = watcher.get(queue)
    equal((got.body, got.redelivered), (b"a", True), "first message and its redelivered bit")


@case("CONN-53", says="frames after connection.close are discarded")
def frames_after_close(stage: Stage) -> None:
    watcher = stage.channel()
    queue = stage.queue(watcher)
    connection = stage.connect()
    channel = connection.channel()
    connection.send_method(0, "connection.close", reply_code=200)
    channel.publish("", queue, "late")
    channel.send("queue.declare", queue=queue, passive=True)
    connection.wait(0, "connection.close_ok")
    check(not connection.inbox(1), "a method after connection.close was answered")
    equal(watcher.count(queue), 0, "messages published after connection.close")


@case("CONN-07", says="the broker ends TCP after its close-ok, without a reset", mark="≠")
def close_ok_then_end(stage: Stage) -> None:
    connection = stage.connect()
    connection.close()
    connection.wait_end()
    equal(connection.end, "closed", "how TCP ended")


@case(
    "CONN-07", says="what a client still sends behind its own close breaks no connection", mark="≠"
)
def much_behind_a_close(stage: Stage) -> None:
    """Clients close on channel 0 while megabytes of other channels stand in their buffers."""
    channel = stage.channel()
    queue = stage.queue(channel)
    connection = stage.connect()
    behind = connection.channel()
    connection.send_method(0, "connection.close", reply_code=200)
    connection.wait(0, "connection.close_ok")
    for _ in range(40):
        behind.publish("", queue, bytes(64_000))
    connection.half_close()
    connection.wait_end()
    equal(connection.end, "closed", "how TCP ended")


def _provoke(connection: Connection) -> None:
    with connection.hard(504, None, "channel.open"):
        connection.send_method(0, "channel.open")


@case("CONN-54", says="after its close the broker waits for close-ok, then ends TCP")
def close_ok_ends_it(stage: Stage) -> None:
    connection = stage.connect()
    _provoke(connection)
    connection.listen(1.0)
    check(not connection.end, "TCP ended before close-ok")
    connection.send_method(0, "connection.close_ok")
    connection.wait_end()


@case("CONN-54", says="after its close the broker discards everything else")
def nothing_after_server_close(stage: Stage) -> None:
    watcher = stage.channel()
    queue = stage.queue(watcher)
    connection = stage.connect()
    channel = connection.channel()
    _provoke(connection)
    channel.publish("", queue, "late")
    channel.send("queue.declare", queue=queue, passive=True)
    connection.listen(0.3)
    check(not connection.inbox(1), "a method after the broker's close was answered")
    equal(watcher.count(queue), 0, "messages published after the broker's close")


@case("CONN-54", says="a client close that crosses the broker's is answered with close-ok")
def crossing_closes(stage: Stage) -> None:
    connection = stage.connect()
    _provoke(connection)
    connection.call("connection.close", reply_code=200)


@case("CONN-54", says="the clean-up is done when the broker's close is seen")
def server_close_cleans_up(stage: Stage) -> None:
    watcher = stage.channel()
    queue = stage.queue(watcher)
    stage.load(watcher, queue, "a")
    connection = stage.connect()
    channel = connection.channel()
    equal(channel.get(queue, no_ack=False).body, b"a", "the message taken")
    _provoke(connection)
    watcher.holds(queue, 1)


@case("CONN-55", says="an abrupt end requeues what was unacked and drops exclusive queues")
def abrupt_end(stage: Stage) -> None:
    watcher = stage.channel()
    queue, exclusive = stage.queue(watcher), stage.name("mine")
    stage.load(watcher, queue, "a")
    connection = stage.connect()
    channel = connection.channel()
    channel.call("queue.declare", queue=exclusive, exclusive=True)
    channel.get(queue, no_ack=False)
    connection.drop()
    watcher.holds(queue, 1)
    check(watcher.get(queue).redelivered, "not marked as redelivered")

    def is_free() -> bool:
        probe = stage.channel()
        try:
            with probe.soft(404, None, "queue.declare"):
                probe.call("queue.declare", queue=exclusive, passive=True)
        except MismatchError:
            return False
        return True

    eventually(is_free, True, "the exclusive queue is gone")


# --- heartbeats ---------------------------------------------------------------------------


@case("CONN-60", says="heartbeat 2: one every second, the first within a second", slow=True)
def heartbeats_come(stage: Stage) -> None:
    connection = at_tune(stage)
    connection.tune_ok(beat=2)
    begin = time.monotonic()
    connection.call("connection.open", vhost=stage.target.vhost)
    while time.monotonic() - begin < 5.0 and not connection.end:
        connection.listen(0.4)
        connection.send(wire.frame(wire.HEARTBEAT, 0, b""))
    times = [beat - begin for beat in connection.heartbeats]
    told = [f"{at:.1f}" for at in times]
    check(bool(times), "no heartbeat came")
    # From the opening on, and to the end.
    for before, later in itertools.pairwise([0.0, *times, 5.0]):
        within(later - before, 1.6, f"a heartbeat, of those after {told}")
    if len(times) < 4:
        raise LateError(f"heartbeats after {told} s")


@case(
    "CONN-61", says="a silent client is dropped after 2 to 3 intervals, without a close", slow=True
)
def silence_is_dropped(stage: Stage) -> None:
    connection = stage.connect(beat=2)
    begin = time.monotonic()
    lasted = connection.wait_end(10) - begin
    check(lasted >= 3.9, f"dropped after {lasted:.1f} s")
    within(lasted, 7.5, "the end")
    check(not connection.inbox(0), f"{[event.name for event in connection.inbox(0)]}")


@case("CONN-61", says="any octet is a sign of life", slow=True)
def octets_keep_alive(stage: Stage) -> None:
    connection = stage.connect(beat=1)
    connection.channel()
    octets = wire.method(1, "basic.qos")
    # Far more often than needed: where this machine stands still, the client must not be silent.
    for at in range(len(octets)):
        connection.send(octets[at : at + 1])
        connection.listen(0.35)
    check(not connection.end, f"the connection ended: {connection.end}")


@case("CONN-61", says="what a dropped client had unacked returns", slow=True)
def dropped_client_requeues(stage: Stage) -> None:
    watcher = stage.channel()
    queue = stage.queue(watcher)
    stage.load(watcher, queue, "a")
    channel = stage.connect(beat=1).channel()
    channel.get(queue, no_ack=False)
    channel.connection.wait_end(10)
    watcher.holds(queue, 1)


@case("CONN-32", says="heartbeat 0 disables both directions", slow=True)
def no_heartbeats(stage: Stage) -> None:
    connection = stage.connect(beat=0)
    connection.listen(6)
    check(not connection.heartbeats, "a heartbeat came")
    check(not connection.end, f"the connection ended: {connection.end}")


@case("CONN-63", says="a heartbeat on a channel other than 0 is hard 505")
def heartbeat_on_channel(stage: Stage) -> None:
    connection = stage.connect()
    connection.channel()
    with connection.hard(505, None):
        connection.send(wire.frame(wire.HEARTBEAT, 1, b""))


@case("CONN-63", says="heartbeats are accepted in every state, also with heartbeat 0")
def heartbeats_accepted(stage: Stage) -> None:
    beat = wire.frame(wire.HEARTBEAT, 0, b"")
    connection = at_start(stage)
    connection.send(beat)
    connection.start_ok()
    connection.wait(0, "connection.tune")
    connection.send(beat)
    connection.tune_ok()
    connection.send(beat)
    connection.call("connection.open", vhost=stage.target.vhost)
    connection.send(beat)
    connection.channel()


# --- what the broker owes only to clients that asked for it ------------------------------


@case("CONN-14", says="without consumer_cancel_notify no basic.cancel is sent")
def no_cancel_without_capability(stage: Stage) -> None:
    wanting = {name: on for name, on in CAPABILITIES.items() if name != "consumer_cancel_notify"}
    channel = stage.connect(client_properties={"capabilities": wanting}).channel()
    queue = stage.queue(channel)
    channel.consume(queue)
    stage.channel().call("queue.delete", queue=queue)
    try:
        event = channel.wait("basic.cancel", timeout_s=1.0)
    except (SilenceError, EndedError):
        channel.sync()
        return
    raise MismatchError(f"{event.name} was sent")
