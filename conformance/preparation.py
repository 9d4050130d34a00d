"""What some cases need to find: users, virtual hosts and policies that no AMQP client can make.

`prepared/definitions.json` is for any RabbitMQ (`rabbitmqctl import_definitions`),
`prepared/vouchmq.json` says the same and a little more to a VouchMQ (`--load-definitions`). Cases
that miss them are skipped.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from typing import Final

from vouchmq.conformance.client import Channel, Connection
from vouchmq.conformance.events import EndedError, RefusedError, SilenceError
from vouchmq.conformance.expect import SkipError
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.target import Target

# The user whose rights are in the names: what ends in .cw may be configured and written.
USER: Final = "conformance"
PASSWORD: Final = "conformance"
MISSING: Final = "needs the users and policies of conformance/prepared"
LOOK_S: Final = 3.0


@cache
def _has_users(target: Target) -> bool:
    connection = Connection(replace(target, user=USER, password=PASSWORD))
    try:
        connection.open()
    except (RefusedError, EndedError, SilenceError):
        return False
    finally:
        connection.drop()
    return True


@cache
def _has_policies(target: Target) -> bool:
    stage = Stage(target)
    try:
        channel = stage.channel()
        queue = stage.queue(channel, label="policy-length")
        for _ in range(3):
            channel.publish("", queue, "x")
        deadline = time.monotonic() + LOOK_S
        while (count := channel.count(queue)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        channel.connection.listen(0.3)
        return count == channel.count(queue) == 2
    finally:
        stage.clear()


def need_users(stage: Stage) -> None:
    """Skip unless the prepared users are there."""
    if stage.target.vhost != "/" or not _has_users(stage.target):
        raise SkipError(MISSING)


def need_policies(stage: Stage) -> None:
    """Skip unless the prepared policies are there."""
    if stage.target.vhost != "/" or not _has_policies(stage.target):
        raise SkipError(MISSING)


def dial_as(stage: Stage, user: str, password: str = PASSWORD, vhost: str = "/") -> Connection:
    """A connection that is not open yet, for another user or virtual host."""
    need_users(stage)
    connection = Connection(replace(stage.target, user=user, password=password, vhost=vhost))
    stage.connections.append(connection)
    return connection


def log_in(stage: Stage, user: str, password: str = PASSWORD, vhost: str = "/") -> Connection:
    """An open connection of another user or virtual host."""
    return dial_as(stage, user, password, vhost).open()


def guarded(stage: Stage) -> Channel:
    """A channel of the user whose rights are in the names."""
    return log_in(stage, USER).channel()
