"""What several tests of the engine start with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.servers import NatsServer, running_server


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[NatsServer]:
    """One server; what it has in place of two others is said to be unsafe."""
    with running_server(tmp_path / "engine") as made:
        yield made
