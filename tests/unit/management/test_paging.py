"""Lists of the HTTP API: names, order, pages, columns (HTTP-06)."""

from __future__ import annotations

import pytest

from vouchmq.management.api.errors import ApiError
from vouchmq.management.api.paging import Page, projected

ITEMS = [{"name": name, "n": n, "a": {"b": -n}} for n, name in enumerate(("one", "Two", "three"))]


def names(found: object) -> list[str]:
    assert isinstance(found, list)
    return [each["name"] for each in found]


def test_without_parameters_it_is_the_list() -> None:
    assert Page({}).of(ITEMS) == ITEMS


def test_names_are_found_in_any_case() -> None:
    assert names(Page({"name": "t"}).of(ITEMS)) == ["Two", "three"]
    assert names(Page({"name": "^t.o$", "use_regex": "true"}).of(ITEMS)) == ["Two"]
    assert names(Page({"name": "^t", "use_regex": "false"}).of(ITEMS)) == []


@pytest.mark.parametrize(
    "pattern, reason",
    [("(", "name is not a regular expression"), ("^(t|tt)+$", "takes too long")],
)
def test_a_pattern_that_is_none_or_takes_too_long(pattern: str, reason: str) -> None:
    items = [{"name": "t" * 200 + "!"}]
    with pytest.raises(ApiError) as refused:
        Page({"name": pattern, "use_regex": "true"}).of(items)
    assert refused.value.status == 400
    assert reason in refused.value.reason


def test_sorting() -> None:
    assert names(Page({"sort": "name"}).of(ITEMS)) == ["Two", "one", "three"]
    assert names(Page({"sort": "a.b"}).of(ITEMS)) == ["three", "Two", "one"]
    backwards = {"sort": "n", "sort_reverse": "true"}
    assert names(Page(backwards).of(ITEMS)) == ["three", "Two", "one"]
    # What is not there comes first, whatever kind the others are of.
    assert names(Page({"sort": "x"}).of([*ITEMS, {"name": "x", "x": 1}])) == [
        *("one", "Two", "three", "x")
    ]


def test_pages() -> None:
    page = Page({"page": "2", "page_size": "2"}).of(ITEMS)
    assert page == {
        "filtered_count": 3,
        "item_count": 1,
        "items": ITEMS[2:],
        "page": 2,
        "page_count": 2,
        "page_size": 2,
        "total_count": 3,
    }
    only = Page({"page": "1", "name": "one"}).of(ITEMS)
    assert isinstance(only, dict)
    assert (only["filtered_count"], only["total_count"], only["page_size"]) == (1, 3, 100)
    empty = Page({"page": "1"}).of([])
    assert isinstance(empty, dict)
    assert (empty["items"], empty["page_count"]) == ([], 0)


@pytest.mark.parametrize(
    "query",
    [
        *({"page": "0"}, {"page": "-1"}, {"page": ""}, {"page": "9" * 12}),
        *({"page": "1", "page_size": "501"}, {"page": "1", "page_size": "0"}),
    ],
)
def test_pages_that_make_no_sense(query: dict[str, str]) -> None:
    with pytest.raises(ApiError) as refused:
        Page(query)
    assert (refused.value.status, refused.value.error) == (400, "invalid_pagination_parameters")
    size = query.get("page_size", "undefined")
    assert refused.value.reason == (
        f"Invalid pagination parameters: page number {query['page']}, page size {size}"
    )


def test_a_page_behind_the_last_one() -> None:
    with pytest.raises(ApiError) as refused:
        Page({"page": "3", "page_size": "2"}).of(ITEMS)
    assert (refused.value.status, refused.value.error) == (400, "page_out_of_range")


def test_columns() -> None:
    assert projected(ITEMS[1], {"columns": "name,a.b,x,a.c"}) == {"name": "Two", "a": {"b": -1}}
    assert projected(ITEMS[1], {}) == ITEMS[1]
    assert Page({"columns": "n"}).of(ITEMS) == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_what_is_costly_is_added_to_what_is_shown_only() -> None:
    added: list[int] = []

    def finished(items: list[dict[str, object]]) -> list[dict[str, object]]:
        added.append(len(items))
        return [{**each, "more": True} for each in items]

    Page({"page": "1", "page_size": "1"}).of(ITEMS, finished)
    # Who sorts may sort by it.
    Page({"page": "1", "page_size": "1", "sort": "more"}).of(ITEMS, finished)
    assert added == [1, 3]


@pytest.mark.parametrize("query", [{"page": "x"}, {"page": "1", "page_size": "1.5"}])
def test_pages_that_are_no_numbers(query: dict[str, str]) -> None:
    with pytest.raises(ApiError) as refused:
        Page(query)
    assert (refused.value.status, refused.value.error) == (400, "bad_request")
