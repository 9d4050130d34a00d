// Virtual hosts, and one of them: who has access, and its limits.

import { action, has, whyNotAdministrator } from "../access.js";
import { get, path, put, remove } from "../api.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { at, bytes, count, rate } from "../format.js";
import { href } from "../router.js";
import { facts, panel, table, tag, told } from "../table.js";

const LIMITS = ["max-connections", "max-queues"];

export function load(_, signal) {
  return get("vhosts", {}, signal);
}

export function render(context) {
  const rows = [...context.data].sort((one, other) => one.name.localeCompare(other.name));
  return [
    h("div", { class: "title" }, h("h1", {}, "Virtual hosts"), h("span", { class: "grow" }), action("Add virtual host", () => add(context), { tone: "primary", needs: ["PUT", "/vhosts/{vhost}"], why: whyNotAdministrator() })),
    table({
      label: "Virtual hosts", rows, query: {}, key: (row) => row.name, empty: "You have access to no virtual host.",
      columns: [
        { label: "Name", class: "long", cell: (row) => h("a", { class: "name", href: href(["vhosts", row.name]) }, row.name) },
        { label: "Description", wide: true, cell: (row) => row.description || "–" },
        { label: "Queue type", wide: true, cell: (row) => row.default_queue_type?.replace("undefined", "") || "classic" },
        { label: "Ready", num: true, cell: (row) => count(row.messages_ready ?? 0) },
        { label: "Unacked", num: true, cell: (row) => count(row.messages_unacknowledged ?? 0) },
        { label: "Publish", num: true, cell: (row) => rate(at(row, "message_stats.publish_details.rate") ?? 0) },
        { label: "Deliver", num: true, wide: true, cell: (row) => rate(at(row, "message_stats.deliver_get_details.rate") ?? 0) },
        { label: "From clients", num: true, wide: true, cell: (row) => `${bytes(Math.round(at(row, "recv_oct_details.rate") ?? 0))}/s` },
      ],
    }),
  ];
}

/** One virtual host. */
export const one = {
  async load({ params: { name } }, signal) {
    const where = path("vhosts", name);
    const [vhost, permissions, limits] = await Promise.all([get(where, {}, signal), has("GET", "/vhosts/{vhost}/permissions") ? get(`${where}/permissions`, {}, signal) : [], has("GET", "/vhost-limits/{vhost}") ? get(path("vhost-limits", name), {}, signal) : []]);
    return { vhost, permissions, limits: limits[0]?.value ?? {} };
  },

  render(context) {
    const { data: { vhost, permissions, limits } } = context;
    return [
      h("div", { class: "title" }, h("p", { class: "crumbs" }, h("a", { href: "#/vhosts" }, "Virtual hosts")), h("h1", {}, vhost.name), vhost.tags?.map?.((each) => tag(each)), h("span", { class: "grow" }),
        action("Delete", () => drop(context), { tone: "danger", needs: ["DELETE", "/vhosts/{vhost}"], why: whyNotAdministrator() })),
      h("div", { class: "columns" },
        panel("Properties", facts([["Description", vhost.description || "–"], ["Default queue type", vhost.default_queue_type?.replace("undefined", "") || "classic"], ["Messages", count(vhost.messages ?? 0)], ["Received", told(vhost.recv_oct, bytes)], ["Sent", told(vhost.send_oct, bytes)]])),
        has("GET", "/vhost-limits/{vhost}") && panel(["Limits", h("span", { class: "grow" }), action("Set limits", () => setLimits(context), { small: true, needs: ["PUT", "/vhost-limits/{vhost}/{limit}"], why: whyNotAdministrator() })],
          facts([["Connections", limits["max-connections"] ?? "unlimited"], ["Queues", limits["max-queues"] ?? "unlimited"]]))),
      has("GET", "/vhosts/{vhost}/permissions") && panel("Who has access", table({
        label: "Permissions", rows: permissions, query: {}, key: (row) => row.user, empty: "Nobody.",
        columns: [{ label: "User", cell: (row) => h("a", { class: "name", href: href(["users", row.user]) }, row.user) }, ...["configure", "write", "read"].map((each) => ({ label: each[0].toUpperCase() + each.slice(1), cell: (row) => h("code", {}, row[each]) }))],
      })),
    ];
  },
};

function add({ perform, user }) {
  return ask({
    title: "Add a virtual host",
    fields: [
      { name: "name", label: "Name", required: true }, { name: "description", label: "Description" },
      { name: "default_queue_type", label: "Default queue type", type: "select", options: ["classic", "quorum", "stream"] },
      { name: "access", label: `Give ${user.name} access`, type: "check", value: true },
    ],
    submit: "Add virtual host",
    act: async ({ name, access, ...rest }) => {
      await put(path("vhosts", name), rest);
      if (access) {
        await put(path("permissions", name, user.name), { configure: ".*", write: ".*", read: ".*" });
      }
      await perform(async () => {}, `Virtual host ${name} added.`);
    },
  });
}

function setLimits({ params: { name }, data: { limits }, perform }) {
  return ask({
    title: `Limits of ${name}`, text: h("p", {}, "Empty: unlimited."),
    fields: LIMITS.map((each) => ({ name: each, label: each === "max-queues" ? "Queues" : "Connections", type: "number", min: 0, value: limits[each] })),
    submit: "Set limits",
    act: (values) => perform(async () => {
      for (const each of LIMITS) {
        const where = path("vhost-limits", name, each);
        if (values[each] !== "") {
          await put(where, { value: Number(values[each]) });
        } else if (limits[each] !== undefined) {
          await remove(where);
        }
      }
    }, "Limits set."),
  });
}

function drop({ params: { name }, data: { vhost }, leave }) {
  return ask({
    title: `Delete virtual host ${name}?`, text: h("p", {}, "Everything in it is deleted: ", h("b", {}, count(vhost.messages ?? 0)), " messages, its queues, exchanges, policies and permissions. Its connections are closed."),
    submit: "Delete virtual host", tone: "danger", typed: name,
    act: async () => {
      await remove(path("vhosts", name));
      leave("#/vhosts", `Virtual host ${name} deleted.`);
    },
  });
}
