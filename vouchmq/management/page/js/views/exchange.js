// One exchange: where its messages come from and go to, its bindings, publishing to it.

import { action, whyNot } from "../access.js";
import { get, path, post, remove } from "../api.js";
import { chart } from "../charts.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { exchangeName, rate } from "../format.js";
import { SAMPLES, rates } from "../history.js";
import { exchangeLink, queueLink, topologyLink } from "../links.js";
import { facts, fields, panel, table } from "../table.js";
import { topology } from "../topology.js";
import { marks } from "./exchanges.js";
import { publishForm } from "./publish.js";

const MOST = 500;

export async function load({ params: { vhost, name } }, signal) {
  const where = path("exchanges", vhost, name);
  const [exchange, outgoing, incoming] = await Promise.all([
    get(where, SAMPLES, signal), get(`${where}/bindings/source`, {}, signal), get(`${where}/bindings/destination`, {}, signal),
  ]);
  return { exchange, outgoing, incoming };
}

export function render(context) {
  const { data: { exchange, outgoing, incoming }, params: { vhost, name }, perform } = context;
  const isDefault = exchange.name === "";
  const isFixed = isDefault || exchange.name.startsWith("amq.");
  const id = `exchange ${vhost} ${name}`;
  const shown = outgoing.slice(0, MOST);
  return [
    h("div", { class: "title" }, h("p", { class: "crumbs" }, h("a", { href: "#/exchanges" }, "Exchanges")), h("h1", {}, exchangeName(exchange.name)), marks(exchange), h("span", { class: "grow" }),
      action("Add binding", () => addBinding(context), { needs: ["POST", "/bindings/{vhost}/e/{source}/q/{queue}"], why: isDefault ? "Queues are bound to the default exchange by their names." : undefined }),
      action("Delete", () => deleteExchange(context), { tone: "danger", needs: ["DELETE", "/exchanges/{vhost}/{name}"], why: isFixed ? "This exchange is always there." : undefined })),
    h("div", { class: "columns" },
      panel(null, chart("exchange", "Messages", [
        { label: "in", tone: "publish", points: rates(id, exchange, "message_stats.publish_in") },
        { label: "out", tone: "deliver", points: rates(id, exchange, "message_stats.publish_out") },
      ], rate)),
      panel("Properties", facts([["Type", exchange.type], ["Virtual host", vhost], ["Policy", exchange.policy || "–"], ["Arguments", fields(exchange.arguments)], ["Declared by", exchange.user_who_performed_action || "–"]]))),
    !isDefault && panel("Topology", topology([...incoming, ...outgoing].slice(0, 200), topologyLink(vhost), `e:${exchange.name}`)),
    panel(`Bindings from it (${outgoing.length})`, bindingTable(shown, vhost, perform, "From"), outgoing.length > MOST && h("p", { class: "muted" }, `The first ${MOST} are shown.`)),
    incoming.length > 0 && panel(`Bindings to it (${incoming.length})`, bindingTable(incoming.slice(0, MOST), vhost, perform, "To")),
    panel("Publish a message", publishForm(context, { vhost, exchange: name, why: exchange.internal ? "This exchange is internal." : whyNot("POST", "/exchanges/{vhost}/{name}/publish") })),
  ];
}

/** Bindings, each with a button that removes it; `left` is the end that is left out, because it is the same for all. */
export function bindingTable(bindings, vhost, perform, left = "") {
  return table({
    label: "Bindings", rows: bindings, query: {}, key: (row) => `${row.source} ${row.destination_type} ${row.destination} ${row.properties_key}`, empty: "No bindings.",
    columns: [
      left !== "From" && { label: "From", class: "long", cell: (row) => exchangeLink(vhost, row.source) },
      left !== "To" && { label: "To", class: "long", cell: (row) => (row.destination_type === "queue" ? queueLink(vhost, row.destination) : exchangeLink(vhost, row.destination)) },
      { label: "Routing key", class: "long", cell: (row) => (row.routing_key ? h("code", {}, row.routing_key) : h("span", { class: "muted" }, "(empty)")) },
      { label: "Arguments", wide: true, cell: (row) => (Object.keys(row.arguments).length ? fields(row.arguments) : "") },
      { label: h("span", { class: "visually-hidden" }, "Remove"), class: "acts", cell: (row) => (row.source === "" ? "" : action("Remove", () => removeBinding(row, vhost, perform), { small: true, needs: ["DELETE", "/bindings/{vhost}/e/{source}/q/{queue}/{key}"] })) },
    ].filter(Boolean),
  });
}

function removeBinding(row, vhost, perform) {
  const kind = row.destination_type === "queue" ? "q" : "e";
  return ask({
    title: "Remove this binding?",
    text: h("p", {}, "Messages to ", h("b", {}, row.source), row.routing_key ? [" with routing key ", h("code", {}, row.routing_key)] : "", " will not reach ", h("b", {}, row.destination), " any more."),
    submit: "Remove binding", tone: "danger",
    act: () => perform(() => remove(path("bindings", vhost, "e", row.source, kind, row.destination, row.properties_key)), "Binding removed."),
  });
}

function addBinding({ params: { vhost, name }, perform }) {
  return ask({
    title: `Bind to ${name}`,
    fields: [
      { name: "kind", label: "To", type: "select", options: [["q", "a queue"], ["e", "an exchange"]] },
      { name: "destination", label: "Name", required: true },
      { name: "routing_key", label: "Routing key" },
      { name: "arguments", label: "Arguments", type: "table" },
    ],
    submit: "Add binding",
    act: ({ kind, destination, routing_key: key, arguments: given }) => perform(() => post(path("bindings", vhost, "e", name, kind, destination), { routing_key: key, arguments: given }), "Binding added."),
  });
}

function deleteExchange({ params: { vhost, name }, leave }) {
  return ask({
    title: `Delete exchange ${name}?`, text: h("p", {}, "Its bindings are deleted too. Publishing to it will close the publisher's channel."),
    submit: "Delete exchange", tone: "danger", typed: name,
    act: async () => {
      await remove(path("exchanges", vhost, name));
      leave("#/exchanges", `Exchange ${name} deleted.`);
    },
  });
}
