"""What three well configured servers say of themselves and of their stream."""

from __future__ import annotations

from vouchmq.server.replication.jetstream import Cluster, Replica, StreamConfig, StreamInfo
from vouchmq.server.replication.monitoring import ServerReport, parse_report

SUBJECT = "vq.LOG.>"
RECORD_BYTES = 600_000
GOOD = StreamConfig(
    name="LOG",
    subjects=[SUBJECT],
    storage="file",
    retention="limits",
    discard="new",
    num_replicas=3,
    deny_delete=True,
    allow_direct=True,
)


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


def info(config: StreamConfig = GOOD) -> StreamInfo:
    replicas = [Replica(name="n2", current=True), Replica(name="n3", current=True)]
    return StreamInfo(config=config, cluster=Cluster(leader="n1", replicas=replicas))
