// The broker at a glance: totals and rates, alarms, resources, the journal, listeners.

import * as access from "../access.js";
import { get } from "../api.js";
import { chart, meter, sparkline } from "../charts.js";
import { h } from "../dom.js";
import { at, bytes, count, duration, rate } from "../format.js";
import { SAMPLES, lengths, rates } from "../history.js";
import { facts, panel, tag, told } from "../table.js";
import { firstSteps } from "./first-steps.js";

const RATES = [
  ["publish", "published", "publish"], ["confirm", "confirmed", "confirm"], ["deliver_get", "delivered", "deliver"],
  ["ack", "acknowledged", "ack"], ["redeliver", "redelivered", "redeliver"], ["return_unroutable", "returned", "return"],
  ["dead_letter", "dead-lettered", "dead"],
];

export async function load(_, signal) {
  const [overview, nodes] = await Promise.all([
    get("overview", SAMPLES, signal),
    access.mayMonitor() ? get("nodes", {}, signal) : [],
  ]);
  return { overview, nodes };
}

export function render({ data: { overview, nodes }, user }) {
  const totals = overview.queue_totals ?? {};
  const objects = overview.object_totals ?? {};
  const stats = overview.message_stats ?? {};
  const shownRates = RATES.filter(([name], index) => index < 4 || stats[name] !== undefined);
  return [
    h("div", { class: "title" }, h("h1", {}, "Overview"),
      h("span", { class: "muted" }, `${overview.product_name ?? "VouchMQ"} ${overview.product_version ?? ""}`)),
    h("div", { class: "stats" },
      stat("Ready", totals.messages_ready, "#/queues?sort=messages_ready&desc=1", lengths("overview", overview, "queue_totals.messages_ready"), "ready"),
      stat("Unacknowledged", totals.messages_unacknowledged, "#/consumers", lengths("overview", overview, "queue_totals.messages_unacknowledged"), "unacked"),
      stat("Publish", at(stats, "publish_details.rate") ?? 0, undefined, rates("overview", overview, "message_stats.publish"), "publish", rate),
      stat("Deliver", at(stats, "deliver_get_details.rate") ?? 0, undefined, rates("overview", overview, "message_stats.deliver_get"), "deliver", rate),
      stat("Queues", objects.queues, "#/queues"), stat("Exchanges", objects.exchanges, "#/exchanges"),
      stat("Connections", objects.connections, "#/connections"), stat("Channels", objects.channels, "#/channels"),
      stat("Consumers", objects.consumers, "#/consumers")),
    objects.queues === 0 && firstSteps(overview, user),
    h("div", { class: "columns" },
      panel(null, chart("queued", "Queued messages", [
        { label: "ready", tone: "ready", points: lengths("overview", overview, "queue_totals.messages_ready") },
        { label: "unacknowledged", tone: "unacked", points: lengths("overview", overview, "queue_totals.messages_unacknowledged") },
      ])),
      panel(null, chart("rates", "Message rates", shownRates.map(([name, label, tone]) => ({ label, tone, points: rates("overview", overview, `message_stats.${name}`) })), rate))),
    nodes.map((node) => sharedLog(node)),
    nodes.map((node) => nodePanels(node)),
    h("div", { class: "columns" }, churn(overview), listeners(overview)),
  ];
}

function stat(label, value, link, points, tone, show = count) {
  const inside = [h("span", { class: "stat-label" }, label), h("span", { class: "stat-value" }, show(value)), points && sparkline(points, tone, `${label} lately`)];
  return link ? h("a", { class: "stat", href: link, key: label }, inside) : h("div", { class: "stat", key: label }, inside);
}

function nodePanels(node) {
  return h("div", { class: "columns", key: node.name },
    panel("Resources", h("table", { class: "resources" }, h("tbody", {},
      resource("Memory", node.mem_used, node.mem_limit, node.mem_alarm, bytes, "of", "limit"),
      diskRow(node),
      node.fd_used !== undefined && resource("File descriptors", node.fd_used, node.fd_total, node.fd_used > 0.9 * node.fd_total, count, "of", ""),
      node.sockets_used !== undefined && resource("Sockets", node.sockets_used, node.sockets_total, node.sockets_used > 0.9 * node.sockets_total, count, "of", "")))),
    panel("Journal and node", facts([
      ["Syncs", withRate(node, "io_sync_count", count, rate)],
      ["A sync takes", told(node.io_sync_avg_time, duration)],
      ["Written", withRate(node, "io_write_bytes", bytes, (each) => `${bytes(Math.round(each))}/s`)],
      ["Read", withRate(node, "io_read_bytes", bytes, (each) => `${bytes(Math.round(each))}/s`)],
      ["Segments", told(node.journal_segments, count)],
      ["Data directory", h("code", {}, node.db_dir ?? "–")],
      ["Node", h("span", {}, node.name, " ", node.running === false ? tag("not running", "bad") : "")],
      ["Up for", duration(node.uptime)],
      ["Process", `pid ${node.os_pid ?? "–"}, ${node.processors ?? "–"} processors`],
    ])));
}

/** The log that several brokers share: who leads, and how far its standbys are. */
function sharedLog(node) {
  const log = node.shared_log;
  if (log === undefined) {
    return null;
  }
  const standbys = log.standbys ?? [];
  return h("div", { class: "columns", key: `${node.name} shared log` },
    panel("Shared log", facts([
      ["Role", h("span", {}, log.role, log.role === "leader" && !log.is_serving && [" ", tag("not serving yet", "warn")], node.replication_alarm && [" ", tag("alarm", "bad")])],
      ["Epoch", count(log.epoch)],
      ["Leader", h("span", {}, log.leader || "–", log.leader_address && [" ", h("code", {}, log.leader_address)])],
      ["Log", h("span", {}, log.stream, " ", h("code", {}, log.log_id))],
      log.log?.bytes !== undefined && ["Size of the log", logSize(log.log)],
      ["Server of the log", h("code", {}, log.server || "–")],
      ["Committed up to record", count(log.committed_sequence)],
      ["Applied here up to record", count(log.sequence)],
      ["Not committed", told(log.uncommitted_bytes, bytes)],
      log.standby_waiting_bytes !== undefined && ["On no standby's disk", bytes(log.standby_waiting_bytes)],
      log.trouble && ["Trouble", h("span", {}, log.trouble, " ", tag("trouble", "bad"))],
    ].filter(Boolean))),
    panel("Standbys", standbys.length === 0
      ? h("p", {}, tag("none", "bad"), " No standby reports, so none can take over.")
      : h("div", { class: "table-wrap" }, h("table", { class: "standbys" },
        h("thead", {}, h("tr", {},
          ["Node", "Address", "Can take over"].map((text) => h("th", { scope: "col" }, text)),
          ["Record", "Behind", "Reported"].map((text) => h("th", { scope: "col", class: "num" }, text)))),
        h("tbody", {}, standbys.map(standby))))));
}

/** What the stream has of what it may have; it takes no record when it is full. */
function logSize(size) {
  if (size.max_bytes < 0) {
    return `${bytes(size.bytes)}, no limit`;
  }
  return h("span", {}, `${bytes(size.bytes)} of ${bytes(size.max_bytes)}`, size.bytes > 0.8 * size.max_bytes && [" ", tag("nearly full", "warn")]);
}

function standby(each) {
  return h("tr", { key: each.node }, h("th", { scope: "row" }, each.node),
    h("td", {}, each.address ? h("code", {}, each.address) : "–"),
    h("td", {}, each.can_take_over ? "yes" : tag("no", "bad")),
    h("td", { class: "num" }, count(each.sequence)),
    h("td", { class: "num" }, `${count(each.lag)}, ${bytes(each.lag_bytes)}`),
    h("td", { class: "num" }, `${duration(Math.round(each.heard_s * 1000))} ago`));
}

/** A counter, and its rate if the API tells one. */
function withRate(node, name, show, showRate) {
  const each = at(node, `${name}_details.rate`);
  return told(node[name], (value) => (each === undefined ? show(value) : `${show(value)}, ${showRate(each)}`));
}

function resource(label, used, limit, isBad, show, word, noun) {
  return h("tr", { key: label }, h("th", { scope: "row" }, label),
    h("td", { class: "wide" }, meter(used, limit, label, isBad ? "bad" : "")),
    h("td", { class: "num" }, `${show(used)} ${word} ${show(limit)} ${noun}`.trim(), isBad && [" ", tag("alarm", "bad")]));
}

function diskRow(node) {
  const isBad = node.disk_free_alarm;
  return h("tr", { key: "disk" }, h("th", { scope: "row" }, "Free disk"),
    h("td", { class: "wide" }, meter(node.disk_free_limit, node.disk_free, "Part of the free disk that is reserved", isBad ? "bad" : "")),
    h("td", { class: "num" }, `${bytes(node.disk_free)}, at least ${bytes(node.disk_free_limit)}`, isBad && [" ", tag("alarm", "bad")]));
}

function churn(overview) {
  const churned = overview.churn_rates ?? {};
  const rows = [["Connections", "connection_created", "connection_closed"], ["Channels", "channel_created", "channel_closed"], ["Queues", "queue_created", "queue_deleted"]].filter(([, opened]) => churned[opened] !== undefined);
  if (rows.length === 0) {
    return null;
  }
  return panel("Opened and closed", h("div", { class: "table-wrap" }, h("table", {},
    h("thead", {}, h("tr", {}, ["", "opened", "", "closed", ""].map((text, index) => h(index ? "th" : "td", { class: index ? "num" : undefined, scope: index ? "col" : undefined }, text || (index === 2 || index === 4 ? "rate" : ""))))),
    h("tbody", {}, rows.map(([label, opened, closed]) => h("tr", {}, h("th", { scope: "row" }, label),
      [opened, closed].map((name) => [h("td", { class: "num" }, count(churned[name])), h("td", { class: "num muted" }, rate(at(churned, `${name}_details.rate`) ?? 0))])))))));
}

function listeners(overview) {
  const rows = overview.listeners ?? [];
  return panel("Listeners", h("div", { class: "table-wrap" }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Protocol"), h("th", { scope: "col" }, "Address"), h("th", { scope: "col", class: "num" }, "Port"))),
    h("tbody", {}, rows.map((each) => h("tr", {}, h("th", { scope: "row" }, each.protocol), h("td", {}, h("code", {}, each.ip_address)), h("td", { class: "num" }, String(each.port))))))));
}

