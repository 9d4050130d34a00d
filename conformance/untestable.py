"""Rules that no AMQP client can test from outside, and why.

Together with the cases they are all rules of docs/behaviour.md; a test of the suite counts them.
"""

from __future__ import annotations

from typing import Final

_ACTIVEMQ: Final = "what an application does with the pieces; each piece has its own rule"
_HTTP: Final = "not AMQP"
_METRIC: Final = "not AMQP"

UNTESTABLE: Final[dict[str, str]] = {
    "GEN-01": "explains the marks; the cases carry them",
    "GEN-02": "explains words",
    "GEN-07": "about the broker's clocks; what clients see of it is in TTL and DURABLE-20",
    "GEN-09": "a table of settings; what tune and the size limit show is in CONN-30 and FRAME-38",
    "CONN-05": "about the log",
    "CONN-13": "needs a broker with other settings",
    "CONN-15": "names shown in logs, HTTP and metrics only",
    "CONN-40": "needs a broker with a connection limit",
    "CONN-45": "needs a vhost that failed to start",
    "CONN-50": "said again, method by method, by CONN-51",
    "CONN-57": "needs a shutdown that the suite can watch",
    "FRAME-12": "frame_max 0 can be negotiated only with a broker that offers it",
    "FRAME-18": "what a snippet shows is free text",
    "FRAME-52": "shown by QUEUE-23",
    "CHAN-21": "about what the broker never does",
    "EXCH-23": "shown by the bindings case of DURABLE-01",
    "EXCH-33": "shown by EXCH-40",
    "EXCH-34": "shown by EXCH-50",
    "QUEUE-25": "needs a broker with other settings",
    "QUEUE-54": "validated by its own section (DUP)",
    "CONF-09": "which confirms share a frame is the broker's choice; CONF-08 judges the result",
    "CONF-12": "needs a disk that fails",
    "CONF-15": "needs 2^63 messages",
    "TX-08": "a crash in the middle of a commit cannot be timed from outside",
    "ACK-08": "needs a crash between an ack and its sync",
    "QOS-11": "needs a broker with other settings",
    "CONS-07": "needs a broker with other settings",
    "DURABLE-11": "needs a broker with other settings",
    "LIMIT-01": "needs to fill memory or a disk",
    "LIMIT-15": "needs a disk that fails",
    "LIMIT-16": "about the log",
    "DELAY-21": "needs a broker with other settings",
    "REDELIVER-50": "about the client kit, see its tests",
    "REDELIVER-51": "about the client kit, see its tests",
    "DUP-15": "about memory",
    "STREAM-03": "needs a power cut between a confirm and its sync",
    "STREAM-25": "names what is out of scope",
    "AUTH-08": "needs a client on another machine",
    "AUTH-09": "about metrics, and a thousand failed logins",
    "AUTH-10": "would lock out the user whom the other cases log in as",
    "VHOST-03": "shown over HTTP only",
    "TLS-04": "needs a certificate that is replaced",
    "TLS-05": "shown over HTTP only",
    "POLICY-07": "validation over HTTP",
    "POLICY-08": "validation over HTTP",
    "POLICY-09": "shown over HTTP only",
    "DURABLE-13": "needs a crash between an ack and its sync",
    "DURABLE-14": "needs a damaged data directory",
    "DURABLE-15": "needs a crash during recovery or compaction",
    "DURABLE-16": "needs a campaign of crashes",
    "DURABLE-17": "needs a power cut",
    "DURABLE-18": "about the data directory",
    "DURABLE-19": "needs a million messages and a clock at the broker's start",
    "DURABLE-21": "needs a disk that fails",
    "DURABLE-27": "needs a data directory restored from a backup",
    "LIMIT-14": "shown over HTTP and in metrics only",
    "LIMIT-20": "back-pressure is to be invisible but for the state shown over HTTP",
    "LIMIT-21": "about memory; order and semantics are judged by all other cases",
    "LIMIT-22": "needs to use up the broker's file descriptors",
    "LIMIT-23": "needs to know what one client costs the others: a benchmark",
    "LIMIT-25": "names the limits of CONN-40, CONN-42, CONN-43, CHAN-04, CONS-07, QUEUE-09 …",
    **{f"REDELIVER-{number}": _ACTIVEMQ for number in (*range(30, 50), 53, 54)},
    **{f"HTTP-{number:02}": _HTTP for number in (*range(1, 9), *range(10, 34), *range(40, 44))},
    **{f"METRIC-{number:02}": _METRIC for number in range(1, 10)},
}
