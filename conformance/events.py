"""What comes from the broker, as the cases see it: events, refusals, ends, and one-line traces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from vouchmq.conformance import wire
from vouchmq.conformance.expect import MismatchError
from vouchmq.conformance.wire import Argument


@dataclass(slots=True)
class Event:
    """A method from the broker, with its content if it carries one."""

    name: str
    ids: tuple[int, int]
    arguments: dict[str, Argument]
    at: float
    header: wire.Header | None = None
    body: bytes = b""
    body_sizes: list[int] = field(default_factory=list)

    def number(self, name: str) -> int:
        """An integer or bit argument."""
        value = self.arguments[name]
        if not isinstance(value, int):
            raise MismatchError(f"{self.name}.{name} is not a number")
        return int(value)

    def text(self, name: str) -> str:
        """A string argument."""
        value = self.arguments[name]
        if isinstance(value, bytes):
            return value.decode("utf-8", "surrogateescape")
        return str(value)

    @property
    def tag(self) -> int:
        """The delivery tag."""
        return self.number("delivery_tag")

    @property
    def redelivered(self) -> bool:
        """The redelivered bit."""
        return bool(self.arguments["redelivered"])

    @property
    def properties(self) -> dict[str, Argument]:
        """The content's properties, decoded."""
        return self.header.properties() if self.header else {}

    @property
    def headers(self) -> object:
        """The headers table in plain Python values; None without one."""
        table = self.properties.get("headers")
        return wire.plain(wire.Typed("F", table)) if table is not None else None

    @property
    def block(self) -> bytes:
        """The raw property block."""
        return self.header.block if self.header else b""


class RefusedError(Exception):
    """The broker closed the channel (`is_hard` False) or the connection (True)."""

    def __init__(self, event: Event, *, is_hard: bool) -> None:
        self.code = event.number("reply_code")
        self.text = event.text("reply_text")
        self.ids = (event.number("class_id"), event.number("method_id"))
        self.is_hard = is_hard
        scope = "connection" if is_hard else "channel"
        super().__init__(f"{scope} closed by the broker: {self.code} {self.text!r} ids {self.ids}")


class EndedError(Exception):
    """The TCP connection ended."""


class SilenceError(Exception):
    """Nothing of what was waited for came in time."""


# Their tables fill lines and say nothing about the case.
_LONG_WINDED: Final = frozenset({"connection.start", "connection.start_ok"})


def describe(frame: wire.Frame) -> str:
    """A frame in one line of a trace."""
    if frame.kind == wire.METHOD:
        try:
            method = wire.decode_method(frame.payload)
        except wire.WireError as error:
            return f"{frame.channel} undecodable method ({error}): {frame.payload[:40].hex(' ')}"
        if method.name in _LONG_WINDED:
            return f"{frame.channel} {method.name} …"
        shown = " ".join(
            f"{key}={wire.plain(wire.Typed('F', value)) if isinstance(value, dict) else value!r}"
            for key, value in method.arguments.items()
            if value
        )
        return f"{frame.channel} {method.name} {shown}"[:160]
    kind = {wire.HEADER: "header", wire.BODY: "body", wire.HEARTBEAT: "heartbeat"}.get(frame.kind)
    shown = frame.payload[:24].hex(" ")
    return f"{frame.channel} {kind or f'type {frame.kind}'} {len(frame.payload)} octets {shown}"


def describe_octets(octets: bytes) -> str:
    """What was sent, in one line: the frames if they are whole ones, else octets."""
    at = 0
    lines: list[str] = []
    while len(octets) - at >= wire.FRAME_OVERHEAD and octets[at : at + 4] != b"AMQP":
        size = int.from_bytes(octets[at + 3 : at + 7], "big")
        if len(octets) - at < size + wire.FRAME_OVERHEAD or len(lines) > 3:
            break
        channel = int.from_bytes(octets[at + 1 : at + 3], "big")
        lines.append(describe(wire.Frame(octets[at], channel, octets[at + 7 : at + 7 + size])))
        at += size + wire.FRAME_OVERHEAD
    if at < len(octets):
        lines.append(f"{len(octets) - at} octets {octets[at : at + 24].hex(' ')}")
    return " | ".join(lines)
