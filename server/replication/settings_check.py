"""Whether the servers and the stream are set so that the log keeps what it acknowledges.

Each fault is one line that says what is set, why that cannot be, and what to change. An engine with
a fault is not used: every one of these settings loses acknowledged records silently, or refuses to
give up what is not needed any more.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vouchmq.server.replication.jetstream import StreamConfig, StreamInfo
    from vouchmq.server.replication.monitoring import ServerReport

# Earlier ones have lost acknowledged messages in ways that are repaired since.
LEAST_VERSION: Final = (2, 14)
LEAST_REPLICAS: Final = 3
VERSION: Final = re.compile(r"v?(\d+)\.(\d+)")


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
        *stream_faults(info.config, subject, record_bytes),
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


def stream_faults(config: StreamConfig, subject: str, record_bytes: int) -> list[str]:
    """What is wrong with the stream."""
    name = f"stream {config.name}"
    checks = (
        (
            config.num_replicas >= LEAST_REPLICAS,
            f"has {config.num_replicas} of {LEAST_REPLICAS} replicas that it needs:"
            f" set its replicas to {LEAST_REPLICAS}",
        ),
        (config.storage == "file", f"is kept in {config.storage}: its storage must be file"),
        (
            config.retention == "limits",
            f"has the retention {config.retention}, which removes records: it must be limits",
        ),
        (
            config.discard == "new",
            f"discards {config.discard} records when it is full: its discard must be new",
        ),
        (not config.max_age, "removes records by age: its max_age must be 0"),
        (
            config.max_msgs_per_subject <= 0,
            "keeps only the newest records of a subject: its max_msgs_per_subject must be -1",
        ),
        (config.deny_delete, "lets records be deleted one by one: its deny_delete must be true"),
        (
            not config.deny_purge,
            "keeps what is not needed any more: its deny_purge must be false",
        ),
        (
            not config.allow_rollup_hdrs,
            "lets a message remove all others: its allow_rollup_hdrs must be false",
        ),
        (not config.allow_msg_ttl, "lets messages expire: its allow_msg_ttl must be false"),
        (not config.sealed, "is sealed and takes no records: make another one"),
        (not config.no_ack, "acknowledges nothing: its no_ack must be false"),
        (
            config.persist_mode in ("", "default"),
            "acknowledges before it writes: its persist_mode must be default",
        ),
        (config.allow_direct, "is read from its leader only: its allow_direct must be true"),
        (
            config.max_msg_size < 0 or config.max_msg_size >= record_bytes,
            f"takes records of up to {config.max_msg_size} bytes:"
            f" its max_msg_size must be -1, or {record_bytes} or more",
        ),
        (
            config.subjects == [subject],
            f"has the subjects {', '.join(config.subjects) or 'none'}: it must have {subject} only",
        ),
        (
            not (config.mirror or config.sources),
            "is filled from other streams: it must have no mirror and no sources",
        ),
        (
            not config.subject_transform,
            "changes subjects: it must have no subject_transform",
        ),
    )
    return [f"{name} {text}" for holds, text in checks if not holds]
