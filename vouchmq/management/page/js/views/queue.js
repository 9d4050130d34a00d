// One queue: charts, its messages, consumers, bindings, and what can be done with it.

import { action, whyNot } from "../access.js";
import { get, path, post, remove } from "../api.js";
import { chart } from "../charts.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { bytes, count, moment, rate } from "../format.js";
import { PAUSE, pause, reason } from "../extensions.js";
import { SAMPLES, lengths, rates } from "../history.js";
import { channelLink, connectionLink, topologyLink } from "../links.js";
import { facts, fields, panel, table, tag, told } from "../table.js";
import { topology } from "../topology.js";
import { consumerTable } from "./consumers.js";
import { bindingTable } from "./exchange.js";
import { messagesPart } from "./messages.js";
import { publishForm } from "./publish.js";
import { features, state } from "./queues.js";

const RATES = [
  ["publish", "in", "publish"], ["deliver_get", "out", "deliver"], ["ack", "acknowledged", "ack"], ["redeliver", "redelivered", "redeliver"],
  ["dead_letter", "dead-lettered", "dead"], ["expired", "expired", "return"],
];
const PARTS = [["", "Overview"], ["messages", "Messages"], ["consumers", "Consumers"], ["bindings", "Bindings"], ["publish", "Publish"]];

export async function load({ params: { vhost, name }, query }, signal) {
  const where = path("queues", vhost, name);
  const [queue, bindings] = await Promise.all([
    get(where, SAMPLES, signal),
    query.part === "bindings" || !query.part ? get(`${where}/bindings`, {}, signal) : [],
  ]);
  return { queue, bindings };
}

export function render(context) {
  const { data: { queue }, query, go } = context;
  const part = query.part ?? "";
  const numbers = { consumers: queue.consumers, messages: queue.messages };
  return [
    h("div", { class: "title" }, h("p", { class: "crumbs" }, h("a", { href: "#/queues" }, "Queues")),
      h("h1", {}, queue.name), state(queue.state), tag(queue.type ?? "classic"), features(queue), h("span", { class: "grow" }), buttons(context)),
    h("div", { class: "tabs", role: "tablist" }, PARTS.map(([id, text]) =>
      h("button", { type: "button", role: "tab", "aria-selected": String(part === id), onclick: () => go({ part: id }) }, text, numbers[id] !== undefined && h("span", { class: "muted" }, ` ${count(numbers[id])}`)))),
    h("div", { class: "part", key: `part ${part}` }, { "": overview, messages: messagesPart, consumers, bindings, publish }[part]?.(context)),
  ];
}

function buttons(context) {
  const { data: { queue } } = context;
  const isStream = queue.type === "stream";
  const isPaused = queue.state === "paused" || queue.paused === true;
  return h("span", { class: "buttons" },
    action(isPaused ? "Resume" : "Pause", () => pauseQueue(context, !isPaused), { why: reason(PAUSE) }),
    action("Purge", () => purge(context), { needs: ["DELETE", "/queues/{vhost}/{name}/contents"], why: isStream ? "A stream keeps its messages until its retention removes them." : undefined }),
    action("Delete", () => deleteQueue(context), { tone: "danger", needs: ["DELETE", "/queues/{vhost}/{name}"] }));
}

function overview({ data: { queue, bindings }, params: { vhost } }) {
  const id = `queue ${vhost} ${queue.name}`;
  const stats = queue.message_stats ?? {};
  const shown = RATES.filter(([name], index) => index < 3 || stats[name] !== undefined);
  const drawn = bindings.filter((each) => each.source !== "");
  return [
    h("div", { class: "columns" },
      panel(null, chart("messages", "Messages", [
        { label: "ready", tone: "ready", points: lengths(id, queue, "messages_ready") },
        { label: "unacknowledged", tone: "unacked", points: lengths(id, queue, "messages_unacknowledged") },
      ])),
      panel(null, chart("rates", "Message rates", shown.map(([name, label, tone]) => ({ label, tone, points: rates(id, queue, `message_stats.${name}`) })), rate))),
    h("div", { class: "columns three" },
      panel("Contents", facts([
        ["Ready", count(queue.messages_ready)], ["Unacknowledged", count(queue.messages_unacknowledged)], ["Total", count(queue.messages)],
        queue.messages_delayed ? ["Delayed", count(queue.messages_delayed)] : null,
        ["Bytes", told(queue.message_bytes, bytes)], ["Bytes of ready ones", told(queue.message_bytes_ready, bytes)], ["Persistent", told(queue.messages_persistent, count)],
        ["In memory", told(queue.messages_ram, count)], ["Paged out", told(queue.messages_paged_out, count)],
        queue.head_message_timestamp ? ["Property timestamp of the oldest", moment(queue.head_message_timestamp * 1000)] : null,
        queue.idle_since && ["Idle since", typeof queue.idle_since === "number" ? moment(queue.idle_since) : String(queue.idle_since).slice(0, 19).replace("T", " ")],
      ])),
      panel("Properties", facts([
        ["Virtual host", queue.vhost], ["Type", queue.type ?? "classic"], ["Durable", queue.durable ? "yes" : "no"], ["Auto-delete", queue.auto_delete ? "yes" : "no"],
        ["Exclusive", queue.exclusive ? (queue.owner_pid_details?.name ? connectionLink(queue.owner_pid_details.name) : "yes") : "no"],
        ["Arguments", fields(queue.arguments)], ["Policy", queue.policy || "–"], ["Operator policy", queue.operator_policy || "–"],
        ["In effect by policy", fields(queue.effective_policy_definition)],
      ])),
      panel("Losses and dead letters", facts([
        ["Dead-lettered", count(stats.dead_letter ?? 0)], ["Rejected", count(stats.reject ?? 0)], ["Expired", count(stats.expired ?? 0)],
        ["Over the length limit", count(stats.dropped ?? 0)], ["Redelivered", count(stats.redeliver ?? 0)],
        ["Kept until their target takes them", told(queue.messages_dlx, count)],
        ["Dead-letter exchange", queue.arguments?.["x-dead-letter-exchange"] ?? queue.effective_policy_definition?.["dead-letter-exchange"] ?? "none"],
      ]))),
    drawn.length > 0 && panel("Topology", topology(drawn, topologyLink(vhost), `q:${queue.name}`)),
    senders("Deliveries", queue.deliveries), senders("Publishers", queue.incoming),
  ];
}

function senders(title, rows) {
  if (!rows?.length) {
    return null;
  }
  const isIncoming = title === "Publishers";
  return panel(isIncoming ? "Where messages come from" : title, table({
    label: title, rows, query: {}, columns: [
      { label: isIncoming ? "Exchange" : "Channel", class: "long", cell: (row) => (isIncoming ? row.exchange?.name || "(default)" : channelLink(row.channel_details?.name)) },
      { label: "Rate", num: true, cell: (row) => rate(row.stats?.[isIncoming ? "publish_details" : "deliver_get_details"]?.rate ?? 0) },
    ],
  }));
}

function consumers({ data: { queue }, perform }) {
  return panel(null, consumerTable(queue.consumer_details ?? [], { query: {}, perform }));
}

function bindings(context) {
  const { data: { bindings: rows }, params: { vhost }, perform } = context;
  return panel(null, bindingTable(rows, vhost, perform, "To"), h("div", { class: "buttons" }, action("Add binding", () => addBinding(context), { needs: ["POST", "/bindings/{vhost}/e/{source}/q/{queue}"] })));
}

function publish(context) {
  const { params: { vhost, name } } = context;
  return panel(null, h("p", { class: "muted" }, `Through the default exchange, with routing key ${name}.`), publishForm(context, { vhost, exchange: "amq.default", key: name, why: whyNot("POST", "/exchanges/{vhost}/{name}/publish") }));
}

function addBinding({ params: { vhost, name }, perform }) {
  return ask({
    title: `Bind ${name}`,
    fields: [{ name: "exchange", label: "From exchange", required: true }, { name: "routing_key", label: "Routing key" }, { name: "arguments", label: "Arguments", type: "table" }],
    submit: "Add binding",
    act: ({ exchange, routing_key: key, arguments: given }) => perform(() => post(path("bindings", vhost, "e", exchange, "q", name), { routing_key: key, arguments: given }), "Binding added."),
  });
}

function pauseQueue({ params: { vhost, name }, perform }, isPaused) {
  return ask({
    title: isPaused ? `Pause ${name}?` : `Resume ${name}?`,
    text: h("p", {}, isPaused ? "Its consumers get no more messages until it is resumed. Messages still come in." : "Its consumers get messages again."),
    submit: isPaused ? "Pause queue" : "Resume queue",
    act: () => perform(() => pause(vhost, name, isPaused), isPaused ? `${name} is paused.` : `${name} is resumed.`),
  });
}

function purge({ params: { vhost, name }, data: { queue }, perform }) {
  return ask({
    title: `Purge ${name}?`, text: h("p", {}, h("b", {}, count(queue.messages_ready)), " ready messages are removed for good. Unacknowledged ones stay with their consumers."),
    submit: "Purge queue", tone: "danger",
    act: () => perform(() => remove(`${path("queues", vhost, name)}/contents`), `${name} is empty.`),
  });
}

function deleteQueue({ params: { vhost, name }, data: { queue }, leave }) {
  return ask({
    title: `Delete queue ${name}?`,
    text: h("p", {}, "It has ", h("b", {}, count(queue.messages)), " messages and ", h("b", {}, count(queue.consumers)), " consumers. Its messages and bindings are deleted too."),
    submit: "Delete queue", tone: "danger", typed: queue.messages > 0 || queue.consumers > 0 ? name : undefined,
    act: async () => {
      await remove(path("queues", vhost, name));
      leave("#/queues", `Queue ${name} deleted.`);
    },
  });
}
