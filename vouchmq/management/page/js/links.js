// Links between views.

import { h } from "./dom.js";
import { exchangeName } from "./format.js";
import { href } from "./router.js";

export const toQueue = (vhost, name, query) => href(["queues", vhost, name], query);
export const toExchange = (vhost, name) => href(["exchanges", vhost, name]);

export const queueLink = (vhost, name) => h("a", { class: "name", href: toQueue(vhost, name) }, name);
export const exchangeLink = (vhost, name) => h("a", { class: "name", href: toExchange(vhost, name) }, exchangeName(name));
export const connectionLink = (name, text = name) => h("a", { class: "name", href: href(["connections", name]) }, text);
export const channelLink = (name) => h("a", { class: "name", href: href(["channels", name]), title: name }, ofClient(name));

/** The client's end of a connection or channel: its own end is the same for all. */
export function ofClient(name) {
  return name.replace(/ -> \S+/, "");
}

/** Where a box of the topology leads. */
export const topologyLink = (vhost) => (kind, name) => (kind === "exchange" ? toExchange(vhost, name) : toQueue(vhost, name));
