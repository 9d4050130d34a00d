// The ledger: whether it is on, its switch, and the last seal.

import { action, whyNotAdministrator } from "../access.js";
import { get, put } from "../api.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { count, plain } from "../format.js";
import { LEDGER, can } from "../extensions.js";
import { facts, panel, tag, told } from "../table.js";

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
    panel("Audit", h("p", {}, "An audit reads the files of the ledger with Spark, on another machine if you like, and is not known to the broker: ", h("code", {}, "vouchmq audit"), " writes its report. Store the last seal elsewhere, so that an audit can tell whether the files are complete.")),
  ];
}

function turn({ data, perform }) {
  const on = !data.on;
  return ask({
    title: on ? "Switch the ledger on?" : "Switch the ledger off?", text: h("p", {}, on ? "It begins with an inventory of all queues." : "What happens from now on is not recorded."), submit: on ? "Switch on" : "Switch off",
    act: () => perform(() => put("ledger", { on }), on ? "The ledger is on." : "The ledger is off."),
  });
}
