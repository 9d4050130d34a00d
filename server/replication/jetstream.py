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
    """The settings of a stream that matter here; see `settings_check.py`."""

    name: str = ""
    subjects: list[str] = msgspec.field(default_factory=list)
    storage: str = ""
    retention: str = ""
    discard: str = ""
    num_replicas: int = 0
    max_age: int = 0
    max_msgs: int = -1
    max_bytes: int = -1
    max_msgs_per_subject: int = -1
    max_msg_size: int = -1
    deny_delete: bool = False
    deny_purge: bool = False
    allow_direct: bool = False
    allow_rollup_hdrs: bool = False
    allow_msg_ttl: bool = False
    sealed: bool = False
    no_ack: bool = False
    mirror: dict[str, Any] | None = None
    sources: list[dict[str, Any]] | None = None
    republish: dict[str, Any] | None = None
    subject_transform: dict[str, Any] | None = None
    # "async" acknowledges before it writes.
    persist_mode: str = ""


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
    """A stream's settings, contents and replicas."""

    config: StreamConfig = msgspec.field(default_factory=StreamConfig)
    state: StreamState = msgspec.field(default_factory=StreamState)
    cluster: Cluster = msgspec.field(default_factory=Cluster)
    error: _Error | None = None

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
    return info


def update_request(info: Message, changes: Mapping[str, object]) -> bytes:
    """All settings that a stream has, by an answer that `parse_info` takes, but for `changes`.

    JetStream takes what is left out for its default.
    """
    return json.encode({**_decode(info, _Settings).config, **changes})


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


def create_request(
    name: str,
    subject: str,
    *,
    replicas: int,
    max_bytes: int,
    max_message_bytes: int,
    changes: Mapping[str, object] | None = None,
) -> bytes:
    """A stream as `settings_check.py` wants it, but for `changes`."""
    settings = stream_settings(
        name, subject, replicas=replicas, max_bytes=max_bytes, max_message_bytes=max_message_bytes
    )
    return json.encode({**settings, **(changes or {})})


def stream_settings(
    name: str, subject: str, *, replicas: int, max_bytes: int, max_message_bytes: int
) -> dict[str, object]:
    """The settings of a stream as `settings_check.py` wants it."""
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
