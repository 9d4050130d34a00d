// Consumers: how much of their prefetch is in use, how old their oldest delivery is, and the control of their prefetch.

import { action } from "../access.js";
import { get, path } from "../api.js";
import { meter } from "../charts.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { PREFETCH, setPrefetch } from "../extensions.js";
import { count, duration } from "../format.js";
import { channelLink, queueLink } from "../links.js";
import { listBar, listQuery, table, tag } from "../table.js";

export function load({ query, vhost }, signal) {
  return get(vhost ? path("consumers", vhost) : "consumers", listQuery(query, "consumer_tag"), signal);
}

export function render(context) {
  const { data, query, go } = context;
  // RabbitMQ's list of consumers has no pages.
  const rows = Array.isArray(data) ? data : data.items;
  return [
    h("div", { class: "title" }, h("h1", {}, "Consumers")),
    !Array.isArray(data) && listBar({ query, go, page: data, noun: "consumers" }),
    consumerTable(rows, context),
  ];
}

/** A table of consumers. */
export function consumerTable(rows, { query, go, perform }) {
  return table({
    label: "Consumers", rows, query, go, sort: "consumer_tag", key: (row) => `${row.channel_details?.name} ${row.consumer_tag}`, empty: "There are no consumers.",
    columns: [
      { label: "Tag", sort: "consumer_tag", class: "long", cell: (row) => h("code", {}, row.consumer_tag) },
      { label: "Queue", sort: "queue.name", class: "long", cell: (row) => queueLink(row.queue.vhost, row.queue.name) },
      { label: "Channel", wide: true, class: "line", cell: (row) => (row.channel_details?.name ? channelLink(row.channel_details.name) : "–") },
      { label: "Mode", wide: true, cell: (row) => modes(row) },
      { label: "Prefetch", sort: "prefetch_count", num: true, cell: (row) => usage(row) },
      { label: "Oldest unacked", num: true, sort: "oldest_unacknowledged_age", title: "For how long the client has had its oldest unacknowledged message, to the second", cell: (row) => (typeof row.oldest_unacknowledged_age === "number" ? age(row.oldest_unacknowledged_age) : "–") },
      { label: h("span", { class: "visually-hidden" }, "Change"), class: "acts", cell: (row) => prefetchButton(row, perform) },
    ],
  });
}

// The broker looks at it once a second.
function age(ms) {
  return ms < 1000 ? "< 1 s" : duration(ms);
}

function modes(row) {
  return h("span", { class: "tags" }, row.ack_required ? null : tag("no ack", "warn", "A message counts as done once it is sent"), row.exclusive && tag("exclusive"),
    row.activity_status === "single_active" && tag("active", "good", "The single active consumer"), row.activity_status === "waiting" && tag("waiting", "warn", "Waits behind the single active consumer"));
}

function prefetchButton(row, perform) {
  const why = row.ack_required ? undefined : "A consumer without acknowledgements has no prefetch.";
  return action("Prefetch…", () => changePrefetch(row, perform), { small: true, needs: PREFETCH, why });
}

function changePrefetch(row, perform) {
  const { name } = row.channel_details;
  return ask({
    title: `Prefetch of ${row.consumer_tag}`,
    text: h("p", {}, "How many unacknowledged messages the consumer may have, from now on and as long as it lives. What it has above a lower limit stays with it."),
    fields: [{ name: "limit", label: "Prefetch", type: "number", min: 0, max: 65535, value: row.prefetch_count, required: true, hint: "0 is no limit." }],
    submit: "Set prefetch",
    act: ({ limit }) => perform(() => setPrefetch(name, row.consumer_tag, Number(limit)), Number(limit) ? `The prefetch is ${limit} now.` : "The prefetch is unlimited now."),
  });
}

function usage(row) {
  const held = row.messages_unacknowledged;
  if (!row.prefetch_count) {
    return typeof held === "number" ? `${count(held)} of unlimited` : "unlimited";
  }
  return typeof held === "number"
    ? h("span", { class: "usage" }, meter(held, row.prefetch_count, "Prefetch in use", held >= row.prefetch_count ? "warn" : ""), ` ${count(held)} of ${count(row.prefetch_count)}`)
    : count(row.prefetch_count);
}
