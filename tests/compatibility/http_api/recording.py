"""RabbitMQ's answers as they were recorded: one request a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tests.compatibility.http_api.replay import Answers

FILE: Final = Path(__file__).with_name("rabbitmq-3.10.8.jsonl")


def read(path: Path = FILE) -> Answers:
    """The answers, by their requests."""
    return dict(map(json.loads, path.read_text().splitlines()))


def write(answers: Answers, path: Path = FILE) -> None:
    """Keep answers."""
    lines = (json.dumps(entry, ensure_ascii=False) for entry in answers.items())
    path.write_text("".join(f"{line}\n" for line in lines))
