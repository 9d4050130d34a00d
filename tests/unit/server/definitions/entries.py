"""Objects of definitions files."""

from __future__ import annotations

QUEUE = {"vhost": "/", "name": "q", "durable": True, "auto_delete": False, "arguments": {}}


POLICY = {"vhost": "/", "name": "p", "pattern": "^q", "definition": {"max-length": 1}}


BINDING = {
    "vhost": "/",
    "source": "x",
    "destination": "q",
    "destination_type": "queue",
    "routing_key": "",
    "arguments": {},
}
