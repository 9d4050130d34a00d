"""Whether the servers and the stream are set so that the log keeps what it acknowledges.

Each fault is one line that says what is set, why that cannot be, and what to change. An engine with
a fault is not used: it would lose acknowledged records silently, take no more of them although
there is room, or refuse to give up what is not needed any more.

Of the stream every setting is looked at, and one that this program does not know has to be off:
servers get new limits and features with each version, and nobody can say what those do to a log.
What is harmless was looked up for all settings of nats-server 2.15.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from vouchmq.server.replication.jetstream import StreamInfo
    from vouchmq.server.replication.monitoring import ServerReport

# Earlier ones have lost acknowledged messages in ways that are repaired since.
LEAST_VERSION: Final = (2, 14)
LEAST_REPLICAS: Final = 3
VERSION: Final = re.compile(r"v?(\d+)\.(\d+)")
# So much of a value that nobody expects is shown.
SHOWN_CHARACTERS: Final = 60


class _Setting(NamedTuple):
    """What a setting may be.

    Args:
        absent: what a server means that does not tell it
        is_harmless: whether a value is
        text: what is wrong with another one, which is put in for `{}`
    """

    absent: object
    is_harmless: Callable[[object], bool]
    text: str


def _off(text: str) -> _Setting:
    return _Setting(False, lambda value: value is False, text)


def _on(text: str) -> _Setting:
    return _Setting(False, lambda value: value is True, text)


def _one_of(text: str, *values: str) -> _Setting:
    return _Setting("", lambda value: value in values, text)


def _no_limit(text: str) -> _Setting:
    return _Setting(-1, lambda value: isinstance(value, int) and value <= 0, text)


def _none(text: str) -> _Setting:
    return _Setting(None, lambda value: not value, text)


# Whatever these are, the log keeps what it acknowledges: names and notes, the places of replicas,
# what is said by `max_bytes` itself, and what is about consumers, mirrors and message ids, of which
# the log has none.
_ANY: Final = frozenset(
    {
        *("name", "description", "metadata", "placement", "max_bytes", "first_seq"),
        *("max_consumers", "consumer_limits", "mirror_direct", "duplicate_window"),
    }
)
_SETTINGS: Final[Mapping[str, _Setting]] = {
    "num_replicas": _Setting(
        0,
        lambda value: isinstance(value, int) and value >= LEAST_REPLICAS,
        f"has {{}} of {LEAST_REPLICAS} replicas that it needs: set its replicas to"
        f" {LEAST_REPLICAS}",
    ),
    "storage": _one_of("is kept in {}: its storage must be file", "file"),
    "retention": _one_of(
        "has the retention {}, which removes records: it must be limits", "limits"
    ),
    "discard": _one_of("discards {} records when it is full: its discard must be new", "new"),
    "discard_new_per_subject": _off(
        "refuses records of a subject that has many: its discard_new_per_subject must be false"
    ),
    "max_age": _no_limit("removes records by age: its max_age must be 0"),
    "max_msgs": _no_limit("takes no more than {} records: its max_msgs must be -1"),
    "max_msgs_per_subject": _no_limit(
        "keeps only the newest records of a subject: its max_msgs_per_subject must be -1"
    ),
    "deny_delete": _on("lets records be deleted one by one: its deny_delete must be true"),
    "deny_purge": _off("keeps what is not needed any more: its deny_purge must be false"),
    "allow_rollup_hdrs": _off(
        "lets a message remove all others: its allow_rollup_hdrs must be false"
    ),
    "allow_msg_ttl": _off("lets messages expire: its allow_msg_ttl must be false"),
    "subject_delete_marker_ttl": _no_limit(
        "writes markers where messages expire: its subject_delete_marker_ttl must be 0"
    ),
    "allow_msg_counter": _off("takes messages for counters: its allow_msg_counter must be false"),
    "allow_msg_schedules": _off(
        "appends messages by itself, at times: its allow_msg_schedules must be false"
    ),
    "allow_atomic": _off("takes batches, which no log has: its allow_atomic must be false"),
    "allow_batched": _off("takes batches, which no log has: its allow_batched must be false"),
    "sealed": _off("is sealed and takes no records: make another one"),
    "no_ack": _off("acknowledges nothing: its no_ack must be false"),
    "persist_mode": _one_of(
        "acknowledges before it writes: its persist_mode must be default", "", "default"
    ),
    "compression": _one_of(
        "is compressed with {}, which was not tried: its compression must be none or s2",
        *("", "none", "s2"),
    ),
    "allow_direct": _on("is read from its leader only: its allow_direct must be true"),
    "mirror": _none("is filled from another stream: it must have no mirror"),
    "sources": _none("is filled from other streams: it must have no sources"),
    "subject_transform": _none("changes subjects: it must have no subject_transform"),
    "republish": _none("sends each record to other subjects too: it must have no republish"),
    "template_owner": _none("belongs to a template: it must have no template_owner"),
}


def find_faults(
    info: StreamInfo, subject: str, reports: Mapping[str, ServerReport | str], record_bytes: int
) -> list[str]:
    """Everything that is wrong; empty when the engine may be used.

    Args:
        info: of the stream
        subject: the pattern of all subjects of the log
        reports: of each monitoring address, or why there is none
        record_bytes: the largest message that the log will have, with its headers
    """
    return [
        *server_faults(reports, record_bytes),
        *unseen_servers(info, reports.values()),
        *stream_faults(info.settings, subject, record_bytes),
    ]


def server_faults(reports: Mapping[str, ServerReport | str], record_bytes: int) -> list[str]:
    """What is wrong with servers."""
    faults: list[str] = []
    for address, report in reports.items():
        if isinstance(report, str):
            faults.append(f"the server monitored at {address} cannot be checked: {report}")
            continue
        name = f"server {report.server_name}"
        version = VERSION.match(report.version)
        if version is None or (int(version[1]), int(version[2])) < LEAST_VERSION:
            least = ".".join(map(str, LEAST_VERSION))
            faults.append(
                f"{name} is nats-server {report.version}: install version {least} or later"
            )
        elif not report.has_jetstream:
            faults.append(f"{name} has no JetStream: add a jetstream block to its configuration")
        elif not report.syncs_always:
            faults.append(
                f"{name} acknowledges before it syncs, and loses that in a power cut:"
                " set jetstream { sync_interval: always } and restart it"
            )
        if report.max_payload < record_bytes:
            faults.append(
                f"{name} takes messages of up to {report.max_payload} bytes:"
                f" set max_payload to {record_bytes} or more"
            )
    return faults


def unseen_servers(info: StreamInfo, reports: Iterable[ServerReport | str]) -> list[str]:
    """Servers that hold the stream, and whose settings nobody has seen."""
    seen = {each.server_name for each in reports if not isinstance(each, str)}
    holders = {info.cluster.leader, *(each.name for each in info.cluster.replicas)} - {""}
    return [
        f"server {name} holds the stream, and its settings are not known:"
        " name its monitoring address too"
        for name in sorted(holders - seen)
    ]


def stream_faults(settings: Mapping[str, object], subject: str, record_bytes: int) -> list[str]:
    """What is wrong with the stream, by all its settings as a server names them."""
    name = f"stream {settings.get('name', '')}"
    faults = setting_faults(settings, subject, record_bytes)
    return [f"{name} {text}" for text in faults.values()]


def setting_faults(
    settings: Mapping[str, object], subject: str, record_bytes: int
) -> dict[str, str]:
    """What is wrong with each setting that is not harmless, by its name."""
    expected = {
        **_SETTINGS,
        "subjects": _Setting(
            [],
            lambda value: value == [subject],
            f"has the subjects {{}}: it must have {subject} only",
        ),
        "max_msg_size": _Setting(
            -1,
            lambda value: isinstance(value, int) and (value < 0 or value >= record_bytes),
            "takes records of up to {} bytes: its max_msg_size must be -1, or"
            f" {record_bytes} or more",
        ),
    }
    faults: dict[str, str] = {}
    for name, setting in expected.items():
        value = settings.get(name, setting.absent)
        if not setting.is_harmless(value):
            faults[name] = setting.text.format(_shown(value))
    for name, value in settings.items():
        if name not in _ANY and name not in expected and value:
            faults[name] = (
                f"has the setting {_shown(name)} = {_shown(value)}, which this version does not"
                " know: turn it off"
            )
    return faults


def _shown(value: object) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        text = ", ".join(value) or "none"
    else:
        text = value if isinstance(value, str) else json.encode(value).decode()
    text = "".join(each if each.isprintable() else "?" for each in text)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
