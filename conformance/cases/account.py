"""Sections AUTH and VHOST, and the limits of users and virtual hosts.

Their users and virtual hosts must be prepared (conformance/prepared).
"""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Connection
from vouchmq.conformance.events import RefusedError
from vouchmq.conformance.expect import PATIENCE_S, check, equal
from vouchmq.conformance.preparation import PASSWORD, dial_as, log_in, need_users
from vouchmq.conformance.stage import Stage

OTHER: Final = "conformance-other"
FEW: Final = "conformance-exchanges"
NARROW: Final = "conformance-queues"
LONELY: Final = "conformance-connections"
LIMITED: Final = "conformance-limited"


def _when_free(stage: Stage, user: str, password: str = PASSWORD, vhost: str = "/") -> Connection:
    """Log in as soon as the limit allows it: RabbitMQ counts closed connections for a while."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return log_in(stage, user, password, vhost)
        except RefusedError as refused:
            if "limit" not in refused.text or time.monotonic() > deadline:
                raise
            stage.connections.pop().drop()
            time.sleep(0.05)


def _refused_open(connection: Connection, text: str) -> None:
    """Everything up to connection.open is in order; that one is hard 530 with this text."""
    connection.wait(0, "connection.start")
    connection.start_ok()
    connection.wait(0, "connection.tune")
    connection.tune_ok()
    with connection.hard(530, f"NOT_ALLOWED - {text}", "connection.open"):
        connection.call("connection.open", vhost=connection.target.vhost)


@case("AUTH-01", says="the user of the URL may configure, write and read everything")
def default_user(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "topic", arguments={"alternate-exchange": "amq.fanout"})
    queue = stage.bound(channel, exchange, "#")
    channel.publish(exchange, "any.key", "x")
    channel.holds(queue, 1)
    equal(channel.drain(queue), ["x"], "messages")


def _logs_in(user: str, password: str, stage: Stage) -> None:
    log_in(stage, user, password).channel()


for _says, _user, _password in (
    ("a hash by SHA-256", "conformance", PASSWORD),
    ("a hash by SHA-512", "conformance-sha512", PASSWORD),
    ("a hash by MD5", "conformance-md5", PASSWORD),
):
    case("AUTH-02", says=f"{_says} from RabbitMQ's definitions verifies")(
        partial(_logs_in, _user, _password)
    )
case("AUTH-03", says="the vector's hash verifies its password")(
    partial(_logs_in, "conformance-vector", "test12")
)


def _is_refused(user: str, password: str, stage: Stage) -> None:
    connection = dial_as(stage, user, password)
    text = (
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
        "For details see the broker logfile."
    )
    connection.wait(0, "connection.start")
    with connection.hard(403, text):
        connection.start_ok()
        connection.wait(0)


for _rule, _says, _user, _password in (
    ("AUTH-02", "a wrong password is refused", "conformance", "confirmance"),
    ("AUTH-03", "the vector's hash refuses another password", "conformance-vector", "test13"),
    (
        "AUTH-04",
        "a user without a password cannot log in with an empty one",
        "conformance-passwordless",
        "",
    ),
    (
        "AUTH-04",
        "a user without a password cannot log in with any",
        "conformance-passwordless",
        PASSWORD,
    ),
):
    case(_rule, says=_says, slow=True)(partial(_is_refused, _user, _password))


@case("AUTH-05", says="the tag impersonator allows any user-id")
def impersonator(stage: Stage) -> None:
    channel = log_in(stage, "conformance-impersonator").channel()
    queue = stage.queue(channel)
    channel.publish("", queue, "x", user_id="somebody else")
    channel.holds(queue, 1)
    equal(channel.get(queue).properties["user_id"], "somebody else", "user-id")


# The cases with this user or with the lonely vhost are serial: one would be in the other's way.
@case("CONN-43", says="beyond a user's connection limit open is hard 530", serial=True)
def user_connections(stage: Stage) -> None:
    first = _when_free(stage, LIMITED)
    text = f"connection refused for user '{LIMITED}': user connection limit (1) is reached"
    _refused_open(dial_as(stage, LIMITED), text)
    first.close()
    first.drop()
    _when_free(stage, LIMITED).channel()


@case("CHAN-04", says="beyond a user's channel limit channel.open is hard 530", serial=True)
def user_channels(stage: Stage) -> None:
    connection = _when_free(stage, LIMITED)
    connection.channel(1)
    connection.channel(2)
    text = (
        f"NOT_ALLOWED - number of channels opened for user '{LIMITED}' has reached the maximum "
        "allowed user limit of (2)"
    )
    with connection.hard(530, text):
        connection.channel(3)


@case("AUTH-06", says="what is closed does not count against a user's limits", serial=True)
def limits_count_what_is_open(stage: Stage) -> None:
    for _ in range(3):
        connection = _when_free(stage, LIMITED)
        connection.channel(1)
        connection.channel(2)
        connection.close()
        connection.drop()


@case("CONN-44", says="a user without permissions in the vhost: hard 530")
def no_permissions(stage: Stage) -> None:
    text = "access to vhost '/' refused for user 'conformance-nobody'"
    _refused_open(dial_as(stage, "conformance-nobody"), text)


@case("CONN-42", says="beyond a vhost's connection limit open is hard 530", serial=True)
def vhost_connections(stage: Stage) -> None:
    user, password = stage.target.user, stage.target.password
    first = _when_free(stage, user, password, LONELY)
    text = f"access to vhost '{LONELY}' refused for user '{user}': connection limit (1) is reached"
    _refused_open(dial_as(stage, user, password, LONELY), text)
    first.close()
    first.drop()
    _when_free(stage, user, password, LONELY).channel()


@case("QUEUE-09", says="beyond a vhost's queue limit declare is soft 406; existing ones still do")
def vhost_queues(stage: Stage) -> None:
    channel = log_in(stage, stage.target.user, stage.target.password, NARROW).channel()
    name = stage.name("only one")
    channel.call("queue.declare", queue=name, exclusive=True)
    other = stage.name()
    text = (
        f"PRECONDITION_FAILED - cannot declare queue '{other}': "
        f"queue limit in vhost '{NARROW}' (1) is reached"
    )
    channel.soft_again(406, text, "queue.declare", queue=other, exclusive=True)
    channel.call("queue.declare", queue=name, exclusive=True)
    channel.call("queue.delete", queue=name)
    channel.call("queue.declare", queue=other, exclusive=True)
    channel.call("queue.delete", queue=other)


@case("EXCH-14", says="beyond a vhost's exchange limit declare is soft 406", mark="≡4")
def vhost_exchanges(stage: Stage) -> None:
    channel = log_in(stage, stage.target.user, stage.target.password, FEW).channel()
    # Seven are there from the beginning.
    name, other = stage.name("x"), stage.name("x")
    channel.call("exchange.declare", exchange=name, type="fanout")
    text = (
        f"PRECONDITION_FAILED - cannot declare exchange '{other}' in vhost '{FEW}': "
        "exchange limit of 8 is reached"
    )
    channel.soft_again(406, text, "exchange.declare", exchange=other, type="fanout")
    channel.call("exchange.declare", exchange=name, type="fanout")
    channel.call("exchange.delete", exchange=name)
    channel.call("exchange.declare", exchange=other, type="fanout")
    channel.call("exchange.delete", exchange=other)


@case("VHOST-01", says="the same names in two vhosts are different things")
def separate(stage: Stage) -> None:
    need_users(stage)
    here = stage.channel()
    there = log_in(stage, stage.target.user, stage.target.password, OTHER).channel()
    name = stage.name()
    here.call("queue.declare", queue=name)
    here.call("exchange.declare", exchange=name, type="fanout")
    there.soft_again(404, None, "queue.declare", queue=name, passive=True)
    there.soft_again(404, None, "exchange.declare", exchange=name, passive=True)
    there.call("queue.declare", queue=name, exclusive=True)
    there.call("exchange.declare", exchange=name, type="direct", auto_delete=True)
    here.call("queue.bind", queue=name, exchange="amq.fanout")
    there.call("queue.bind", queue=name, exchange=name, routing_key="k")
    there.publish("amq.fanout", "", "nowhere")
    there.publish("", name, "there")
    here.publish("", name, "here")
    here.holds(name, 1)
    there.holds(name, 1)
    equal((here.drain(name), there.drain(name)), (["here"], ["there"]), "messages")
    there.call("exchange.delete", exchange=name)


@case("VHOST-02", says="a new vhost has the predeclared exchanges, and nothing bound to them")
def predeclared(stage: Stage) -> None:
    channel = log_in(stage, stage.target.user, stage.target.password, OTHER).channel()
    for kind in ("direct", "fanout", "topic", "headers", "match"):
        channel.call("exchange.declare", exchange=f"amq.{kind}", passive=True)
        channel.publish(f"amq.{kind}", "", "x", mandatory=True)
        equal(channel.wait("basic.return").number("reply_code"), 312, f"return of amq.{kind}")


@case("VHOST-04", says="a vhost without limits has none")
def no_limits(stage: Stage) -> None:
    connections = [log_in(stage, stage.target.user, stage.target.password, OTHER) for _ in range(3)]
    channel = connections[0].channel()
    for _ in range(5):
        name = channel.call("queue.declare", queue="", exclusive=True).text("queue")
        check(name.startswith("amq.gen-"), f"name {name}")
