"""How pytest finds our plugin, in a checkout that may be installed or not."""

from __future__ import annotations

from importlib.metadata import entry_points


def plugin_flags() -> tuple[str, ...]:
    """Flags for pytest; none where it finds the plugin by its entry point."""
    is_installed = any(each.name == "vouchmq" for each in entry_points(group="pytest11"))
    return () if is_installed else ("-p", "vouchmq.testing.plugin")
