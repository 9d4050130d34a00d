// All exchanges, as a table or as the topology of a virtual host.

import { action } from "../access.js";
import { get, path, put } from "../api.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { at, rate } from "../format.js";
import { exchangeLink, toExchange, topologyLink } from "../links.js";
import { listBar, listQuery, panel, table, tag } from "../table.js";
import { topology } from "../topology.js";

export const TYPES = ["direct", "fanout", "topic", "headers"];

export async function load({ query, vhost, vhosts }, signal) {
  if (query.view === "topology") {
    const shown = vhost || vhosts[0] || "/";
    const bindings = await get(path("bindings", shown), {}, signal);
    return { shown, bindings: bindings.filter((each) => each.source !== "") };
  }
  return get(vhost ? path("exchanges", vhost) : "exchanges", listQuery(query), signal);
}

export function render(context) {
  const { data, query, go, vhost, vhosts } = context;
  const isDrawn = query.view === "topology";
  const heading = h("div", { class: "title" }, h("h1", {}, "Exchanges"),
    h("div", { class: "segments", role: "group", "aria-label": "Show as" },
      h("button", { type: "button", "aria-pressed": String(!isDrawn), onclick: () => go({}) }, "Table"),
      h("button", { type: "button", "aria-pressed": String(isDrawn), onclick: () => go({ view: "topology" }) }, "Topology")),
    h("span", { class: "grow" }), action("Add exchange", () => addExchange(context), { tone: "primary", needs: ["PUT", "/exchanges/{vhost}/{name}"] }));
  if (isDrawn) {
    return data.bindings ? [heading, h("p", { class: "muted" }, "Virtual host ", h("b", {}, data.shown), ": exchanges are round, queues are square; bindings of the default exchange are left out."), panel(null, topology(data.bindings, topologyLink(data.shown)))] : [heading];
  }
  if (!data.items) {
    return [heading];
  }
  return [
    heading,
    listBar({ query, go, page: data, noun: "exchanges" }),
    table({
      label: "Exchanges", rows: data.items, query, go, key: (row) => `${row.vhost} ${row.name}`, empty: "No exchange has a name like this.",
      columns: [
        { label: "Name", sort: "name", class: "long", cell: (row) => exchangeLink(row.vhost, row.name) },
        !vhost && vhosts?.length > 1 && { label: "Virtual host", sort: "vhost", cell: (row) => row.vhost },
        { label: "Type", sort: "type", wide: true, cell: (row) => row.type },
        { label: "Features", wide: true, cell: (row) => marks(row) },
        { label: "In", num: true, sort: "message_stats.publish_in_details.rate", title: "Messages published to it", cell: (row) => rate(at(row, "message_stats.publish_in_details.rate") ?? 0) },
        { label: "Out", num: true, sort: "message_stats.publish_out_details.rate", title: "Copies of them in queues", cell: (row) => rate(at(row, "message_stats.publish_out_details.rate") ?? 0) },
      ].filter(Boolean),
    }),
  ];
}

/** What an exchange is, as short marks. */
export function marks(row) {
  return h("span", { class: "tags" }, !row.durable && tag("transient"), row.auto_delete && tag("auto-delete"), row.internal && tag("internal", "", "Clients cannot publish to it"),
    Object.entries(row.arguments ?? {}).map(([name, value]) => tag(name.replace(/^x-/, ""), "", `${name}: ${value}`)),
    row.policy && tag(row.policy, "policy", `policy ${row.policy}`));
}

function addExchange({ perform, vhost, vhosts }) {
  return ask({
    title: "Add an exchange",
    fields: [
      { name: "vhost", label: "Virtual host", type: "select", options: vhosts, value: vhost || "/" },
      { name: "name", label: "Name", required: true },
      { name: "type", label: "Type", type: "select", options: TYPES },
      { name: "durable", label: "Durable", type: "check", value: true },
      { name: "auto_delete", label: "Auto-delete", type: "check", hint: "It is deleted with its last binding." },
      { name: "internal", label: "Internal", type: "check", hint: "Clients cannot publish to it; other exchanges can lead to it." },
      { name: "arguments", label: "Arguments", type: "table", names: ["alternate-exchange"] },
    ],
    submit: "Add exchange",
    act: async ({ vhost: where, name, ...rest }) => {
      await perform(() => put(path("exchanges", where, name), rest), `Exchange ${name} added.`);
      location.hash = toExchange(where, name);
    },
  });
}
