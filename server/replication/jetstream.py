"""What is said to JetStream and what it answers, as bytes; nothing is sent here.

A *stream* is a log with sequences from 1 on. Appends are messages to one of its subjects, with the
sequence that they expect the stream to end with; everything else goes to subjects of the API, as
JSON. `STREAM.INFO` and `STREAM.MSG.GET` are answered by the stream's leader, `DIRECT.GET` by any
replica, which may be behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import DecodeError, ValidationError, json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vouchmq.server.replication.nats_protocol import Message

T = TypeVar("T")

API: Final = "$JS.API."
NO_RESPONDERS: Final = 503
END_OF_BATCH: Final = 204
NOT_FOUND: Final = 404
# Codes of JetStream's own (`err_code`).
WRONG_LAST_SEQUENCE: Final = 10071
NO_MESSAGE_FOUND: Final = 10037
STREAM_NAME_IN_USE: Final = 10058
STREAM_NOT_FOUND: Final = 10059


class JetStreamError(Exception):
    """JetStream does not do what it was asked for.

    Args:
        text: why
        code: JetStream's own code, 0 when it did not answer at all
    """

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Ack(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    error: _Error | None = None


class StreamConfig(msgspec.Struct):
    """The settings of a stream that are used; `StreamInfo.settings` are all of them."""

    subjects: list[str] = msgspec.field(default_factory=list)
    num_replicas: int = 0
    max_bytes: int = -1


class StreamState(msgspec.Struct):
    """What a stream holds, as its leader sees it."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0


class Replica(msgspec.Struct):
    """A follower of the stream."""

    name: str = ""
    current: bool = False
    offline: bool = False
    # Nanoseconds since the leader has heard it.
    active: int = 0
    lag: int = 0


class Cluster(msgspec.Struct):
    """Which servers have the stream."""

    name: str = ""
    leader: str = ""
    replicas: list[Replica] = msgspec.field(default_factory=list)


class StreamInfo(msgspec.Struct):
    """A stream's settings, contents and replicas.

    Args:
        config: the settings that are used
        state: contents
        cluster: replicas
        error: why nothing is told
        settings: all of them, as the server names them, for `settings_check.py`
    """

    config: StreamConfig = msgspec.field(default_factory=StreamConfig)
    state: StreamState = msgspec.field(default_factory=StreamState)
    cluster: Cluster = msgspec.field(default_factory=Cluster)
    error: _Error | None = None
    settings: dict[str, Any] = msgspec.field(default_factory=dict)

    def size(self) -> dict[str, int]:
        """How large it is and may be (-1: no limit), and how many servers have all of it."""
        replicas = self.cluster.replicas
        current = sum(each.current and not each.offline for each in replicas)
        return {
            "bytes": self.state.bytes,
            "max_bytes": self.config.max_bytes,
            "records": self.state.messages,
            "replicas": self.config.num_replicas,
            "current_replicas": 1 + current,
        }

    def hears_majority(self, limit_s: float) -> bool:
        """Whether its leader has heard enough replicas lately to be the leader still."""
        replicas = self.cluster.replicas
        limit_ns = limit_s * 1e9
        heard = sum(not each.offline and each.active <= limit_ns for each in replicas)
        # A server without a quorum answers in place of the leader, and names no leader or replicas.
        count = max(self.config.num_replicas, 1 + len(replicas))
        return 2 * (1 + heard) > count and (count == 1 or bool(self.cluster.leader))


class _Settings(msgspec.Struct):
    config: dict[str, Any] = msgspec.field(default_factory=dict)


class _StoredMessage(msgspec.Struct):
    seq: int
    subject: str = ""
    data: bytes = b""  # written in base 64


class _StoredReply(msgspec.Struct):
    message: _StoredMessage | None = None
    error: _Error | None = None


class _Done(msgspec.Struct):
    success: bool = False
    purged: int = 0
    error: _Error | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A message of the stream; `previous` is that before it in the same batch, 0 in front."""

    sequence: int
    previous: int
    raw: bytes


def append_headers(expected: int) -> bytes:
    """Headers of a message that is stored only behind this sequence."""
    return b"Nats-Expected-Last-Sequence: %d\r\n" % expected


def parse_ack(message: Message, stream: str) -> int:
    """The sequence at which a message is now stored.

    Raises:
        JetStreamError: it is not, as far as this answer is about it
    """
    if message.status:
        raise _status_error(message)
    ack = _decode(message, _Ack)
    if ack.error is not None:
        raise _error(ack.error)
    if ack.stream != stream or ack.seq <= 0:
        raise JetStreamError(f"its subject belongs to another stream: {ack.stream!r}")
    return ack.seq


def parse_info(message: Message) -> StreamInfo:
    """What the leader says of its stream.

    Raises:
        JetStreamError: there is no stream, no leader, no JetStream
    """
    if message.status:
        raise _status_error(message)
    info = _decode(message, StreamInfo)
    if info.error is not None:
        raise _error(info.error)
    info.settings = _decode(message, _Settings).config
    return info


def settings_request(settings: Mapping[str, object]) -> bytes:
    """A stream is to be made with these settings, or to get them.

    JetStream takes what is left out for its default.
    """
    return json.encode(settings)


def require_settings(info: StreamInfo, wanted: Mapping[str, object]) -> None:
    """See that a stream was given the settings that were asked for, by the server's answer.

    Raises:
        JetStreamError: it has others
    """
    for name, value in wanted.items():
        given = info.settings.get(name)
        # Servers leave out what is off.
        if given != value and (given is not None or value):
            shown = "no value" if given is None else json.encode(given).decode()
            raise JetStreamError(
                f"the server was asked for {name} = {json.encode(value).decode()},"
                f" and the stream has {shown}"
            )


def batch_request(first: int, count: int, limit_bytes: int, subject: str = "") -> bytes:
    """The messages from a sequence on, of one subject or all: at most so many, about so much."""
    wanted: dict[str, object] = {"seq": first, "batch": count, "max_bytes": limit_bytes}
    if subject:
        wanted["next_by_subj"] = subject
    return json.encode(wanted)


def parse_stored(message: Message) -> Stored | None:
    """A message of a batch; None at its end.

    Raises:
        JetStreamError: this replica has no such message (code 10037), or does not answer
    """
    status = message.status
    if status == END_OF_BATCH:
        return None
    if status == NOT_FOUND:
        raise JetStreamError("this replica has no such message", NO_MESSAGE_FOUND)
    if status:
        raise _status_error(message)
    headers = message.headers()
    try:
        sequence = int(headers["Nats-Sequence"])
        previous = int(headers.get("Nats-Last-Sequence", 0))
    except (KeyError, ValueError):
        raise JetStreamError("a message without its sequence") from None
    return Stored(sequence, previous, message.payload)


def next_request(first: int, subject: str = "") -> bytes:
    """The first message from a sequence on, of one subject or all."""
    return json.encode({"seq": first, "next_by_subj": subject or ">"})


def parse_next(message: Message) -> Stored:
    """The answer of the stream's leader to that.

    Raises:
        JetStreamError: there is no such message (code 10037), or no leader
    """
    if message.status:
        raise _status_error(message)
    reply = _decode(message, _StoredReply)
    if reply.error is not None:
        raise _error(reply.error)
    if reply.message is None:
        raise JetStreamError("an answer without a message")
    return Stored(reply.message.seq, 0, reply.message.data)


def purge_request(subject: str) -> bytes:
    """All messages of a subject are to go."""
    return json.encode({"filter": subject})


def parse_done(message: Message) -> None:
    """Whether something was done.

    Raises:
        JetStreamError: it was not
    """
    if message.status:
        raise _status_error(message)
    done = _decode(message, _Done)
    if done.error is not None:
        raise _error(done.error)
    if not done.success:
        raise JetStreamError("it was not done")


def stream_settings(
    name: str, subject: str, *, replicas: int, max_bytes: int, max_message_bytes: int
) -> dict[str, object]:
    """The settings of a stream as `settings_check.py` wants it: to make one, or to change it."""
    return {
        "name": name,
        "subjects": [subject],
        "num_replicas": replicas,
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "max_age": 0,
        "max_bytes": max_bytes,
        "max_msg_size": max_message_bytes,
        "deny_delete": True,
        "allow_direct": True,
    }


def _decode(message: Message, kind: type[T]) -> T:
    try:
        return json.decode(message.payload, type=kind)
    except (DecodeError, ValidationError) as error:
        raise JetStreamError(f"an answer that is not JetStream's: {error}") from error


def _status_error(message: Message) -> JetStreamError:
    if message.status == NO_RESPONDERS:
        return JetStreamError("nobody answers: the stream has no leader now, or does not exist")
    return JetStreamError(f"{message.status} {message.description}".strip())


def _error(error: _Error) -> JetStreamError:
    return JetStreamError(error.description, error.err_code)
