"""Write the table of docs/reference/http.md from the routes of the HTTP API.

The page has marks around what is made here; everything else in it is written by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from vouchmq.management.api.call import ADMINISTRATORS, MONITORS, POLICYMAKERS
from vouchmq.management.resources.table import ROUTES

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "http.md"
BEGIN: Final = "<!-- made from the code: routes -->"
END: Final = "<!-- end -->"
TAGS: Final = {
    ADMINISTRATORS: "administrator",
    MONITORS: "monitoring",
    POLICYMAKERS: "policymaker",
}


def routes_table() -> str:
    """Every route, in the order of the table."""
    rows = ["| path | methods | | tag |", "|---|---|---|---|"]
    for route in ROUTES:
        methods = ", ".join(route.methods)
        paged = " ·" if route.is_list else ""
        tag = TAGS.get(route.tags, "any")
        if route.changing is not None:
            tag += f"; {TAGS[route.changing]} to change"
        rows.append(f"| `{route.path}` | {methods} | {route.summary}{paged} | {tag} |")
    return "\n".join(rows)


def written(page: str) -> str:
    """The page with its table made anew.

    Raises:
        ValueError: a mark is missing.
    """
    before, found, rest = page.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"docs/reference/http.md: no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{routes_table()}\n{END}{after}"


def main() -> int:
    """Write the routes into the reference page."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
