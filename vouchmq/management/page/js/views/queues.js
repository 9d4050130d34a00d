// All queues, by pages.

import { action } from "../access.js";
import { get, path, put } from "../api.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { at, count, rate } from "../format.js";
import { queueLink, toQueue } from "../links.js";
import { listBar, listQuery, table, tag } from "../table.js";

const COLUMNS = "name,vhost,type,durable,auto_delete,exclusive,arguments,state,policy,operator_policy,consumers,messages,messages_ready,messages_unacknowledged,message_stats.publish_details.rate,message_stats.deliver_get_details.rate,message_stats.ack_details.rate";

/** Arguments that the form offers. */
export const ARGUMENTS = [
  "x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-overflow", "x-dead-letter-exchange", "x-dead-letter-routing-key",
  "x-dead-letter-strategy", "x-max-priority", "x-single-active-consumer", "x-delivery-limit", "x-queue-mode", "x-max-age", "x-stream-max-segment-size-bytes",
];

export function load({ query, vhost }, signal) {
  return get(vhost ? path("queues", vhost) : "queues", { ...listQuery(query), columns: COLUMNS }, signal);
}

export function render(context) {
  const { data, query, go, vhost, vhosts } = context;
  return [
    h("div", { class: "title" }, h("h1", {}, "Queues"), h("span", { class: "grow" }), action("Add queue", () => addQueue(context), { tone: "primary", needs: ["PUT", "/queues/{vhost}/{name}"] })),
    listBar({ query, go, page: data, noun: "queues" }),
    table({
      label: "Queues", rows: data.items, query, go, key: (row) => `${row.vhost} ${row.name}`,
      empty: query.filter ? "No queue has a name like this." : "There are no queues.",
      columns: [
        { label: "Name", sort: "name", class: "long", cell: (row) => queueLink(row.vhost, row.name) },
        !vhost && vhosts?.length > 1 && { label: "Virtual host", sort: "vhost", wide: true, cell: (row) => row.vhost },
        { label: "Type", sort: "type", wide: true, cell: (row) => row.type },
        { label: "Features", wide: true, cell: (row) => features(row) },
        { label: "State", sort: "state", wide: true, cell: (row) => state(row.state) },
        { label: "Ready", sort: "messages_ready", num: true, cell: (row) => count(row.messages_ready) },
        { label: "Unacked", sort: "messages_unacknowledged", num: true, title: "Delivered, and not acknowledged yet", cell: (row) => count(row.messages_unacknowledged) },
        { label: "Total", sort: "messages", num: true, wide: true, cell: (row) => count(row.messages) },
        { label: "Consumers", sort: "consumers", num: true, wide: true, cell: (row) => count(row.consumers) },
        { label: "In", sort: "message_stats.publish_details.rate", num: true, title: "Messages that come in", cell: (row) => rate(at(row, "message_stats.publish_details.rate") ?? 0) },
        { label: "Out", sort: "message_stats.deliver_get_details.rate", num: true, title: "Deliveries and gets", cell: (row) => rate(at(row, "message_stats.deliver_get_details.rate") ?? 0) },
        { label: "Acked", sort: "message_stats.ack_details.rate", num: true, wide: true, cell: (row) => rate(at(row, "message_stats.ack_details.rate") ?? 0) },
      ].filter(Boolean),
    }),
  ];
}

/** What a queue is, as short marks. */
export function features(row) {
  const known = { "x-message-ttl": "TTL", "x-expires": "expires", "x-max-length": "max length", "x-max-length-bytes": "max bytes", "x-dead-letter-exchange": "DLX", "x-max-priority": "priority", "x-single-active-consumer": "single active", "x-delivery-limit": "delivery limit", "x-max-age": "max age" };
  return h("span", { class: "tags" },
    !row.durable && tag("transient"), row.auto_delete && tag("auto-delete"), row.exclusive && tag("exclusive"),
    Object.entries(row.arguments ?? {}).filter(([name]) => known[name]).map(([name, value]) => tag(known[name], "", `${name}: ${value}`)),
    row.policy && tag(row.policy, "policy", `policy ${row.policy}`),
    row.operator_policy && tag(row.operator_policy, "policy", `operator policy ${row.operator_policy}`));
}

/** A state as a mark with a tone. */
export function state(name) {
  const tones = { running: "good", idle: "", flow: "warn", blocked: "bad", blocking: "warn", paused: "warn", down: "bad", stopped: "bad", closing: "warn" };
  return name ? tag(name, tones[name] ?? "") : "–";
}

function addQueue({ perform, vhost, vhosts }) {
  return ask({
    title: "Add a queue",
    fields: [
      { name: "vhost", label: "Virtual host", type: "select", options: vhosts, value: vhost || "/" },
      { name: "name", label: "Name", required: true },
      { name: "type", label: "Type", type: "select", options: ["classic", "quorum", "stream"] },
      { name: "durable", label: "Durable", type: "check", value: true, hint: "It is still there after a restart of the broker." },
      { name: "auto_delete", label: "Auto-delete", type: "check", hint: "It is deleted with its last consumer." },
      { name: "arguments", label: "Arguments", type: "table", names: ARGUMENTS },
    ],
    submit: "Add queue",
    act: async ({ vhost: where, name, type, durable, auto_delete: autoDelete, arguments: given }) => {
      const all = type === "classic" ? given : { "x-queue-type": type, ...given };
      await perform(() => put(path("queues", where, name), { durable, auto_delete: autoDelete, arguments: all }), `Queue ${name} added.`);
      location.hash = toQueue(where, name);
    },
  });
}
