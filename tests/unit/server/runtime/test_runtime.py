"""What the runtime hands on to the parts that it builds."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from vouchmq.server.runtime.context import Limits
from vouchmq.server.runtime.runtime import limits_of
from vouchmq.server.settings.settings import Settings

OTHER_NAMES = {
    **{f"reject_{what}": f"compat_reject_{what}" for what in ("immediate", "prefetch_size")},
    **{f"reject_{what}": f"compat_reject_{what}" for what in ("recover", "flow")},
    "blocked_log_after_s": "blocked_connection_log_after_s",
}


@pytest.mark.parametrize("name", [each.name for each in fields(Limits)])
def test_each_limit_is_that_of_its_setting(name: str) -> None:
    setting = OTHER_NAMES.get(name, name)
    usual = getattr(Settings(), setting)
    other = not usual if isinstance(usual, bool) else usual + 1
    given: dict[str, Any] = {setting: other}
    assert getattr(limits_of(Settings(**given)), name) == other
    assert getattr(limits_of(Settings()), name) == usual
