"""A few rounds of the campaign that kills queries; all of them with `--campaign`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline import source_campaign as campaign
from tests.pipeline.source_campaign import History

FEW = {
    "queue+seq": [("source", "acking"), ("broker", ""), ("source", "logged")],
    "spool+seq": [("source", "spooled"), ("broker", ""), ("source", "spooling")],
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "mode", ["queue+seq", pytest.param("spool+seq", marks=pytest.mark.campaign)]
)
def test_a_few_rounds(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "plan", lambda *_: FEW[mode])
    history = History(mode, "vouchmq", seed=1)
    history.run(tmp_path, len(FEW[mode]))
    assert history.result["rounds"] == len(FEW[mode])
    assert campaign.verdict(history.result) == []


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", list(campaign.MODES))
def test_twenty_rounds(mode: str, tmp_path: Path) -> None:
    history = History(mode, "vouchmq", seed=1)
    history.run(tmp_path, 20)
    assert campaign.verdict(history.result) == []


@pytest.mark.campaign
@pytest.mark.referee
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["queue", "spool", "spool+messageId"])
def test_rounds_against_the_referee(mode: str, tmp_path: Path) -> None:
    history = History(mode, "rabbitmq", seed=1)
    history.run(tmp_path, 8)
    assert campaign.verdict(history.result) == []


def test_a_harness_that_cannot_find_anything_is_none() -> None:
    """Each kind of damage is seen by the judge, and only where it is none of the promises."""
    clean = {"mode": "spool+seq", "lost": 0, "never_published": 0, "left_in_queue": 0, "twice": 0}
    assert campaign.verdict(clean) == []
    for name in ("lost", "never_published", "left_in_queue", "twice"):
        assert campaign.verdict(clean | {name: 1}) == [name]
    assert campaign.verdict(clean | {"mode": "queue", "twice": 5}) == []


def test_only_files_of_the_sinks_log_count(tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()

    def entries(*names: str) -> str:
        lines = [f'{{"path":"file://{tmp_path}/{name}","action":"add"}}' for name in names]
        return "\n".join(["v1", *lines])

    for number in range(12):
        (log / f"{number}").write_text(entries(f"part-{number}"))
    (log / "9").unlink()
    (log / "9.compact").write_text(entries(*[f"part-{number}" for number in range(10)]))
    (tmp_path / "part-99").write_text("of a batch that was not committed")
    names = [path.name for path in campaign.committed_files(tmp_path)]
    assert names == [f"part-{number}" for number in range(12)]
