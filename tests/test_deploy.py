"""The files in deploy/ name settings and commands that exist, and fit the image."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from vouchmq.server.settings.settings import (
    FOREIGN_VARIABLES,
    default_of,
    environment_name,
    flag_name,
    scalar_fields,
)

PROJECT: Final = Path(__file__).resolve().parents[1]
DEPLOY: Final = PROJECT / "deploy"
FILES: Final = [
    *sorted(path for path in DEPLOY.rglob("*") if path.is_file()),
    *sorted((PROJECT / "docs" / "operate").glob("*.md")),
]
STOP_TIMES: Final = {
    "systemd/vouchmq.service": r"^TimeoutStopSec=(\d+)$",
    "compose/compose.yaml": r"^ *stop_grace_period: (\d+)s$",
    "compose/replicated.yaml": r"^ *stop_grace_period: (\d+)s$",
    "kubernetes/vouchmq.yaml": r"^ *terminationGracePeriodSeconds: (\d+)$",
    "kubernetes/replicated.yaml": r"^ *terminationGracePeriodSeconds: (\d+)$",
}


def unknown_names(text: str) -> set[str]:
    """Variables of the environment and flags of `serve` that no setting has."""
    names = {field.name for field in scalar_fields()}
    variables = {environment_name(name) for name in names} | FOREIGN_VARIABLES
    flags = {flag_name(name) for name in names} | {"--config"}
    named = set(re.findall(r"\bVOUCHMQ_[A-Z_]+[A-Z]\b", text)) - variables
    for line in re.findall(r"vouchmq serve([^`\n]*)", text):
        named |= set(re.findall(r"--[a-z-]+", line)) - flags
    return named


def test_settings_that_are_named_exist() -> None:
    assert {path.name: names for path in FILES if (names := unknown_names(path.read_text()))} == {}
    planted = "VOUCHMQ_PORT VOUCHMQ_COFFEE vouchmq serve --port 1 --sugar 2"
    assert unknown_names(planted) == {"VOUCHMQ_COFFEE", "--sugar"}


def test_a_stop_is_given_more_time_than_the_broker_takes() -> None:
    """Clients and the journal have the time each."""
    needed_s = 2 * float(str(default_of("shutdown_timeout_s")))
    for name, pattern in STOP_TIMES.items():
        given = re.findall(pattern, (DEPLOY / name).read_text(), re.MULTILINE)
        assert given, name
        assert all(float(each) > 2 * needed_s for each in given), name


def test_user_and_volume_are_those_of_the_image() -> None:
    image = (PROJECT / "Dockerfile").read_text()
    [user] = re.findall(r"^USER (\d+):\1$", image, re.MULTILINE)
    [volume] = re.findall(r"^VOLUME (\S+)$", image, re.MULTILINE)
    stateful = (DEPLOY / "kubernetes" / "vouchmq.yaml").read_text()
    assert set(re.findall(r"(?:runAsUser|runAsGroup|fsGroup): (\d+)", stateful)) == {user}
    assert re.findall(r"mountPath: ([^}\s]+)", stateful) == [volume]
    assert f"- data:{volume}\n" in (DEPLOY / "compose" / "compose.yaml").read_text()


def test_there_is_one_replica() -> None:
    """There is no clustering: a second one would have other messages."""
    stateful = (DEPLOY / "kubernetes" / "vouchmq.yaml").read_text()
    assert re.findall(r"^ *replicas: (\d+)$", stateful, re.MULTILINE) == ["1"]
