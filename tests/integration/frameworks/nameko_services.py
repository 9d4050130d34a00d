"""Nameko services as its documentation writes them, run by `nameko run`."""

from __future__ import annotations

import os
import time
from pathlib import Path

from kombu import Exchange, Queue
from nameko.events import BROADCAST, SERVICE_POOL, EventDispatcher, event_handler
from nameko.messaging import Publisher, consume
from nameko.rpc import RpcProxy, rpc

NOTES = Path(os.environ.get("FRAMEWORK_TEST_NOTES", os.devnull))
PREFIX = os.environ.get("FRAMEWORK_TEST_PREFIX", "frameworks")
TASKS = Queue(f"{PREFIX}-tasks", exchange=Exchange(f"{PREFIX}-tasks", type="direct"))


def write(text: str) -> None:
    """Append a line that tells the process, too."""
    with NOTES.open("a", encoding="utf-8") as notes:
        notes.write(f"{text} {os.getpid()}\n")


class GreetingService:
    """Answers, and tells others that it did."""

    name = f"{PREFIX}-greeting"
    dispatch = EventDispatcher()
    publish = Publisher(exchange=TASKS.exchange)

    @rpc
    def hello(self, whom: str) -> str:
        """Answer and dispatch an event."""
        self.dispatch("greeted", whom)
        return f"Hello, {whom}!"

    @rpc
    def fail(self, text: str) -> None:
        """Raise on the caller's side."""
        raise ValueError(text)

    @rpc
    def enqueue(self, text: str) -> None:
        """Publish a plain message."""
        self.publish(text)

    @rpc
    def sleep_once(self) -> str:
        """The first call does not come to its end by itself."""
        first = "began" not in NOTES.read_text(encoding="utf-8") if NOTES.exists() else True
        write("began")
        if first:
            time.sleep(60)
        return "woke up"


class FrontService:
    """Asks another service on behalf of its caller."""

    name = f"{PREFIX}-front"
    greeting = RpcProxy(f"{PREFIX}-greeting")

    @rpc
    def welcome(self, whom: str) -> str:
        """Pass on what the other service says."""
        return str(self.greeting.hello(whom)).upper()


class ListenerService:
    """Writes down what it hears."""

    name = f"{PREFIX}-listener"

    @event_handler(f"{PREFIX}-greeting", "greeted", handler_type=SERVICE_POOL)
    def heard_by_one(self, payload: str) -> None:
        """One instance of the service hears it."""
        write(f"pool {payload}")

    @event_handler(f"{PREFIX}-greeting", "greeted", handler_type=BROADCAST, reliable_delivery=False)
    def heard_by_all(self, payload: str) -> None:
        """Every instance hears it."""
        write(f"broadcast {payload}")

    @consume(TASKS)
    def take(self, payload: str) -> None:
        """Take a plain message."""
        write(f"task {payload}")
