// The messages of a queue: looking at them without consuming them, getting and moving them.

import { action } from "../access.js";
import { path, post } from "../api.js";
import { ask, say } from "../dialogs.js";
import { h } from "../dom.js";
import { bytes, count, counted, exchangeName, moment, plain, since } from "../format.js";
import { channelLink } from "../links.js";
import { MOVE, PEEK, RETURN, can, move, peek, reason, returnDeadLetters } from "../extensions.js";
import { facts, fields, panel, tag } from "../table.js";

const STATES = [["ready", "Ready"], ["unacknowledged", "Unacknowledged"], ["waiting", "Waiting"]];
const MODES = [
  ["ack_requeue_true", "Return them to the queue, marked as redelivered"], ["ack_requeue_false", "Remove them from the queue"],
  ["reject_requeue_false", "Reject them: they are dead-lettered or dropped"],
];

/** The part of a queue's view. */
export function messagesPart(context) {
  const { state, data: { queue }, draw } = context;
  state.peek ??= { which: "ready", offset: 0, count: 20, format: "auto", rows: null, selected: new Set() };
  const { rows } = state.peek;
  const isStream = queue.type === "stream";
  if (can(PEEK) && rows === null && !state.peek.isLoading && !state.peek.problem) {
    show(context);
  }
  return [
    panel(null,
      h("div", { class: "list-bar" },
        can(PEEK)
          ? peekControls(context, isStream)
          : h("p", { class: "muted" }, "This broker cannot show messages without getting them."),
        h("span", { class: "grow" }),
        h("div", { class: "buttons" },
          action("Get…", () => getMessages(context), { needs: ["POST", "/queues/{vhost}/{name}/get"], why: isStream ? "A stream is read with a consumer." : undefined }),
          action("Return…", () => returnMessages(context), { why: isStream ? "A stream has no dead letters." : reason(RETURN) }),
          action("Move…", () => moveMessages(context), { why: reason(MOVE) }))),
      state.peek.problem && h("p", { class: "problem", role: "alert" }, state.peek.problem),
      rows === null ? h("div", { class: "empty" }, state.peek.isLoading ? "Loading…" : can(PEEK) ? "" : "Get messages to see them here.")
        : rows.length === 0 ? h("div", { class: "empty" }, "No messages.")
          : h("ol", { class: "messages" }, rows.map((row, index) => message(row, index, state.peek, draw)))),
  ];
}

function peekControls(context, isStream) {
  const { state: { peek: chosen }, data: { queue }, draw } = context;
  const reshow = (changes) => {
    Object.assign(chosen, changes);
    chosen.selected.clear();
    show(context);
  };
  return [
    !isStream && h("div", { class: "segments", role: "group", "aria-label": "Which messages" },
      STATES.map(([id, text]) => h("button", { type: "button", "aria-pressed": String(chosen.which === id), onclick: () => reshow({ which: id, offset: 0 }) }, `${text} ${id === "waiting" ? "" : count(queue[`messages_${id}`])}`))),
    h("label", {}, h("span", {}, isStream ? "from offset " : "from position "), h("input", { type: "number", class: "short", min: 0, value: chosen.offset, onchange: (event) => reshow({ offset: Math.max(0, Number(event.target.value)) }) })),
    h("label", {}, h("span", { class: "visually-hidden" }, "Format of bodies"),
      h("select", { value: chosen.format, onchange: (event) => { chosen.format = event.target.value; draw(); } }, [["auto", "JSON or text"], ["text", "text"], ["hex", "hex"]].map(([id, text]) => h("option", { value: id }, text)))),
    h("button", { type: "button", class: "small", onclick: () => reshow({}) }, "Load again"),
    h("button", { type: "button", class: "small", disabled: chosen.offset === 0, onclick: () => reshow({ offset: Math.max(0, chosen.offset - chosen.count) }) }, "Earlier"),
    h("button", { type: "button", class: "small", disabled: (chosen.rows?.length ?? 0) < chosen.count, onclick: () => reshow({ offset: chosen.offset + chosen.count }) }, "Later"),
  ];
}

async function show({ state, params: { vhost, name }, draw }) {
  const chosen = state.peek;
  chosen.isLoading = true;
  chosen.problem = "";
  try {
    const answer = await peek(vhost, name, { state: chosen.which, first: chosen.offset, count: chosen.count });
    chosen.rows = answer;
  } catch (error) {
    chosen.problem = error.message;
  } finally {
    chosen.isLoading = false;
  }
  draw();
}

function message(row, index, chosen, draw) {
  const properties = Array.isArray(row.properties) ? {} : row.properties ?? {};
  const { headers = {}, ...rest } = properties;
  const deaths = headers["x-death"];
  const id = row.position ?? index;
  chosen.open ??= new Set();
  const toggled = (event) => {
    if (event.currentTarget.open !== chosen.open.has(id)) {
      chosen.open[event.currentTarget.open ? "add" : "delete"](id);
      draw();
    }
  };
  const isOpen = chosen.open.has(id);
  const select = (event) => {
    chosen.selected[event.target.checked ? "add" : "delete"](row.id);
    draw();
  };
  const canMove = row.id !== undefined && row.state === "ready" && can(MOVE);
  return h("li", { key: `${id}` },
    canMove && h("input", { type: "checkbox", class: "choose", "aria-label": `Choose message ${id}`, checked: chosen.selected.has(row.id), onchange: select }),
    h("details", { ontoggle: toggled, open: isOpen },
    h("summary", {},
      h("span", { class: "position" }, `${id}`),
      h("code", { class: "route" }, `${exchangeName(row.exchange)} → ${row.routing_key}`),
      h("span", { class: "preview" }, bodyText(row, "text").slice(0, 160)),
      row.redelivered && row.state !== "unacknowledged" && tag("redelivered", "warn"), deaths && tag("dead-lettered", "bad"), properties.delivery_mode === 2 && tag("persistent"),
      h("span", { class: "muted size" }, bytes(row.payload_bytes))),
    isOpen && h("div", { class: "message-body" },
      h("pre", { tabindex: 0, "aria-label": "Body" }, bodyText(row, chosen.format)),
      h("div", {},
        facts([
          row.held_by && ["Held by", [h("code", {}, row.held_by.consumer_tag || "a get"), " on ", channelLink(row.held_by.channel)]],
          row.held_by?.since && ["Held for", since(row.held_by.since)],
          row.arrived_at && ["Arrived", `${moment(row.arrived_at)}, ${since(row.arrived_at)} ago`],
          row.due_at && ["Due", moment(row.due_at)],
          ...Object.entries(rest).map(([name, value]) => [name, plain(value)]),
          ["headers", fields(Object.fromEntries(Object.entries(headers).filter(([name]) => name !== "x-death")))],
        ]),
        deaths && h("div", {}, h("h3", {}, "Why it is dead-lettered"), h("ul", { class: "deaths" }, deaths.map((each) =>
          h("li", {}, h("b", {}, each.reason), ` in ${each.queue}, ${each.count === 1 ? "once" : `${count(each.count)} times`}, from ${exchangeName(each.exchange ?? "")}`))))))));
}

/** A body as JSON, text or hex. */
function bodyText(row, format) {
  const isBinary = row.payload_encoding === "base64";
  if (format === "hex") {
    return hex(isBinary ? Uint8Array.from(atob(row.payload), (each) => each.charCodeAt(0)) : new TextEncoder().encode(row.payload));
  }
  if (isBinary) {
    return format === "text" ? `(${row.payload_bytes} bytes that are no text)` : hex(Uint8Array.from(atob(row.payload), (each) => each.charCodeAt(0)));
  }
  if (format === "auto" && /^\s*[[{]/.test(row.payload)) {
    try {
      return JSON.stringify(JSON.parse(row.payload), null, 2);
    } catch {
      return row.payload;
    }
  }
  return row.payload;
}

function hex(content) {
  const lines = [];
  for (let start = 0; start < content.length; start += 16) {
    const part = [...content.slice(start, start + 16)];
    const numbers = part.map((each) => each.toString(16).padStart(2, "0")).join(" ");
    const text = part.map((each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${start.toString(16).padStart(6, "0")}  ${numbers.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

function getMessages({ params: { vhost, name }, state, reload }) {
  return ask({
    title: `Get messages from ${name}`,
    fields: [
      { name: "count", label: "How many", type: "number", value: 10, min: 1, max: 1000 },
      { name: "ackmode", label: "Afterwards", type: "select", options: MODES },
    ],
    submit: "Get messages",
    act: async ({ count: wanted, ackmode }) => {
      const rows = await post(`${path("queues", vhost, name)}/get`, { count: Number(wanted), ackmode, encoding: "auto", truncate: 65536 });
      Object.assign(state.peek, { rows, offset: 0, open: new Set(rows.length === 1 ? [0] : []) });
      say(rows.length ? `${rows.length} of the queue's messages.` : "The queue is empty.");
      await reload();
    },
  });
}

/** The chosen messages, or what a form says. */
function wanted({ selected }, values) {
  return selected.size > 0 ? { ids: [...selected] } : { count: Number(values.count) };
}

/** How many are to go, where none are chosen. */
function countField({ selected }, queue) {
  return selected.size === 0 && { name: "count", label: "How many, from the oldest", type: "number", value: queue.messages_ready, min: 1 };
}

function moveMessages({ params: { vhost, name }, data: { queue }, state: { peek: chosen }, perform }) {
  const isStream = queue.type === "stream";
  return ask({
    title: chosen.selected.size ? `Move ${chosen.selected.size} of the messages of ${name}` : `Move messages of ${name}`,
    text: h("p", {}, `${count(queue.messages_ready)} are ready. Those that move leave this queue and enter the other one in the same write to disk.`),
    fields: [
      { name: "destination", label: "To queue", required: true, hint: "In the same virtual host." },
      countField(chosen, queue),
      { name: "keep", label: "Copy: they stay here, too", type: "check", value: isStream },
    ],
    submit: "Move messages",
    act: async (values) => {
      const answer = await perform(() => move(vhost, name, { to_queue: values.destination, keep: values.keep, ...wanted(chosen, values) }));
      told(answer, chosen, `${values.keep ? "copied" : "moved"} to ${values.destination}`);
    },
  });
}

function returnMessages({ params: { vhost, name }, data: { queue }, state: { peek: chosen }, perform }) {
  return ask({
    title: chosen.selected.size ? `Return ${chosen.selected.size} dead letters` : `Return dead letters of ${name}`,
    text: h("p", {}, "Each goes back to the queue in which it died last, with the exchange and the routing key that it had there. It leaves this queue in the same write to disk."),
    fields: [countField(chosen, queue)],
    submit: "Return dead letters",
    act: async (values) => {
      const answer = await perform(() => returnDeadLetters(vhost, name, wanted(chosen, values)));
      told(answer, chosen, "returned");
    },
  });
}

/** Say what has moved, and why not all. */
function told(answer, chosen, what) {
  chosen.selected.clear();
  chosen.rows = null;
  say(`${counted(answer.moved, "message")} ${what}.`);
  if (answer.stopped) {
    say(`Then it stopped: ${answer.stopped}.`, "bad");
  }
}
