// What surrounds every view: navigation, virtual host, refresh, theme, and the keyboard.

import * as access from "./access.js";
import { ask } from "./dialogs.js";
import { h } from "./dom.js";
import { moment, sentence, since } from "./format.js";

// Text, address, key, the route that the view is made from, and who may see it.
const GROUPS = [
  ["", [["Overview", "", "o", "/overview"]]],
  ["Messages", [["Queues", "queues", "q", "/queues"], ["Exchanges", "exchanges", "e", "/exchanges"], ["Streams", "streams", "s", "/queues"], ["Dead letters", "dead-letters", "d", "/queues"]]],
  ["Clients", [["Connections", "connections", "c", "/connections"], ["Channels", "channels", "h", "/channels"], ["Consumers", "consumers", "u", "/consumers"]]],
  ["Administration", [
    ["Virtual hosts", "vhosts", "v", "/vhosts"], ["Users", "users", "", "/users", access.isAdministrator],
    ["Policies", "policies", "p", "/policies", access.maySetPolicies], ["Definitions", "definitions", "", "/definitions", access.isAdministrator],
    ["Ledger", "ledger", "l", "/whoami", access.mayMonitor],
  ]],
];
const EVERY = [[1000, "1 s"], [5000, "5 s"], [30000, "30 s"], [0, "paused"]];

/** The whole page around the nodes of a view. */
export function shell(app, content, commands) {
  return [
    h("a", { class: "skip", href: "#main", onclick: skip, key: "skip" }, "Skip to content"),
    h("header", { class: "top", key: "top" },
      h("button", { type: "button", class: "menu-button", "aria-label": "Menu", "aria-expanded": String(app.isMenuOpen), "aria-controls": "nav", onclick: () => commands.toggleMenu(!app.isMenuOpen) }, "☰"),
      h("a", { href: "#/", class: "brand" }, "VouchMQ"),
      h("span", { class: "node" }, app.nodes[0]?.name ?? ""),
      h("span", { class: "grow" }),
      h("label", { class: "choice" }, h("span", { class: "choice-label" }, "Virtual host"),
        h("select", { value: app.vhost, onchange: (event) => commands.chooseVhost(event.target.value) },
          h("option", { value: "" }, "all"), app.vhosts.map((name) => h("option", { value: name, key: name, selected: name === app.vhost }, name)))),
      h("label", { class: "choice" }, h("span", { class: "choice-label" }, "Refresh"),
        h("select", { value: String(app.everyMs), title: app.loadedAt ? `Loaded at ${moment(app.loadedAt).slice(11)}` : "", onchange: (event) => commands.chooseEvery(Number(event.target.value)) },
          EVERY.map(([ms, text]) => h("option", { value: String(ms) }, text)))),
      h("label", { class: "choice theme" }, h("span", { class: "choice-label" }, "Theme"),
        h("select", { value: document.documentElement.dataset.theme ?? "", onchange: (event) => commands.chooseTheme(event.target.value) },
          h("option", { value: "" }, "system"), h("option", { value: "light" }, "light"), h("option", { value: "dark" }, "dark"))),
      h("span", { class: "user", title: `Tags: ${app.session.user.tags.join(", ") || "none"}` }, app.session.user.name),
      h("button", { type: "button", class: "small", onclick: commands.signOut }, "Sign out")),
    h("nav", { id: "nav", class: app.isMenuOpen ? "side open" : "side", key: "side", "aria-label": "Views" }, GROUPS.map(([title, items]) => group(title, items, app))),
    h("main", { id: "main", key: "main", tabindex: -1 }, problem(app), alarms(app), content),
  ];
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function isOffered([, , , route, may]) {
  return access.has("GET", route) && (!may || may());
}

function group(title, items, app) {
  const shown = items.filter(isOffered);
  if (shown.length === 0) {
    return null;
  }
  return h("div", { class: "nav-group", key: title },
    title && h("h2", {}, title),
    h("ul", {}, shown.map(([text, to]) => {
      const isHere = (app.route?.at.split("/")[0] ?? "") === to;
      return h("li", { key: to }, h("a", { href: `#/${to}`, "aria-current": isHere ? "page" : undefined }, text));
    })));
}

/** Why nothing new is shown, and of when what is shown is. */
function problem(app) {
  return app.problem && h("div", { class: "problem-box", role: "alert", key: "problem" }, sentence(app.problem),
    app.answeredAt > 0 && ` The last answer was at ${moment(app.answeredAt)}, ${since(app.answeredAt)} ago.`,
    app.data !== null && " What is shown is older.");
}

function alarms(app) {
  const raised = app.nodes.flatMap((node) => [
    node.mem_alarm && "Memory alarm: publishers are blocked until memory is below its limit.",
    node.storage_alarm && "Storage alarm: the disk refuses writes, and nothing is confirmed until it takes them again.",
    node.disk_free_alarm && "Disk alarm: publishers are blocked until there is more free space.",
    node.replication_alarm && "Replication alarm: publishers are blocked until the shared log commits again.",
  ].filter(Boolean));
  return raised.map((text) => h("div", { class: "problem-box", role: "alert", key: text }, text));
}

let prefix = 0;

/** Keys: `/` filter, `g` and a letter for a view, `r` refresh, `?` this list. */
export function shortcuts(event, commands) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) {
    return;
  }
  const items = GROUPS.flatMap(([, each]) => each).filter((each) => each[2] && isOffered(each));
  const chosen = Date.now() - prefix < 1500 && items.find(([, , letter]) => letter === event.key);
  prefix = event.key === "g" ? Date.now() : 0;
  if (chosen) {
    location.hash = `#/${chosen[1]}`;
  } else if (event.key === "/") {
    document.getElementById("filter")?.focus();
    event.preventDefault();
  } else if (event.key === "r") {
    commands.reload();
  } else if (event.key === "Escape") {
    commands.toggleMenu(false);
  } else if (event.key === "?") {
    ask({
      title: "Keyboard",
      text: h("dl", { class: "keys" },
        [["/", "filter"], ["r", "load again"], ["?", "this list"], ...items.map(([text, , letter]) => [`g ${letter}`, text])].map(([key, text]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)))),
      submit: "Close", act: async () => {},
    });
  }
}
