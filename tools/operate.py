"""Do for a VouchMQ what rabbitmqctl does for a RabbitMQ: by a definitions file, and by its socket.

    operate.py DIR -- set_policy -p / --apply-to queues name '^pattern$' '{"max-length": 2}'

`DIR` holds `definitions.json`, which the broker was started with, its process id in `pid` and its
log from level `info` on in `output.log` (tools/with_broker.py makes all three). The file is changed
and the broker asked to read it again, which its log then says. A file takes nothing away: that is
asked for over the control socket of the data directory, `data`. Exit codes are rabbitmqctl's: 64
for words that are not known here.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import hashlib
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

EXIT_UNKNOWN = 64
PROJECT = Path(__file__).resolve().parents[1]
# The broker reads the file in its own time, and logs what came of it.
LOADED = "definitions.loaded"
REFUSED = "definitions.rejected"
LIMIT_S = 60.0
POLL_S = 0.02

Definitions = dict[str, Any]


def _put(entries: list[Any], entry: dict[str, Any], *names: str) -> None:
    """Replace the entry of the same names, or add one."""
    entries[:] = [one for one in entries if any(one[name] != entry[name] for name in names)]
    entries.append(entry)


def set_policy(definitions: Definitions, words: Sequence[str]) -> None:
    """`set_policy [-p VHOST] [--priority N] [--apply-to WHAT] NAME PATTERN DEFINITION`."""
    parser = argparse.ArgumentParser("set_policy")
    parser.add_argument("-p", dest="vhost", default="/")
    parser.add_argument("--priority", type=int, default=0)
    parser.add_argument("--apply-to", default="all")
    parser.add_argument("name")
    parser.add_argument("pattern")
    parser.add_argument("definition", type=json.loads)
    given = parser.parse_args(words)
    entry = {
        "vhost": given.vhost,
        "name": given.name,
        "pattern": given.pattern,
        "apply-to": given.apply_to,
        "priority": given.priority,
        "definition": given.definition,
    }
    _put(definitions["policies"], entry, "vhost", "name")


def clear_policy(definitions: Definitions, words: Sequence[str]) -> None:
    """`clear_policy [-p VHOST] NAME`."""
    parser = argparse.ArgumentParser("clear_policy")
    parser.add_argument("-p", dest="vhost", default="/")
    parser.add_argument("name")
    given = parser.parse_args(words)
    key = (given.vhost, given.name)
    definitions["policies"] = [
        one for one in definitions["policies"] if (one["vhost"], one["name"]) != key
    ]


def add_user(definitions: Definitions, words: Sequence[str]) -> None:
    """`add_user NAME PASSWORD`."""
    name, password = words
    salt = secrets.token_bytes(4)
    digest = hashlib.sha256(salt + password.encode()).digest()
    entry = {
        "name": name,
        "password_hash": base64.b64encode(salt + digest).decode(),
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": [],
    }
    _put(definitions["users"], entry, "name")


def set_permissions(definitions: Definitions, words: Sequence[str]) -> None:
    """`set_permissions [-p VHOST] USER CONFIGURE WRITE READ`."""
    parser = argparse.ArgumentParser("set_permissions")
    parser.add_argument("-p", dest="vhost", default="/")
    for name in ("user", "configure", "write", "read"):
        parser.add_argument(name)
    _put(definitions["permissions"], vars(parser.parse_args(words)), "user", "vhost")


def add_vhost(definitions: Definitions, words: Sequence[str]) -> None:
    """`add_vhost NAME`."""
    (name,) = words
    _put(definitions["vhosts"], {"name": name}, "name")


VERBS: dict[str, Callable[[Definitions, Sequence[str]], None]] = {
    "set_policy": set_policy,
    "clear_policy": clear_policy,
    "add_user": add_user,
    "set_permissions": set_permissions,
    "add_vhost": add_vhost,
}


# What is deleted, and under what key others name it.
DELETED = {"delete_user": ("user", "users"), "delete_vhost": ("vhost", "vhosts")}


def delete(directory: Path, kind: str, listed: str, name: str) -> int:
    """Delete a user or virtual host, and what the file says of it; 1 if the broker refuses."""
    file = directory / "definitions.json"
    definitions = json.loads(file.read_text())
    for key, entries in definitions.items():
        if isinstance(entries, list):
            about = "name" if key == listed else kind
            definitions[key] = [one for one in entries if one.get(about) != name]
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(definitions))
    fresh.replace(file)
    # This is run as a script, wherever whoever runs it is.
    sys.path.insert(0, str(PROJECT))
    control = import_module("vouchmq.server.edge.control.client")
    answer = control.ask(directory / "data", f"delete {kind}", name=name)
    if not answer["ok"]:
        print(answer["error"], file=sys.stderr)
    return 0 if answer["ok"] else 1


def operate(directory: Path, words: Sequence[str]) -> int:
    """Change the file, have it read, and see whether it was; the exit code."""
    verb = VERBS.get(words[0]) if words else None
    if words and words[0] in DELETED:
        with (directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return delete(directory, *DELETED[words[0]], words[1])
    if verb is None:
        print(f"not known here: {' '.join(words[:1])}", file=sys.stderr)
        return EXIT_UNKNOWN
    with (directory / "lock").open("w") as lock:
        # Several may want something at once, and a change is a reading and a writing.
        fcntl.flock(lock, fcntl.LOCK_EX)
        return change(directory, verb, words[1:])


def change(
    directory: Path, verb: Callable[[Definitions, Sequence[str]], None], words: Sequence[str]
) -> int:
    """Change the definitions file and have the broker load it; 1 if its log shows a refusal."""
    file, log = directory / "definitions.json", directory / "output.log"
    seen = log.stat().st_size
    definitions = json.loads(file.read_text())
    verb(definitions, words)
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(definitions))
    fresh.replace(file)
    os.kill(int((directory / "pid").read_text()), signal.SIGHUP)
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        with log.open() as stream:
            stream.seek(seen)
            told = [line for line in stream if line.endswith("\n")]
        refusals = [line for line in told if REFUSED in line]
        for line in refusals:
            print(line, file=sys.stderr)
        if refusals:
            return 1
        if any(LOADED in line for line in told):
            return 0
        time.sleep(POLL_S)
    print(f"the broker has not loaded {file} within {LIMIT_S:.0f} s", file=sys.stderr)
    return 1


def main() -> int:
    """Make the changes that the command line asks for; the exit code."""
    given, words = sys.argv[1:], []
    if "--" in given:
        at = given.index("--")
        given, words = given[:at], given[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    return operate(parser.parse_args(given).directory, words)


if __name__ == "__main__":
    sys.exit(main())
