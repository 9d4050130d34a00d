// Tables: columns that can be sorted, a filter and pages. Sorting, filtering and paging are done by
// the server; what is chosen stands in the address, so that a link or the back button restores it.

import { h } from "./dom.js";
import { count } from "./format.js";

export const PAGE_SIZES = [25, 50, 100, 250, 500];

/** The API's parameters of what the address asks for. */
export function listQuery(query, sort = "name") {
  return {
    page: query.page ?? 1,
    page_size: query.size ?? 100,
    sort: query.sort ?? sort,
    sort_reverse: query.desc ? "true" : undefined,
    name: query.filter,
    use_regex: query.regex ? "true" : undefined,
  };
}

/**
 * A table.
 * @param columns - {label, cell(row), sort, num, wide, title}; `sort` is the API's field, `wide` ones
 *   are left out on a phone
 * @param key - what tells rows apart
 */
export function table({ label, columns, rows, key, query, go, empty, sort = "name" }) {
  if (rows.length === 0) {
    return h("div", { class: "empty" }, empty ?? "Nothing here.");
  }
  return h("div", { class: "table-wrap", tabindex: 0, role: "region", "aria-label": label },
    h("table", {},
      h("caption", { class: "visually-hidden" }, label),
      h("thead", {}, h("tr", {}, columns.map((column) => headCell(column, query, go, sort)))),
      h("tbody", {}, rows.map((row, index) =>
        h("tr", { key: key ? key(row) : index }, columns.map((column, at) => {
          const kind = [column.num ? "num" : "", column.wide ? "wide" : "", column.class ?? ""].join(" ").trim();
          return at === 0 ? h("th", { scope: "row", class: kind || undefined }, column.cell(row)) : h("td", { class: kind || undefined }, column.cell(row));
        }))))));
}

function headCell(column, query, go, sort) {
  const kind = [column.num ? "num" : "", column.wide ? "wide" : ""].join(" ").trim() || undefined;
  if (!column.sort || !go) {
    return h("th", { scope: "col", class: kind, title: column.title }, column.label);
  }
  const isSorted = (query.sort ?? sort) === column.sort;
  const isDown = isSorted && Boolean(query.desc);
  const choose = () => go({ ...query, page: undefined, sort: column.sort, desc: (isSorted ? !isDown : column.num) ? 1 : undefined });
  return h("th", { scope: "col", class: kind, "aria-sort": isSorted ? (isDown ? "descending" : "ascending") : undefined },
    h("button", { type: "button", class: "sort", title: column.title, onclick: choose }, column.label,
      h("span", { class: "arrow", "aria-hidden": "true" }, isSorted ? (isDown ? "▼" : "▲") : "")));
}

/** The line above a table: filter, number of rows, pages. */
export function listBar({ query, go, page, noun, extra }) {
  let timer = 0;
  const typed = (event) => {
    clearTimeout(timer);
    const text = event.target.value;
    timer = setTimeout(() => go({ ...query, page: undefined, filter: text || undefined }), 250);
  };
  return h("div", { class: "list-bar" },
    h("label", { class: "filter" }, h("span", { class: "visually-hidden" }, `Filter ${noun}`),
      h("input", { type: "search", id: "filter", placeholder: `Filter ${noun}`, value: query.filter ?? "", autocomplete: "off", spellcheck: "false", oninput: typed })),
    h("label", { class: "check" }, h("input", { type: "checkbox", checked: Boolean(query.regex), onchange: (event) => go({ ...query, page: undefined, regex: event.target.checked ? 1 : undefined }) }), "Regular expression"),
    h("span", { class: "grow" }),
    extra,
    pager({ query, go, page, noun }));
}

/** Which rows are shown, and the way to the others. */
export function pager({ query, go, page, noun }) {
  if (!page) {
    return null;
  }
  const first = page.item_count ? (page.page - 1) * page.page_size + 1 : 0;
  const last = first ? first + page.item_count - 1 : 0;
  const turn = (to) => go({ ...query, page: to > 1 ? to : undefined });
  const isFiltered = page.filtered_count !== page.total_count;
  return h("div", { class: "pager" },
    h("span", { class: "muted" }, `${count(first)}–${count(last)} of ${count(page.filtered_count)}`, isFiltered ? ` (${count(page.total_count)} in all)` : ""),
    h("button", { type: "button", class: "small", disabled: page.page <= 1, "aria-label": "Previous page", onclick: () => turn(page.page - 1) }, "‹"),
    h("button", { type: "button", class: "small", disabled: page.page >= page.page_count, "aria-label": "Next page", onclick: () => turn(page.page + 1) }, "›"),
    h("label", {}, h("span", { class: "visually-hidden" }, `Number of ${noun} on a page`),
      h("select", { value: String(query.size ?? 100), onchange: (event) => go({ ...query, page: undefined, size: event.target.value === "100" ? undefined : event.target.value }) },
        PAGE_SIZES.map((size) => h("option", { value: String(size) }, `${size} rows`)))));
}

/** Names and values, in two columns; of what the API does not tell, nothing. */
export function facts(rows) {
  return h("dl", { class: "facts" }, rows.filter((row) => row && row[1] !== undefined && row[1] !== null).map(([name, value]) => h("div", { key: name }, h("dt", {}, name), h("dd", {}, value))));
}

/** A value as text, or nothing if the API does not tell it. */
export function told(value, show) {
  return value === undefined || value === null ? undefined : show(value);
}

/** A framed part of a view. */
export function panel(title, ...content) {
  return h("section", { class: "panel", "aria-label": typeof title === "string" ? title : undefined },
    title && h("h2", {}, title), content);
}

/** A short mark such as `durable`. */
export function tag(text, tone = "", title = undefined) {
  return h("span", { class: `tag ${tone}`, title }, text);
}

/** A field table as a list. */
export function fields(values) {
  const entries = Object.entries(values ?? {});
  return entries.length === 0 ? h("span", { class: "muted" }, "none")
    : h("ul", { class: "fields" }, entries.map(([name, value]) => h("li", {}, h("span", { class: "muted" }, `${name} `), h("code", {}, typeof value === "string" ? value : JSON.stringify(value)))));
}
