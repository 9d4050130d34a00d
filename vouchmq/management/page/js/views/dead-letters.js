// Dead letters by cause: which queues lose or dead-letter messages, and why.

import { get, path } from "../api.js";
import { h } from "../dom.js";
import { at, count, rate } from "../format.js";
import { exchangeLink, queueLink } from "../links.js";
import { listBar, listQuery, table } from "../table.js";

const COLUMNS = "name,vhost,arguments,effective_policy_definition,messages,messages_dlx,message_stats";
const DEAD = "message_stats.dead_letter";

export function load({ query, vhost }, signal) {
  const wanted = listQuery({ desc: query.sort ? query.desc : 1, ...query }, DEAD);
  return get(vhost ? path("queues", vhost) : "queues", { ...wanted, columns: COLUMNS }, signal);
}

const stat = (row, name) => at(row, `message_stats.${name}`) ?? 0;

export function render({ data, query, go, vhost, vhosts }) {
  const shown = { desc: query.sort ? query.desc : 1, ...query };
  return [
    h("div", { class: "title" }, h("h1", {}, "Dead letters")),
    h("p", { class: "muted" }, "Since the broker was started: messages that left a queue without being acknowledged, by queue and cause. Without a dead-letter exchange they are dropped."),
    listBar({ query, go, page: data, noun: "queues" }),
    table({
      label: "Dead letters", rows: data.items, query: shown, go, sort: DEAD, key: (row) => `${row.vhost} ${row.name}`, empty: "There are no queues.",
      columns: [
        { label: "Queue", sort: "name", class: "long", cell: (row) => queueLink(row.vhost, row.name) },
        !vhost && vhosts?.length > 1 && { label: "Virtual host", sort: "vhost", wide: true, cell: (row) => row.vhost },
        { label: "Dead-lettered", sort: DEAD, num: true, cell: (row) => count(stat(row, "dead_letter")) },
        { label: "Rate", sort: `${DEAD}_details.rate`, num: true, wide: true, cell: (row) => rate(at(row, `${DEAD}_details.rate`) ?? 0) },
        { label: "Rejected", sort: "message_stats.reject", num: true, cell: (row) => count(stat(row, "reject")) },
        { label: "Expired", sort: "message_stats.expired", num: true, cell: (row) => count(stat(row, "expired")) },
        { label: "Over the limit", sort: "message_stats.dropped", num: true, title: "Removed because the queue was longer than its limit", cell: (row) => count(stat(row, "dropped")) },
        { label: "Waiting", sort: "messages_dlx", num: true, wide: true, title: "Kept until their target takes them", cell: (row) => count(row.messages_dlx) },
        { label: "To", wide: true, cell: (row) => target(row) },
      ].filter(Boolean),
    }),
  ];
}

function target(row) {
  const exchange = row.arguments?.["x-dead-letter-exchange"] ?? row.effective_policy_definition?.["dead-letter-exchange"];
  const key = row.arguments?.["x-dead-letter-routing-key"] ?? row.effective_policy_definition?.["dead-letter-routing-key"];
  return exchange === undefined ? h("span", { class: "muted", title: "What dies here is dropped" }, "no exchange") : [exchangeLink(row.vhost, exchange), key !== undefined && [" ", h("code", {}, key)]];
}
