"""Rules of the sections judged here that no client can test from outside, and why.

The sections from AUTH to METRIC (users, permissions, TLS, policies, HTTP, metrics) are not listed:
their cases come with those parts.
"""

from __future__ import annotations

from typing import Final

UNTESTABLE: Final[dict[str, str]] = {
    "GEN-01": "explains the marks; the cases carry them",
    "GEN-02": "explains words",
    "GEN-07": "about the broker's clocks; what clients see of it is in TTL and DURABLE-20",
    "GEN-09": "a table of settings; what tune and the size limit show is in CONN-30 and FRAME-38",
    "CONN-05": "about the log",
    "CONN-13": "needs a broker with other settings",
    "CONN-15": "names shown in logs, HTTP and metrics only",
    "CONN-18": "needs TLS with client certificates",
    "CONN-40": "needs a broker with a connection limit",
    "CONN-42": "needs a vhost with a connection limit",
    "CONN-43": "needs a user with a connection limit",
    "CONN-44": "needs a user without permissions",
    "CONN-45": "needs a vhost that failed to start",
    "CONN-50": "said again, method by method, by CONN-51",
    "CONN-56": "needs an operator who closes the connection",
    "CONN-57": "needs a shutdown that the suite can watch",
    "FRAME-12": "frame_max 0 can be negotiated only with a broker that offers it",
    "FRAME-18": "what a snippet shows is free text",
    "FRAME-52": "shown by QUEUE-23",
    "CHAN-04": "needs a user or node with a channel limit",
    "CHAN-21": "about what the broker never does",
    "EXCH-14": "needs a vhost with an exchange limit",
    "EXCH-23": "shown by the bindings case of DURABLE-01",
    "EXCH-33": "shown by EXCH-40",
    "EXCH-34": "shown by EXCH-50",
    "EXCH-63": "needs a policy",
    "QUEUE-09": "needs a vhost with a queue limit",
    "QUEUE-24": "needs a policy",
    "QUEUE-25": "needs a broker with other settings",
    "QUEUE-54": "validated by its own section (DUP)",
    "PUB-24": "needs a deduplicating queue (DUP)",
    "CONF-09": "which confirms share a frame is the broker's choice; CONF-08 judges the result",
    "CONF-12": "needs a disk that fails",
    "CONF-15": "needs 2^63 messages",
    "TX-08": "a crash in the middle of a commit cannot be timed from outside",
    "ACK-08": "needs a crash between an ack and its sync",
    "ACK-14": "needs a delivery limit (REDELIVER)",
    "QOS-11": "needs a broker with other settings",
    "CONS-07": "needs a broker with other settings",
    "TTL-08": "needs a policy that changes (POLICY)",
    "LEN-25": "needs policies (POLICY)",
    "LEN-26": "needs a policy that changes (POLICY)",
    "DURABLE-11": "needs a broker with other settings",
    "LIMIT-01": "needs to fill memory or a disk",
    "LIMIT-12": "needs an alarm that clears",
    "LIMIT-15": "needs a disk that fails",
    "LIMIT-16": "about the log",
}
