// The ledger: whether it is on, its switch, the last seal, and what the last audit has found.

import { action, whyNotAdministrator } from "../access.js";
import { get, put } from "../api.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { count, moment, plain, since } from "../format.js";
import { LEDGER, can } from "../extensions.js";
import { facts, panel, tag, told } from "../table.js";

// By exit code of the audit.
const VERDICTS = { 0: ["clean", "good"], 1: ["findings", "bad"], 3: ["not provable", "warn"] };

export function load(_, signal) {
  return can(LEDGER) ? get("ledger", {}, signal) : {};
}

export function render(context) {
  const { data } = context;
  const heading = h("div", { class: "title" }, h("h1", {}, "Ledger"), can(LEDGER) && tag(data.on ? "on" : "off", data.on ? "good" : ""));
  if (!can(LEDGER)) {
    return [heading, panel(null, h("p", {}, "This API has no route for the ledger. On the broker's machine, ", h("code", {}, "vouchmq ledger status"), " shows it, and ", h("code", {}, "vouchmq ledger on"), " switches it on."))];
  }
  return [
    heading,
    h("p", { class: "muted" }, "A record of what has happened to each message, from which an audit finds out whether one was lost or came twice."),
    panel(["Recording", h("span", { class: "grow" }), action(data.on ? "Switch off" : "Switch on", () => turn(context), { small: true, why: whyNotAdministrator() })],
      facts([
        ["Broker", data.broker], ["Epoch", told(data.epoch, count)], ["Lines", told(data.lines, count)], ["Lost lines", told(data.lost, count)],
        ["Last seal", told(data.seal, (seal) => h("code", {}, plain(seal)))],
      ])),
    audit(data),
  ];
}

function audit({ audit: last, broker, epoch, lines, on }) {
  const how = h("p", { class: "muted" }, "An audit reads the files of the ledger with Spark: ", h("code", {}, "vouchmq audit --data-dir DIR --out TABLES"), " on this machine, which tells the broker its result. After one elsewhere, ", h("code", {}, "vouchmq ledger audited TABLES/summary.json"), " does. Store the last seal elsewhere, so that an audit can tell whether the files are complete.");
  if (!last) {
    return panel("Last audit", h("p", {}, "No audit has told this broker what it has found."), how);
  }
  const [word, tone] = VERDICTS[last.exit] ?? ["failed", "bad"];
  const read = last.brokers[broker];
  const newer = !read ? "This broker's ledger was not read." : on && read.o === epoch ? `${count(Math.max(0, lines - read.n - 1))} more lines` : read.o < epoch ? "It has begun a new epoch since." : undefined;
  const limits = [["vhost", (name) => `virtual host ${name}`], ["queue", (pattern) => `queues like ${pattern}`], ["since", (us) => `from ${moment(us / 1000)}`], ["until", (us) => `before ${moment(us / 1000)}`]]
    .filter(([key]) => last[key] !== null).map(([key, show]) => show(last[key]));
  return panel(["Last audit", tag(word, tone)],
    h("p", { class: "verdict" }, `${last.verdict.charAt(0).toUpperCase()}${last.verdict.slice(1)}.`),
    facts([
      ["Ended", `${moment(last.finished_us / 1000)}, ${since(last.finished_us / 1000)} ago`],
      ["Events", last.last_us === null ? "none" : `${moment(last.first_us / 1000)} to ${moment(last.last_us / 1000)}`],
      ["Ledgers of", Object.entries(last.brokers).map(([name, to]) => h("div", {}, name, h("span", { class: "muted" }, `, up to epoch ${to.o}, line ${count(to.n)}`)))],
      ["Since then", newer], limits.length ? ["Only", limits.join(", ")] : null,
      ["Copies", count(last.copies)], ["Findings", counts(last.findings)], ["States", counts(last.states)],
    ]), how);
}

function counts(numbers) {
  const entries = Object.entries(numbers);
  return entries.length ? entries.map(([name, number]) => `${name} ${count(number)}`).join(", ") : "none";
}

function turn({ data, perform }) {
  const on = !data.on;
  return ask({
    title: on ? "Switch the ledger on?" : "Switch the ledger off?", text: h("p", {}, on ? "It begins with an inventory of all queues." : "What happens from now on is not recorded."), submit: on ? "Switch on" : "Switch off",
    act: () => perform(() => put("ledger", { on }), on ? "The ledger is on." : "The ledger is off."),
  });
}
