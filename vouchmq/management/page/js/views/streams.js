// Streams and their readers, with how far each is behind.

import { get, path } from "../api.js";
import { h } from "../dom.js";
import { at, bytes, count, rate } from "../format.js";
import { channelLink, queueLink } from "../links.js";
import { panel, table } from "../table.js";

const MOST = 500;

export async function load({ vhost }, signal) {
  const [page, consumers] = await Promise.all([
    get(vhost ? path("queues", vhost) : "queues", { page: 1, page_size: MOST, sort: "type", sort_reverse: "true" }, signal),
    get(vhost ? path("consumers", vhost) : "consumers", {}, signal),
  ]);
  const streams = page.items.filter((each) => each.type === "stream").sort((one, other) => one.name.localeCompare(other.name));
  const names = new Set(streams.map((each) => `${each.vhost} ${each.name}`));
  const readers = (Array.isArray(consumers) ? consumers : consumers.items).filter((each) => names.has(`${each.queue.vhost} ${each.queue.name}`));
  return { streams, readers };
}

export function render({ data: { streams, readers }, vhost, vhosts }) {
  const limit = (row, name) => row.arguments?.[`x-${name}`] ?? row.effective_policy_definition?.[name];
  return [
    h("div", { class: "title" }, h("h1", {}, "Streams")),
    table({
      label: "Streams", rows: streams, query: {}, key: (row) => `${row.vhost} ${row.name}`, empty: "There are no streams: declare a queue with x-queue-type = stream.",
      columns: [
        { label: "Name", class: "long", cell: (row) => queueLink(row.vhost, row.name) },
        !vhost && vhosts?.length > 1 && { label: "Virtual host", wide: true, cell: (row) => row.vhost },
        { label: "Messages", num: true, cell: (row) => count(row.messages) },
        { label: "Bytes", num: true, wide: true, cell: (row) => bytes(row.message_bytes) },
        { label: "Readers", num: true, cell: (row) => count(row.consumers) },
        { label: "In", num: true, cell: (row) => rate(at(row, "message_stats.publish_details.rate") ?? 0) },
        { label: "Keeps", wide: true, cell: (row) => [limit(row, "max-age"), limit(row, "max-length-bytes") && bytes(limit(row, "max-length-bytes"))].filter(Boolean).join(", ") || "everything" },
      ].filter(Boolean),
    }),
    streams.length > 0 && panel("Readers", table({
      label: "Readers", rows: readers, query: {}, key: (row) => `${row.channel_details?.name} ${row.consumer_tag}`, empty: "Nobody reads a stream.",
      columns: [
        { label: "Stream", class: "long", cell: (row) => queueLink(row.queue.vhost, row.queue.name) },
        { label: "Tag", class: "long", cell: (row) => h("code", {}, row.consumer_tag) },
        { label: "Channel", wide: true, class: "line", cell: (row) => (row.channel_details?.name ? channelLink(row.channel_details.name) : "–") },
        { label: "Offset", num: true, cell: (row) => count(row.stream_offset) },
        { label: "Behind by", num: true, cell: (row) => count(row.stream_lag) },
        { label: "Prefetch", num: true, wide: true, cell: (row) => count(row.prefetch_count) },
      ],
    })),
  ];
}
