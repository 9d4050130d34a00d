"""The pages are tested: every setting and argument is documented, every link leads somewhere."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

import click

from tools import write_http_routes
from tools.site import navigation, prepared
from tools.write_configuration import written
from vouchmq.server.broker.features.options import (
    ARGUMENTS,
    OPERATOR_POLICY_KEYS,
    POLICY_KEYS,
    Option,
    Rule,
    argument_first,
    argument_last,
    operator_first,
    smallest,
    smallest_but_for_policies,
    smallest_limit,
    smallest_time,
)
from vouchmq.server.cli.main import program
from vouchmq.server.settings.settings import (
    FOREIGN_VARIABLES,
    environment_name,
    flag_name,
    scalar_fields,
)

PROJECT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = PROJECT / "docs"
CONFIGURATION: Final = DOCS / "reference" / "configuration.md"
PAGES: Final = sorted([*DOCS.rglob("*.md"), *PROJECT.glob("*.md")])
LINK: Final = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
TARGET: Final = re.compile(r"\bmake ([a-z]+(?:-[a-z]+)*)")


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_the_tables_of_settings_are_those_of_the_code() -> None:
    assert written(text(CONFIGURATION)) == text(CONFIGURATION), "run `make docs`"


def test_the_table_of_routes_is_that_of_the_code() -> None:
    page = text(write_http_routes.PAGE)
    assert write_http_routes.written(page) == page, "run `make docs`"


def undocumented_settings(page: str) -> list[str]:
    return [field.name for field in scalar_fields() if f"| `{field.name}` |" not in page]


def test_every_setting_is_documented() -> None:
    assert undocumented_settings(text(CONFIGURATION)) == []
    assert undocumented_settings(text(CONFIGURATION).replace("| `port` |", "")) == ["port"]


def rows_of(page: str, heading: str) -> list[tuple[str, str]]:
    """The rows of the tables in a part of a page, from its heading to the next one."""
    found = page.split(f"{heading}\n", 1)[1].split("\n## ", 1)[0].splitlines()
    cells = [line.strip("| ").split(" | ") for line in found if line.startswith("| ")]
    return [(names, " | ".join(rest)) for names, *rest in cells]


def undocumented_arguments(page: str) -> list[str]:
    """Arguments that no row tells of, with a link to the guide or that they have no effect."""
    rows = rows_of(page, "## Queues")

    def is_told(option: Option) -> bool:
        told = [what for names, what in rows if f"`{option.argument}`" in names]
        if not option.page:
            return any(what.startswith("accepted") for what in told)
        pages = {Path(link[1]).name for what in told for link in LINK.finditer(what)}
        return option.page in pages

    return [option.argument for option in ARGUMENTS if not is_told(option)]


def test_every_argument_is_documented() -> None:
    page = text(DOCS / "reference" / "arguments.md")
    assert undocumented_arguments(page) == []
    assert undocumented_arguments(page.replace("`x-expires`", "")) == ["x-expires"]
    assert "x-expires" in undocumented_arguments(page.replace("/expiry.md)", "/limits.md)"))
    assert undocumented_arguments(page.replace("accepted; filters", "filters")) == [
        "x-stream-filter-size-bytes"
    ]


RULES: Final[dict[Rule, str]] = {
    argument_first: "argument, else policy",
    operator_first: "operator policy, else argument, else policy",
    smallest: "the smallest",
    smallest_limit: "the smallest that is not negative",
    smallest_time: "the smallest above 0",
    smallest_but_for_policies: (
        "the argument, or the larger one of the two policies if that is smaller"
    ),
    argument_last: "operator policy, else policy, else argument",
}


def undocumented_policy_keys(page: str) -> list[str]:
    """Keys of policies that do not stand in the row of what counts where several are given."""
    rows = rows_of(page, "it is decided key by key:")

    def stands(option: Option) -> bool:
        told = [(names, what) for names, what in rows if f"`{option.name}`" in names]
        in_streams = [names for names, _ in told if names.startswith("in streams:")]
        if (option.rules_by_type.get("stream") is not None) is not bool(in_streams):
            return False
        what = [what.split(";")[0] for names, what in told if names not in in_streams]
        if option.types == ("stream",):
            return not what
        return what == [RULES[option.rule] if option.page else "accepted as in RabbitMQ, no effect"]

    return [name for name, option in POLICY_KEYS.items() if not stands(option)]


def operator_keys(page: str) -> set[str]:
    """The keys that the page gives operator policies."""
    [sentence] = re.findall(r"^Operator policies may hold ([^.]*)\.", page, re.MULTILINE)
    return set(re.findall(r"`([^`]+)`", sentence))


def test_every_policy_key_is_documented() -> None:
    page = text(DOCS / "reference" / "policies.md")
    assert undocumented_policy_keys(page) == []
    assert undocumented_policy_keys(page.replace("| the smallest |", "| the largest |")) == [
        *("expires", "message-ttl", "max-length", "max-length-bytes", "delayed-retry-max")
    ]
    assert undocumented_policy_keys(page.replace("`ha-mode`, ", "")) == ["ha-mode"]
    assert undocumented_policy_keys(page.replace("`max-age`, ", "")) == ["max-age"]
    assert operator_keys(page) == set(OPERATOR_POLICY_KEYS)


def lost_links(path: Path, page: str) -> list[str]:
    targets = {match[1] for match in LINK.finditer(page)}
    return sorted(
        f"{path.relative_to(PROJECT)}: {target}"
        for target in targets
        if not (path.parent / target).exists()
    )


def test_links_between_pages_lead_somewhere() -> None:
    assert [lost for path in PAGES for lost in lost_links(path, text(path))] == []
    planted = "[a](index.md) [b](nowhere.md#here)"
    assert lost_links(DOCS / "index.md", planted) == ["docs/index.md: nowhere.md"]


def headings(page: str) -> list[str]:
    """The headings of a page as they are read, in order."""
    found = re.findall(r"^#{1,6} +(.+)$", re.sub(r"^```.*?^```", "", page, flags=re.M | re.S), re.M)
    return [re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading).strip() for heading in found]


def numbered(slugs: Iterable[str], sign: str) -> list[str]:
    """Each slug; one that came before gets a number."""
    seen: Counter[str] = Counter()
    made = []
    for slug in slugs:
        made.append(f"{slug}{sign}{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return made


def on_github(page: str) -> list[str]:
    """The ids of a page's headings on GitHub."""
    slugs = (re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings(page))
    return numbered(slugs, "-")


def in_site(page: str) -> list[str]:
    """The ids of a page's headings in the site that `make docs` builds."""
    words = (unicodedata.normalize("NFKD", each) for each in headings(page))
    plain = (re.sub(r"[^\w\s-]", "", each.encode("ascii", "ignore").decode()) for each in words)
    return numbered((re.sub(r"[-\s]+", "-", each.strip().lower()) for each in plain), "_")


def lost_anchors(path: Path, page: str) -> list[str]:
    """Links to headings that lead nowhere, on GitHub or in the site."""
    lost = []
    for target, anchor in sorted(set(re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page))):
        there = path.parent / target if target else path
        if there.suffix != ".md":
            continue
        linked = page if there == path else text(there)
        if anchor not in on_github(linked) or anchor not in in_site(linked):
            lost.append(f"{path.relative_to(PROJECT)}: {target}#{anchor}")
    return lost


def test_links_to_headings_lead_somewhere_on_github_and_in_the_site() -> None:
    assert [lost for path in PAGES for lost in lost_anchors(path, text(path))] == []
    page = (
        "# A page\n## `x` and [y](z.md)\n## More (M) (+)\n## Two -- three\n## Same\n## Same\n"
        "```\n# No heading\n```\n"
    )
    assert on_github(page) == [*("a-page", "x-and-y", "more-m-", "two----three", "same", "same-1")]
    assert in_site(page) == ["a-page", "x-and-y", "more-m", "two-three", "same", "same_1"]
    links = "[](#a-page) [](#x-and-y) [](#same) [](#more-m) [](#no-heading) [](operate/tls.md#moon)"
    assert lost_anchors(DOCS / "index.md", page + links) == [
        *("docs/index.md: #more-m", "docs/index.md: #no-heading"),
        "docs/index.md: operate/tls.md#moon",
    ]


def unknown_targets(path: Path, page: str) -> list[str]:
    targets = set(re.findall(r"^([a-z-]+):", text(PROJECT / "Makefile"), re.MULTILINE))
    named = {match[1] for line in page.split("`")[1::2] for match in TARGET.finditer(line)}
    return [f"{path.relative_to(PROJECT)}: {name}" for name in sorted(named - targets)]


def test_targets_of_make_that_pages_name_exist() -> None:
    assert [name for path in PAGES for name in unknown_targets(path, text(path))] == []
    planted = "`make test` and `make coffee`"
    assert unknown_targets(DOCS / "index.md", planted) == ["docs/index.md: coffee"]


def test_every_page_can_be_found_from_the_index() -> None:
    linked = {match[1] for match in LINK.finditer(text(DOCS / "index.md"))}
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"index.md"}
    assert not pages - linked


def test_names_in_the_image_and_the_readme_are_settings() -> None:
    known = {environment_name(field.name) for field in scalar_fields()} | FOREIGN_VARIABLES
    for path in (PROJECT / "Dockerfile", PROJECT / "README.md", CONFIGURATION):
        assert set(re.findall(r"\bVOUCHMQ_[A-Z_]+[A-Z]\b", text(path))) <= known
    flags = {flag_name(field.name) for field in scalar_fields()} | {"--config"}
    serve = re.findall(r"vouchmq serve([^`\n]*)", text(PROJECT / "README.md"))
    assert {word for line in serve for word in re.findall(r"--[a-z-]+", line)} <= flags


def test_the_site_leads_where_the_index_does() -> None:
    index = "[a](a.md)\n## Use\n- [b](b.md), [a](a.md)\n### More\n- [c](u/c.md) [d](d.json)"
    nav = navigation(index)
    assert nav == [{"Home": "index.md"}, "a.md", {"Use": ["b.md", {"More": ["u/c.md"]}]}]


def test_links_out_of_the_pages_lead_to_copies_in_the_site() -> None:
    page = "[a](../../bench/README.md#x) [b](tls.md) [c](../nowhere.md)"
    text, outside = prepared(DOCS / "operate" / "store.md", page)
    assert text == "[a](../source/bench/README.md#x) [b](tls.md) [c](../nowhere.md)"
    assert outside == {PROJECT / "bench" / "README.md"}
    text, _ = prepared(PROJECT / "bench" / "README.md", "[a](../docs/operate/tls.md)")
    assert text == "[a](../../operate/tls.md)"


def rule_ids(path: Path, page: str) -> list[str]:
    """The ids of the specification that a page names: its readers do not know them."""
    rules = text(DOCS / "reference" / "behaviour.md")
    families = "|".join(sorted(set(re.findall(r"^(?:\*\*|\| )([A-Z]+)-\d\d", rules, re.M))))
    found = re.findall(rf"\b(?:{families})-\d\d\b|Spec: (?:{families})\b", page)
    return [f"{path.relative_to(PROJECT)}: {rule}" for rule in found]


def test_pages_for_users_name_no_rule_by_its_id() -> None:
    folders = [DOCS / name for name in ("start", "guides", "operate")]
    pages = [PROJECT / "README.md", *(page for folder in folders for page in folder.rglob("*.md"))]
    assert [rule for path in pages for rule in rule_ids(path, text(path))] == []
    planted = "CRC-32 is not one, CONF-07 is. Spec: TTL"
    assert rule_ids(DOCS / "index.md", planted) == [
        *("docs/index.md: CONF-07", "docs/index.md: Spec: TTL")
    ]


def commands(*words: str) -> list[str]:
    """What `vouchmq --help` lists, and below a command its verbs."""
    context = click.Context(program)
    for word in words:
        group = context.command
        assert isinstance(group, click.Group)
        found = group.get_command(context, word)
        assert found is not None
        context = click.Context(found)
    assert isinstance(context.command, click.Group)
    return context.command.list_commands(context)


CONFLICT: Final = re.compile(r"^(<{7}|={7}|>{7}|\|{7})( |$)", re.MULTILINE)


def test_no_page_or_script_has_the_marks_of_a_conflict() -> None:
    assert CONFLICT.search("a\n" + "<" * 7 + " HEAD\nb\n")
    scripts = (PROJECT / name for name in ("Makefile", "Dockerfile", ".ci/run"))
    # A copy of the checkout need not have all of them.
    files = (*PAGES, *(path for path in scripts if path.exists()))
    marked = [path for path in files if CONFLICT.search(text(path))]
    assert marked == []


def test_every_command_is_documented() -> None:
    page = text(DOCS / "reference" / "cli.md")
    tops = commands()
    assert {"serve", "list", "audit"} <= set(tops)
    assert [name for name in tops if f"| `vouchmq {name}" not in page] == []
    verbs = [f"vouchmq {top} {verb}" for top in ("store", "ledger") for verb in commands(top)]
    assert len(verbs) > 5
    assert [verb for verb in verbs if f"`{verb}" not in page] == []
    (row,) = [line for line in page.splitlines() if line.startswith("| `vouchmq list")]
    assert re.findall(r"`([a-z-]+)`", row) == commands("list")
