// Channels, and one of them.

import { action } from "../access.js";
import { get, path, remove } from "../api.js";
import { chart } from "../charts.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { at, count, rate } from "../format.js";
import { SAMPLES, rates } from "../history.js";
import { channelLink, connectionLink } from "../links.js";
import { facts, listBar, listQuery, panel, table, tag } from "../table.js";
import { consumerTable } from "./consumers.js";
import { state } from "./queues.js";

export function load({ query, vhost }, signal) {
  return get(vhost ? `${path("vhosts", vhost)}/channels` : "channels", listQuery(query), signal);
}

export function render(context) {
  const { data, query, go } = context;
  return [
    h("div", { class: "title" }, h("h1", {}, "Channels")),
    listBar({ query, go, page: data, noun: "channels" }),
    channelTable(data.items, context),
  ];
}

/** A table of channels. */
export function channelTable(rows, { query, go, vhost, vhosts }) {
  return table({
    label: "Channels", rows, query, go, key: (row) => row.name, empty: "There are no channels.",
    columns: [
      { label: "Name", sort: "name", class: "line", cell: (row) => channelLink(row.name) },
      !vhost && vhosts?.length > 1 && { label: "Virtual host", sort: "vhost", wide: true, cell: (row) => row.vhost },
      { label: "User", sort: "user", wide: true, cell: (row) => row.user },
      { label: "Mode", wide: true, cell: (row) => mode(row) },
      { label: "State", sort: "state", wide: true, cell: (row) => state(row.state) },
      { label: "Consumers", sort: "consumer_count", num: true, wide: true, cell: (row) => count(row.consumer_count) },
      { label: "Prefetch", sort: "prefetch_count", num: true, cell: (row) => row.prefetch_count || row.global_prefetch_count || "–" },
      { label: "Unacked", sort: "messages_unacknowledged", num: true, cell: (row) => count(row.messages_unacknowledged) },
      { label: "Unconfirmed", sort: "messages_unconfirmed", num: true, wide: true, title: "Published, and not confirmed yet", cell: (row) => count(row.messages_unconfirmed) },
      { label: "Publish", sort: "message_stats.publish_details.rate", num: true, cell: (row) => rate(at(row, "message_stats.publish_details.rate") ?? 0) },
      { label: "Deliver", sort: "message_stats.deliver_get_details.rate", num: true, cell: (row) => rate(at(row, "message_stats.deliver_get_details.rate") ?? 0) },
      { label: "Ack", sort: "message_stats.ack_details.rate", num: true, wide: true, cell: (row) => rate(at(row, "message_stats.ack_details.rate") ?? 0) },
    ].filter(Boolean),
  });
}

function mode(row) {
  return h("span", { class: "tags" }, row.confirm && tag("confirms"), row.transactional && tag("transactional"));
}

/** One channel. */
export const one = {
  load({ params: { name } }, signal) {
    return get(path("channels", name), SAMPLES, signal);
  },

  render(context) {
    const { data, params: { name }, perform } = context;
    const id = `channel ${name}`;
    return [
      h("div", { class: "title" }, h("p", { class: "crumbs" }, h("a", { href: "#/channels" }, "Channels")), h("h1", {}, name), state(data.state), mode(data), h("span", { class: "grow" }), action("Close", () => closeChannel(context), { tone: "danger", needs: ["DELETE", "/channels/{channel}"] })),
      h("div", { class: "columns" },
        panel(null, chart("channel", "Message rates", [["publish", "published", "publish"], ["confirm", "confirmed", "confirm"], ["deliver_get", "delivered", "deliver"], ["ack", "acknowledged", "ack"]]
          .map(([key, label, tone]) => ({ label, tone, points: rates(id, data, `message_stats.${key}`) })), rate)),
        panel("Properties", facts([
          ["Connection", connectionLink(data.connection_details.name)], ["User", data.user], ["Virtual host", data.vhost],
          ["Prefetch", data.prefetch_count || "unlimited"], ["Prefetch of the channel", data.global_prefetch_count || "unlimited"],
          ["Unacknowledged", count(data.messages_unacknowledged)], ["Unconfirmed", count(data.messages_unconfirmed)], ["Uncommitted publishes", count(data.messages_uncommitted)], ["Uncommitted acks", count(data.acks_uncommitted)],
        ]))),
      panel("Consumers", consumerTable(data.consumer_details ?? [], { query: {}, perform })),
    ];
  },
};

function closeChannel({ params: { name }, data, leave }) {
  return ask({
    title: "Close this channel?",
    text: h("p", {}, "The client of ", h("b", {}, data.user), " is told that it is closed; its connection stays. Its unacknowledged messages return to their queues."),
    fields: [{ name: "reason", label: "Reason", value: "closed by an operator", hint: "The client is told." }],
    submit: "Close channel", tone: "danger",
    act: async ({ reason }) => {
      await remove(path("channels", name), reason ? { "X-Reason": reason } : {});
      leave("#/channels", "Channel closed.");
    },
  });
}
