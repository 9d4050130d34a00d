// The ledger: whether it is on, and what the last audit of it has found.

import { action, whyNotAdministrator } from "../access.js";
import { get, put } from "../api.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { bytes, count, moment } from "../format.js";
import { LEDGER, can } from "../extensions.js";
import { facts, panel, tag } from "../table.js";

export function load(_, signal) {
  return can(LEDGER) ? get("ledger", {}, signal) : {};
}

export function render(context) {
  const { data } = context;
  const heading = h("div", { class: "title" }, h("h1", {}, "Ledger"), can(LEDGER) && tag(data.enabled ? "on" : "off", data.enabled ? "good" : ""));
  if (!can(LEDGER)) {
    return [heading, panel(null, h("p", {}, "This API has no route for the ledger. On the broker's machine, ", h("code", {}, "vouchmq ledger status"), " shows it, and ", h("code", {}, "vouchmq ledger on"), " switches it on."))];
  }
  const audit = data.last_audit;
  return [
    heading,
    h("p", { class: "muted" }, "A record of what has happened to each message, from which an audit proves that none was lost."),
    h("div", { class: "columns" },
      panel(["Recording", h("span", { class: "grow" }), action(data.enabled ? "Switch off" : "Switch on", () => turn(context), { small: true, why: whyNotAdministrator() })],
        facts([["Directory", h("code", {}, data.directory ?? "–")], ["Lines", count(data.lines)], ["Bytes", bytes(data.bytes)], ["Dropped lines", count(data.dropped)], data.since && ["Since", moment(data.since)]])),
      panel("Last audit", audit ? facts([["At", moment(audit.at)], ["Verdict", tag(audit.verdict, audit.verdict === "clean" ? "good" : "bad")], ["Findings", count(audit.findings)]]) : h("p", { class: "muted" }, "No audit has been reported to this broker."))),
  ];
}

function turn({ data, perform }) {
  const on = !data.enabled;
  return ask({
    title: on ? "Switch the ledger on?" : "Switch the ledger off?", text: h("p", {}, on ? "It starts with an inventory of all queues." : "What happens from now on is not recorded."), submit: on ? "Switch on" : "Switch off",
    act: () => perform(() => put("ledger", { enabled: on }), on ? "The ledger is on." : "The ledger is off."),
  });
}
