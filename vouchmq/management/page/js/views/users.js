// Users, and the permissions of one of them.

import { action, has, whyNotAdministrator } from "../access.js";
import { get, path, put, remove } from "../api.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { href } from "../router.js";
import { panel, table, tag } from "../table.js";

const TAGS = ["administrator", "monitoring", "policymaker", "management", "impersonator"];
const HINTS = { administrator: "everything", monitoring: "sees all virtual hosts and nodes", policymaker: "policies of own virtual hosts", management: "own virtual hosts and connections", impersonator: "may publish with another user-id" };

const tagsOf = (user) => (Array.isArray(user.tags) ? user.tags : String(user.tags).split(",").filter(Boolean));

export async function load(_, signal) {
  const [users, permissions] = await Promise.all([get("users", {}, signal), has("GET", "/permissions") ? get("permissions", {}, signal) : []]);
  return { users, permissions };
}

export function render(context) {
  const { data: { users, permissions }, query, go } = context;
  const wanted = (query.filter ?? "").toLowerCase();
  const rows = users.filter((each) => each.name.toLowerCase().includes(wanted)).sort((one, other) => one.name.localeCompare(other.name));
  const vhostsOf = (user) => permissions.filter((each) => each.user === user.name).map((each) => each.vhost);
  return [
    h("div", { class: "title" }, h("h1", {}, "Users"), h("span", { class: "grow" }), action("Add user", () => edit(null, context), { tone: "primary", needs: ["PUT", "/users/{user}"], why: whyNotAdministrator() })),
    h("div", { class: "list-bar" }, h("label", { class: "filter" }, h("span", { class: "visually-hidden" }, "Filter users"),
      h("input", { type: "search", id: "filter", placeholder: "Filter users", value: query.filter ?? "", oninput: (event) => go({ ...query, filter: event.target.value || undefined }) }))),
    table({
      label: "Users", rows, query: {}, key: (row) => row.name, empty: "No user has a name like this.",
      columns: [
        { label: "Name", cell: (row) => h("a", { class: "name", href: href(["users", row.name]) }, row.name) },
        { label: "Tags", cell: (row) => h("span", { class: "tags" }, tagsOf(row).map((each) => tag(each))) },
        { label: "Virtual hosts", cell: (row) => vhostsOf(row).join(", ") || tag("no access", "warn") },
        { label: "Password", wide: true, cell: (row) => (row.password_hash ? "set" : tag("none", "warn", "Nobody can log in with a password")) },
      ],
    }),
  ];
}

/** One user. */
export const one = {
  async load({ params: { name } }, signal) {
    const where = path("users", name);
    const [user, permissions, topics] = await Promise.all([get(where, {}, signal), has("GET", "/users/{user}/permissions") ? get(`${where}/permissions`, {}, signal) : [], has("GET", "/users/{user}/topic-permissions") ? get(`${where}/topic-permissions`, {}, signal) : []]);
    return { user, permissions, topics };
  },

  render(context) {
    const { data: { user, permissions, topics }, user: me } = context;
    return [
      h("div", { class: "title" }, h("p", { class: "crumbs" }, h("a", { href: "#/users" }, "Users")), h("h1", {}, user.name), tagsOf(user).map((each) => tag(each)), h("span", { class: "grow" }),
        action("Edit", () => edit(user, context), { needs: ["PUT", "/users/{user}"] }), action("Delete", () => drop(user, context), { tone: "danger", needs: ["DELETE", "/users/{user}"], why: user.name === me.name ? "This is you." : undefined })),
      panel(["Permissions", h("span", { class: "grow" }), action("Set permissions", () => setPermission(null, context), { small: true, needs: ["PUT", "/permissions/{vhost}/{user}"] })],
        h("p", { class: "muted" }, "Regular expressions that names of queues and exchanges must match; an empty one matches nothing."),
        table({
          label: "Permissions", rows: permissions, query: {}, key: (row) => row.vhost, empty: "This user has access to no virtual host.",
          columns: [
            { label: "Virtual host", cell: (row) => row.vhost },
            ...["configure", "write", "read"].map((each) => ({ label: each[0].toUpperCase() + each.slice(1), cell: (row) => h("code", {}, row[each]) })),
            { label: h("span", { class: "visually-hidden" }, "Change"), class: "acts", cell: (row) => [action("Edit", () => setPermission(row, context), { small: true, needs: ["PUT", "/permissions/{vhost}/{user}"] }), " ", action("Clear", () => clear("permissions", row, context), { small: true })] },
          ],
        })),
      panel(["Topic permissions", h("span", { class: "grow" }), action("Set topic permissions", () => setTopic(null, context), { small: true, needs: ["PUT", "/topic-permissions/{vhost}/{user}"] })],
        table({
          label: "Topic permissions", rows: topics, query: {}, key: (row) => `${row.vhost} ${row.exchange}`, empty: "None: routing keys are not restricted.",
          columns: [
            { label: "Virtual host", cell: (row) => row.vhost }, { label: "Exchange", cell: (row) => row.exchange },
            { label: "Write", cell: (row) => h("code", {}, row.write) }, { label: "Read", cell: (row) => h("code", {}, row.read) },
            { label: h("span", { class: "visually-hidden" }, "Change"), class: "acts", cell: (row) => [action("Edit", () => setTopic(row, context), { small: true, needs: ["PUT", "/topic-permissions/{vhost}/{user}"] }), " ", action("Clear", () => clear("topic-permissions", row, context), { small: true })] },
          ],
        })),
    ];
  },
};

function edit(user, { perform }) {
  const held = user ? tagsOf(user) : [];
  return ask({
    title: user ? `Edit ${user.name}` : "Add a user",
    fields: [
      !user && { name: "name", label: "Name", required: true },
      { name: "password", label: user ? "New password" : "Password", type: "password", autocomplete: "new-password", required: !user, hint: user ? "Empty: the password stays." : undefined },
      ...TAGS.map((each) => ({ name: `tag-${each}`, label: each, type: "check", value: held.includes(each), hint: HINTS[each] })),
    ],
    submit: user ? "Save" : "Add user",
    act: async (values) => {
      const others = held.filter((each) => !TAGS.includes(each));
      const tags = [...TAGS.filter((each) => values[`tag-${each}`]), ...others].join(",");
      const secret = values.password ? { password: values.password } : { password_hash: user.password_hash, hashing_algorithm: user.hashing_algorithm };
      const name = user?.name ?? values.name;
      await perform(() => put(path("users", name), { ...secret, tags }), user ? "Saved." : `User ${name} added.`);
      location.hash = href(["users", name]);
    },
  });
}

function drop(user, { leave }) {
  return ask({
    title: `Delete user ${user.name}?`, text: h("p", {}, "Its permissions are deleted too, and its connections are closed."), submit: "Delete user", tone: "danger", typed: user.name,
    act: async () => {
      await remove(path("users", user.name));
      leave("#/users", `User ${user.name} deleted.`);
    },
  });
}

function setPermission(row, { params: { name }, vhosts, perform }) {
  return ask({
    title: `Permissions of ${name}`,
    fields: [
      row ? null : { name: "vhost", label: "Virtual host", type: "select", options: vhosts },
      { name: "configure", label: "Configure", value: row?.configure ?? ".*", hint: "Declare and delete." },
      { name: "write", label: "Write", value: row?.write ?? ".*", hint: "Publish, and bind a queue." },
      { name: "read", label: "Read", value: row?.read ?? ".*", hint: "Consume, get and purge, and bind from an exchange." },
    ],
    submit: "Set permissions",
    act: ({ vhost, ...rest }) => perform(() => put(path("permissions", row?.vhost ?? vhost, name), rest), "Permissions set."),
  });
}

function setTopic(row, { params: { name }, vhosts, perform }) {
  return ask({
    title: `Topic permissions of ${name}`,
    fields: [
      row ? null : { name: "vhost", label: "Virtual host", type: "select", options: vhosts },
      row ? null : { name: "exchange", label: "Topic exchange", value: "amq.topic", required: true },
      { name: "write", label: "Write", value: row?.write ?? ".*", hint: "Routing keys to publish with." },
      { name: "read", label: "Read", value: row?.read ?? ".*", hint: "Routing keys to bind with." },
    ],
    submit: "Set topic permissions",
    act: ({ vhost, exchange, write, read }) => perform(() => put(path("topic-permissions", row?.vhost ?? vhost, name), { exchange: row?.exchange ?? exchange, write, read }), "Topic permissions set."),
  });
}

function clear(kind, row, { params: { name }, perform }) {
  const where = kind === "topic-permissions" ? path(kind, row.vhost, name, row.exchange) : path(kind, row.vhost, name);
  return ask({
    title: `Clear these ${kind.replace("-", " ")}?`, text: h("p", {}, `${name} loses them in virtual host ${row.vhost} at once, also on open connections.`), submit: "Clear", tone: "danger",
    act: () => perform(() => remove(where), "Cleared."),
  });
}
