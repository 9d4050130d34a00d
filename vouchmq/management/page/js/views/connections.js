// Connections, and one of them.

import { action } from "../access.js";
import { get, path, remove } from "../api.js";
import { chart } from "../charts.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { at, bytes, count, duration, moment, plain, since } from "../format.js";
import { SAMPLES, rates } from "../history.js";
import { connectionLink, ofClient } from "../links.js";
import { facts, listBar, listQuery, panel, table, tag, told } from "../table.js";
import { channelTable } from "./channels.js";
import { state } from "./queues.js";

const perSecond = (value) => `${bytes(Math.round(value ?? 0))}/s`;

export function load({ query, vhost }, signal) {
  return get(vhost ? `${path("vhosts", vhost)}/connections` : "connections", listQuery(query), signal);
}

export function render(context) {
  const { data, query, go, vhost, vhosts } = context;
  return [
    h("div", { class: "title" }, h("h1", {}, "Connections")),
    listBar({ query, go, page: data, noun: "connections" }),
    table({
      label: "Connections", rows: data.items, query, go, key: (row) => row.name, empty: query.filter ? "No connection has a name like this." : "No client is connected.",
      columns: [
        { label: "Name", sort: "name", class: "line", cell: (row) => [connectionLink(row.name, row.user_provided_name || ofClient(row.name)), row.user_provided_name && h("div", { class: "muted sub", title: row.name }, ofClient(row.name))] },
        !vhost && vhosts?.length > 1 && { label: "Virtual host", sort: "vhost", wide: true, cell: (row) => row.vhost },
        { label: "User", sort: "user", cell: (row) => row.user },
        { label: "State", sort: "state", cell: (row) => state(row.state) },
        { label: "TLS", sort: "ssl", wide: true, cell: (row) => (row.ssl ? tag("TLS", "good") : "–") },
        { label: "Client", wide: true, class: "long", cell: (row) => [row.client_properties?.product, row.client_properties?.version].filter(Boolean).join(" ") || "–" },
        { label: "Channels", sort: "channels", num: true, wide: true, cell: (row) => count(row.channels) },
        { label: "From client", sort: "recv_oct_details.rate", num: true, cell: (row) => perSecond(at(row, "recv_oct_details.rate")) },
        { label: "To client", sort: "send_oct_details.rate", num: true, cell: (row) => perSecond(at(row, "send_oct_details.rate")) },
        { label: "Open for", sort: "connected_at", num: true, wide: true, cell: (row) => since(row.connected_at) },
      ].filter(Boolean),
    }),
  ];
}

/** One connection. */
export const one = {
  async load({ params: { name } }, signal) {
    const [connection, channels] = await Promise.all([get(path("connections", name), SAMPLES, signal), get(`${path("connections", name)}/channels`, {}, signal)]);
    return { connection, channels };
  },

  render(context) {
    const { data: { connection, channels }, params: { name } } = context;
    const id = `connection ${name}`;
    const properties = Object.entries(connection.client_properties ?? {}).filter(([each]) => each !== "capabilities");
    return [
      h("div", { class: "title" }, h("p", { class: "crumbs" }, h("a", { href: "#/connections" }, "Connections")), h("h1", {}, connection.user_provided_name || name), state(connection.state), h("span", { class: "grow" }),
        action("Close connection", () => closeConnection(context), { tone: "danger", needs: ["DELETE", "/connections/{name}"] })),
      h("div", { class: "columns" },
        panel(null, chart("traffic", "Traffic", [
          { label: "from client", tone: "publish", points: rates(id, connection, "recv_oct") },
          { label: "to client", tone: "deliver", points: rates(id, connection, "send_oct") },
        ], perSecond)),
        panel("Properties", facts([
          ["Name", h("code", {}, name)], ["User", connection.user], ["Virtual host", connection.vhost], ["Open since", `${moment(connection.connected_at)}, ${since(connection.connected_at)}`],
          ["Peer", h("code", {}, `${connection.peer_host}:${connection.peer_port}`)], ["Authentication", connection.auth_mechanism ?? "–"], ["Heartbeat", connection.timeout ? duration(connection.timeout * 1000) : "off"],
          ["Largest frame", bytes(connection.frame_max)], ["Most channels", count(connection.channel_max)], ["Held unacknowledged", told(connection.unacknowledged_bytes, bytes)], ["TLS", connection.ssl ? `${connection.ssl_protocol} ${connection.ssl_cipher ?? ""}` : "no"],
        ])),
        panel("Client", properties.length ? facts(properties.map(([key, value]) => [key, plain(value)])) : h("p", { class: "muted" }, "The client has told nothing."))),
      panel(`Channels (${channels.length})`, channelTable(channels, { query: {} })),
    ];
  },
};

function closeConnection({ params: { name }, data: { connection }, leave }) {
  return ask({
    title: "Close this connection?",
    text: h("p", {}, "The client of ", h("b", {}, connection.user), " is told to disconnect. Its unacknowledged messages return to their queues. Most clients connect again."),
    fields: [{ name: "reason", label: "Reason", value: "Closed by an operator", hint: "The client is told." }],
    submit: "Close connection", tone: "danger",
    act: async ({ reason }) => {
      await remove(path("connections", name), reason ? { "X-Reason": reason } : {});
      leave("#/connections", "Connection closed.");
    },
  });
}
