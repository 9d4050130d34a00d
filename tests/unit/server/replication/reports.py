"""What three well configured servers say of themselves and of their stream."""

from __future__ import annotations

import msgspec

from vouchmq.server.replication.jetstream import Cluster, Replica, StreamConfig, StreamInfo
from vouchmq.server.replication.monitoring import ServerReport, parse_report

SUBJECT = "vq.LOG.>"
RECORD_BYTES = 600_000
# As nats-server 2.15.1 answers for a stream that `vouchmq ha create` has made.
GOOD: dict[str, object] = {
    "name": "LOG",
    "subjects": [SUBJECT],
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "new",
    "storage": "file",
    "num_replicas": 3,
    "duplicate_window": 120_000_000_000,
    "compression": "none",
    "allow_direct": True,
    "mirror_direct": False,
    "sealed": False,
    "deny_delete": True,
    "deny_purge": False,
    "allow_rollup_hdrs": False,
    "consumer_limits": {},
    "allow_msg_ttl": False,
    "metadata": {"_nats.level": "5", "_nats.req.level": "0", "_nats.ver": "2.15.1"},
}


def report(name: str, version: str = "2.15.1", sync: str = '"sync_always":true,') -> ServerReport:
    """As recorded from a server, without what nobody reads."""
    return parse_report(
        b'{"server_id":"NAPZ","server_name":"%b","version":"%b","proto":1,"max_payload":1048576,'
        b'"jetstream":{"config":{"max_memory":18957382656,"store_dir":"/data",'
        b'"sync_interval":120000000000,%b"strict":true},"stats":{"memory":0}}}'
        % (name.encode(), version.encode(), sync.encode())
    )


REPORTS: dict[str, ServerReport | str] = {
    f"http://{name}:8222": report(name) for name in ("n1", "n2", "n3")
}


def info(settings: dict[str, object] = GOOD) -> StreamInfo:
    replicas = [Replica(name="n2", current=True), Replica(name="n3", current=True)]
    return StreamInfo(
        config=msgspec.convert(settings, StreamConfig),
        settings=settings,
        cluster=Cluster(leader="n1", replicas=replicas),
    )
