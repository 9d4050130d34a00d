"""Section STREAM: streams among other queues: routes, sizes, many consumers, cancels, restarts."""

from __future__ import annotations

from collections.abc import Iterator

from vouchmq.conformance.case import case
from vouchmq.conformance.cases.redeliver import fetch
from vouchmq.conformance.cases.stream import append, offset, reader, stream
from vouchmq.conformance.expect import check, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Table, Typed


@case("STREAM-02", says="a fanout fills streams and queues, each in its own way")
def beside_queues(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = stage.exchange(channel, "fanout")
    classic, name = stage.bound(channel, exchange), stream(stage)
    channel.call("queue.bind", queue=name, exchange=exchange)
    for body in ("a", "b"):
        channel.publish(exchange, "", body)
    equal(set(channel.confirms(2).values()), {"ack"}, "confirms")
    channel.holds(classic, 2)
    event = channel.get(classic)
    equal((event.body, event.properties.get("headers")), (b"a", None), "copy in the queue")
    equal(reader(stage, name).bodies(2), ["a", "b"], "copies in the stream")


@case("STREAM-02", says="a mandatory message to a stream is not returned")
def mandatory(stage: Stage) -> None:
    name = stream(stage)
    channel = stage.confirming()
    channel.publish("", name, "x", mandatory=True)
    equal(channel.confirms(1), {1: "ack"}, "confirm")
    channel.quiet("basic.return", seconds=0.1)


@case("STREAM-02", says="messages from none to many frames come back whole")
def sizes(stage: Stage) -> None:
    name = stream(stage)
    bodies = [b"", b"x", b"y" * 131_064, b"z" * 131_065, b"w" * 600_000]
    append(stage, name, bodies)
    events = reader(stage, name).deliveries(len(bodies))
    check([event.body for event in events] == bodies, "a body is not as it was published")


@case(
    "STREAM-02",
    says="a dead-lettered message arrives in a stream with its history",
    referee_reason="C-82: drops what a classic queue dead-letters into a stream",
)
def dead_letters(stage: Stage) -> None:
    name = stream(stage)
    channel = stage.channel()
    source = stage.queue(
        channel, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name}
    )
    stage.load(channel, source, "x")
    channel.reject(fetch(channel, source).tag, requeue=False)
    event = reader(stage, name).deliver()
    headers = event.headers if isinstance(event.headers, dict) else {}
    equal((event.body, headers.get("x-first-death-reason")), (b"x", "rejected"), "message")


@case("STREAM-02", says="a consumer that waits at the end gets what comes, as it comes")
def live(stage: Stage) -> None:
    name = stream(stage)
    channels = [reader(stage, name, "next") for _ in range(3)]
    for number in range(10):
        append(stage, name, [str(number)])
        for channel in channels:
            event = channel.deliver()
            equal((event.body, offset(event)), (str(number).encode(), number), "message")
            channel.ack(event.tag)


@case("STREAM-15", says="a cancelled consumer gets no more; another begins anew")
def cancel(stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, ["a", "b"])
    channel = stage.channel()
    channel.call("basic.qos", prefetch_count=10)
    tag = channel.consume(name, arguments={"x-stream-offset": "first"})
    events = channel.deliveries(2)
    channel.call("basic.cancel", consumer_tag=tag)
    append(stage, name, ["c"])
    channel.quiet("basic.deliver")
    channel.ack(events[1].tag, multiple=True)
    channel.consume(name, arguments={"x-stream-offset": 1})
    equal(channel.bodies(2), ["b", "c"], "messages of the second consumer")


@case("STREAM-15", says="two consumers with windows of their own do not wait for each other")
def windows(stage: Stage) -> None:
    name = stream(stage)
    append(stage, name, [str(number) for number in range(40)])
    lazy, busy = reader(stage, name, prefetch=1), reader(stage, name, prefetch=10)
    lazy.deliver()
    for number in range(40):
        event = busy.deliver()
        equal(event.body, str(number).encode(), "message")
        busy.ack(event.tag)


@case(
    "STREAM-15", says="ten thousand messages come in order to who acknowledges in bulk", slow=True
)
def many(stage: Stage) -> None:
    name = stream(stage)
    for batch in range(10):
        append(stage, name, [str(number) for number in range(batch * 1000, batch * 1000 + 1000)])
    channel = reader(stage, name, prefetch=500)
    for number in range(10_000):
        event = channel.deliver()
        equal(event.body, str(number).encode(), "message")
        if number % 100 == 99:
            channel.ack(event.tag, multiple=True)


@case("STREAM-16", says="a published x-stream-offset is overwritten")
def overwritten(stage: Stage) -> None:
    name = stream(stage)
    channel = stage.confirming()
    for _ in range(2):
        channel.publish("", name, "x", headers={"x-stream-offset": "mine"})
    channel.confirms(2)
    equal([offset(event) for event in reader(stage, name).deliveries(2)], [0, 1], "offsets")


@case("STREAM-02", says="offsets and times of arrival go on over a restart", mark="≠", restart=True)
def times_survive(stage: Stage) -> Iterator[None]:
    name = stream(stage)
    append(stage, name, ["old", "older"])
    yield
    # A second later than anything before the restart.
    stage.channel().connection.listen(1.1)
    append(stage, name, ["new"])
    event = reader(stage, name, "last").deliver()
    equal(offset(event) <= 2, True, "offset of the last batch")
    events = reader(stage, name).deliveries(3)
    equal([offset(one) for one in events], [0, 1, 2], "offsets")
    early = reader(stage, name, Typed("T", 1)).deliver()
    equal(early.body, b"old", "first message since 1970")


@case("STREAM-24", says="declared again with the same arguments it is there, with others soft 406")
def equivalence(stage: Stage) -> None:
    name = stream(stage, {"x-max-age": "1D", "x-max-length-bytes": 1_000_000})
    channel = stage.channel()
    arguments: Table = {
        "x-queue-type": "stream",
        "x-max-age": "1D",
        "x-max-length-bytes": 1_000_000,
    }
    channel.call("queue.declare", queue=name, durable=True, arguments=arguments)
    text = (
        f"PRECONDITION_FAILED - inequivalent arg 'x-max-age' for {stage.the_queue(name)}: "
        "received '2D' but current is '1D'"
    )
    arguments = {**arguments, "x-max-age": "2D"}
    with channel.soft(406, text, "queue.declare"):
        channel.call("queue.declare", queue=name, durable=True, arguments=arguments)
