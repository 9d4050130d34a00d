"""The two files that prepare brokers say the same, but for what only one of them has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import vouchmq.conformance

PREPARED = Path(vouchmq.conformance.__path__[0]) / "prepared"


def entries(name: str) -> dict[str, list[dict[str, Any]]]:
    """The entries of a file, by their kind."""
    content: dict[str, list[dict[str, Any]]] = json.loads((PREPARED / name).read_text())
    return content


def test_ours_holds_what_the_other_holds() -> None:
    ours, theirs = entries("vouchmq.json"), entries("definitions.json")
    assert ours.keys() == theirs.keys()
    for kind, wanted in theirs.items():
        assert [one for one in wanted if one not in ours[kind]] == [], kind


def test_what_ours_has_beside_it_is_known() -> None:
    ours, theirs = entries("vouchmq.json"), entries("definitions.json")
    more = {kind: [one for one in ours[kind] if one not in theirs[kind]] for kind in ours}
    assert [user["name"] for user in more["users"]] == ["guest"]
    assert [policy["definition"] for policy in more["policies"]] == [{"delayed-message": True}]
    assert [limit["value"] for limit in more["parameters"]] == [{"max-exchanges": 8}]
    assert [vhost["name"] for vhost in more["vhosts"]] == ["/", "conformance-exchanges"]
    assert {one["user"] for one in more["permissions"]} == {"guest"}
    assert more["topic_permissions"] == []
