"""Write the tables of docs/reference/configuration.md from the settings themselves.

The page has marks around what is made here; everything else in it is written by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from msgspec import structs

from vouchmq.server.settings import settings as s
from vouchmq.server.settings.accounts import UserAccount, VHostAccount
from vouchmq.server.settings.validation import choices_of, plain_type, range_of

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "configuration.md"
BEGIN: Final = "<!-- made from the code: {} -->"
END: Final = "<!-- end -->"


def settings_table() -> str:
    """Every setting that has a flag, in the order of the class."""
    rows = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    for field in s.scalar_fields():
        default = s.show(field.default) or "empty"
        rows.append(
            f"| `{field.name}` | {default} | {allowed(field.name)} | {s.doc_of(field.name)} |"
        )
    return "\n".join(rows)


def allowed(name: str) -> str:
    """What a setting takes, in words."""
    kind = s.type_of(name)
    if choices := choices_of(kind):
        return ", ".join(choices)
    if plain_type(kind) is bool:
        return "on, off"
    return range_of(kind, "{} … {}", "≥ {}") or ("names" if s.is_list(kind) else "text")


def keys_table(kind: type[UserAccount] | type[VHostAccount]) -> str:
    """The keys of `[[users]]` or `[[vhosts]]`."""
    rows = ["| key | default |", "|---|---|"]
    for field in structs.fields(kind):
        shown = "required" if field.required else s.show(field.default) or "empty"
        if field.default is None:
            shown = "as it is"
        rows.append(f"| `{field.name}` | {shown} |")
    return "\n".join(rows)


def written(page: str) -> str:
    """The page with its tables made anew.

    Raises:
        ValueError: a mark is missing.
    """
    made = {
        "settings": settings_table(),
        "users": keys_table(UserAccount),
        "vhosts": keys_table(VHostAccount),
    }
    for name, table in made.items():
        begin = BEGIN.format(name)
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(END)
        if not found or not closed:
            raise ValueError(f"docs/reference/configuration.md: no {begin} … {END}")
        page = f"{before}{begin}\n{table}\n{END}{after}"
    return page


def main() -> int:
    """Write the settings into the reference page."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
