// What the user and the broker can do. A control of what they cannot is greyed out, with the reason.

import { h } from "./dom.js";

let tags = new Set();
let routes = null;

/** Remember the user's tags, and the routes that the API describes; null: it describes none, and any may be tried. */
export function learn(user, described) {
  tags = new Set(user?.tags ?? []);
  routes = described;
}

export function isAdministrator() {
  return tags.has("administrator");
}

export function mayMonitor() {
  return isAdministrator() || tags.has("monitoring");
}

export function maySetPolicies() {
  return isAdministrator() || tags.has("policymaker");
}

/** Why the user may not do what administrators may; undefined when they may. */
export function whyNotAdministrator() {
  return isAdministrator() ? undefined : "This needs the tag administrator.";
}

export function whyNotPolicies() {
  return maySetPolicies() ? undefined : "This needs the tag policymaker or administrator.";
}

/** Whether the API has a route, written as in its description: `/queues/{vhost}/{name}/pause`. */
export function has(method, route) {
  if (!routes) {
    return true;
  }
  const shape = route.replace(/\{[^}]*\}/g, "{}");
  return Boolean(routes.get(shape)?.has(method.toLowerCase()));
}

/** Why a route cannot be used; undefined when it can. */
export function whyNot(method, route) {
  return has(method, route) ? undefined : "This broker does not offer it.";
}

/** Routes by shape, each with its methods, from an OpenAPI description. */
export function routesOf(description) {
  const found = new Map();
  for (const [route, methods] of Object.entries(description?.paths ?? {})) {
    found.set(route.replace(/\{[^}]*\}/g, "{}"), new Set(Object.keys(methods)));
  }
  return found;
}

/** A button, greyed out where there is a reason: the one given, or that the API lacks the route that it `needs`. */
export function action(text, act, { why: given, needs, tone = "", small = false } = {}) {
  const why = given ?? (needs && whyNot(...needs));
  const kind = `${tone} ${small ? "small" : ""}`.trim() || undefined;
  return why
    ? h("span", { class: "refused", title: why }, h("button", { type: "button", class: kind, disabled: true, title: why }, text), h("span", { class: "visually-hidden" }, why))
    : h("button", { type: "button", class: kind, onclick: act }, text);
}
