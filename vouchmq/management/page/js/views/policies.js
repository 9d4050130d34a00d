// Policies and operator policies.

import { action, has, isAdministrator, whyNotAdministrator, whyNotPolicies } from "../access.js";
import { get, path, put, remove } from "../api.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { fields, panel, table } from "../table.js";

const KEYS = [
  "message-ttl", "expires", "max-length", "max-length-bytes", "overflow", "dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy",
  "delivery-limit", "max-age", "alternate-exchange", "queue-mode",
];
const KINDS = {
  policies: { title: "Policies", noun: "policy", why: whyNotPolicies, note: "The policy with the highest priority of those that match applies. Arguments of a queue come before it." },
  "operator-policies": { title: "Operator policies", noun: "operator policy", why: whyNotAdministrator, note: "Limits that users cannot exceed: of a queue's policy and its operator policy the lower value counts." },
};

export async function load({ vhost }, signal) {
  const list = (kind) => get(vhost ? path(kind, vhost) : kind, {}, signal);
  const [policies, operator] = await Promise.all([list("policies"), isAdministrator() && has("GET", "/operator-policies") ? list("operator-policies") : []]);
  return { policies, "operator-policies": operator };
}

export function render(context) {
  return [h("div", { class: "title" }, h("h1", {}, "Policies")), Object.keys(KINDS).map((kind) => part(kind, context))];
}

function part(kind, context) {
  const { title, noun, why, note } = KINDS[kind];
  const rows = [...context.data[kind]].sort((one, other) => one.vhost.localeCompare(other.vhost) || other.priority - one.priority || one.name.localeCompare(other.name));
  return panel([title, h("span", { class: "grow" }), action(`Add ${noun}`, () => edit(kind, null, context), { small: true, needs: ["PUT", `/${kind}/{vhost}/{name}`], why: why() })],
    h("p", { class: "muted" }, note),
    table({
      label: title, rows, query: {}, key: (row) => `${row.vhost} ${row.name}`, empty: `There is no ${noun}.`,
      columns: [
        { label: "Name", cell: (row) => row.name },
        { label: "Virtual host", wide: true, cell: (row) => row.vhost },
        { label: "Pattern", cell: (row) => h("code", {}, row.pattern) },
        { label: "Applies to", wide: true, cell: (row) => row["apply-to"] },
        { label: "Definition", cell: (row) => fields(row.definition) },
        { label: "Priority", num: true, cell: (row) => String(row.priority) },
        { label: h("span", { class: "visually-hidden" }, "Change"), class: "acts", cell: (row) => [action("Edit", () => edit(kind, row, context), { small: true, needs: ["PUT", `/${kind}/{vhost}/{name}`], why: why() }), " ", action("Delete", () => drop(kind, row, context), { small: true, needs: ["PUT", `/${kind}/{vhost}/{name}`], why: why() })] },
      ],
    }));
}

function edit(kind, row, { vhost, vhosts, perform }) {
  const { noun } = KINDS[kind];
  const targets = kind === "policies" ? ["all", "queues", "exchanges"] : ["queues"];
  return ask({
    title: row ? `Edit ${noun} ${row.name}` : `Add ${noun}`,
    fields: [
      !row && { name: "vhost", label: "Virtual host", type: "select", options: vhosts, value: vhost || "/" },
      !row && { name: "name", label: "Name", required: true },
      { name: "pattern", label: "Pattern", required: true, value: row?.pattern, hint: "A regular expression that names match, such as ^orders\\." },
      { name: "apply-to", label: "Applies to", type: "select", options: targets, value: row?.["apply-to"] ?? targets[0] },
      { name: "definition", label: "Definition", type: "table", names: KEYS, value: row?.definition },
      { name: "priority", label: "Priority", type: "number", value: row?.priority ?? 0 },
    ],
    submit: row ? "Save" : `Add ${noun}`,
    act: ({ vhost: where, name, priority, ...rest }) => perform(() => put(path(kind, row?.vhost ?? where, row?.name ?? name), { ...rest, priority: Number(priority) }), row ? "Saved." : `Added ${noun} ${name}.`),
  });
}

function drop(kind, row, { perform }) {
  return ask({
    title: `Delete ${KINDS[kind].noun} ${row.name}?`, text: h("p", {}, "It stops applying to queues and exchanges at once."), submit: "Delete", tone: "danger",
    act: () => perform(() => remove(path(kind, row.vhost, row.name)), `${row.name} deleted.`),
  });
}
