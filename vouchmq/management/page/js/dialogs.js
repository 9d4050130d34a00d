// Dialogs, forms in them, and short messages about what was done.

import { create, h } from "./dom.js";

/** Say that something was done, or that it failed. */
export function say(text, tone = "good") {
  const note = create(h("div", { class: `toast ${tone}` }, text));
  const list = document.getElementById("messages");
  list.append(note);
  while (list.childElementCount > 4) {
    list.firstElementChild.remove();
  }
  setTimeout(() => note.remove(), tone === "bad" ? 12000 : 5000);
}

let serial = 0;

/**
 * One field of a form.
 * @param spec - {name, label, type, value, options, hint, required, placeholder, list, rows}
 */
export function field(spec) {
  serial += 1;
  const id = `field-${serial}`;
  const hint = spec.hint ? `${id}-hint` : undefined;
  const shared = { id, name: spec.name, required: spec.required, "aria-describedby": hint, autocomplete: spec.autocomplete ?? "off", spellcheck: "false" };
  if (spec.type === "check") {
    return h("div", { class: "field check-field" },
      h("label", { for: id }, h("input", { ...shared, type: "checkbox", checked: Boolean(spec.value), autocomplete: undefined }), spec.label),
      spec.hint && h("small", { id: hint }, spec.hint));
  }
  let input;
  if (spec.type === "select") {
    input = h("select", { ...shared, value: spec.value, autocomplete: undefined }, spec.options.map((each) => {
      const [value, text] = Array.isArray(each) ? each : [each, each];
      return h("option", { value }, text);
    }));
  } else if (spec.type === "text-area") {
    input = h("textarea", { ...shared, rows: spec.rows ?? 6, value: spec.value ?? "", placeholder: spec.placeholder });
  } else if (spec.type === "table") {
    input = tableField(spec, id);
  } else {
    input = h("input", { ...shared, type: spec.type ?? "text", value: spec.value ?? "", placeholder: spec.placeholder, min: spec.min, max: spec.max, accept: spec.accept, list: spec.list });
  }
  return h("div", { class: "field" },
    spec.type === "table" ? h("span", { class: "label", id: `${id}-label` }, spec.label) : h("label", { for: id }, spec.label), input,
    spec.hint && h("small", { id: hint }, spec.hint));
}

/** Rows of name, value and type: arguments, headers, a policy's definition. */
function tableField(spec, id) {
  const given = Object.entries(spec.value ?? {}).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value), typeOf(value)]);
  const list = `${id}-names`;
  const row = ([name, value, type]) => h("div", { class: "table-row" },
    h("input", { "data-part": "name", "aria-label": "Name", placeholder: "name", value: name, list: spec.names ? list : undefined, spellcheck: "false", autocomplete: "off", onchange: guessType }),
    h("input", { "data-part": "value", "aria-label": "Value", placeholder: "value", value, spellcheck: "false", autocomplete: "off" }),
    h("select", { "data-part": "type", "aria-label": "Type", value: type }, ["string", "number", "boolean", "JSON"].map((each) => h("option", { value: each }, each))),
    h("button", { type: "button", class: "small", "aria-label": "Remove row", onclick: (event) => event.currentTarget.parentNode.remove() }, "×"));
  const add = (event) => event.currentTarget.before(create(row(["", "", spec.defaultType ?? "string"])));
  return h("div", { class: "table-field", "data-table": spec.name, role: "group", "aria-labelledby": `${id}-label`, own: true },
    spec.names && h("datalist", { id: list }, spec.names.map((each) => h("option", { value: each }))),
    given.map(row),
    h("button", { type: "button", class: "small", onclick: add }, "Add"));
}

/** Most names are those of numbers or of strings only. */
function guessType(event) {
  const { value, parentNode } = event.target;
  const type = /(ttl|expires|length|bytes|limit|priority|timestamp)$/.test(value) ? "number" : /single-active/.test(value) ? "boolean" : "";
  if (type) {
    parentNode.querySelector("[data-part=type]").value = type;
  }
}

function typeOf(value) {
  const type = typeof value;
  return type === "string" || type === "number" || type === "boolean" ? type : "JSON";
}

/** The values of a form by name. Throws an Error whose text is for the user. */
export function valuesOf(form) {
  const values = {};
  for (const input of form.elements) {
    if (input.name) {
      values[input.name] = input.type === "checkbox" ? input.checked : input.type === "file" ? input.files[0] : input.value;
    }
  }
  for (const group of form.querySelectorAll("[data-table]")) {
    values[group.dataset.table] = Object.fromEntries([...group.querySelectorAll(".table-row")].map(entryOf).filter(Boolean));
  }
  return values;
}

function entryOf(row) {
  const part = (name) => row.querySelector(`[data-part=${name}]`).value;
  const [name, value, type] = [part("name").trim(), part("value"), part("type")];
  if (!name) {
    return null;
  }
  if (type === "number") {
    if (value.trim() === "" || !Number.isFinite(Number(value))) {
      throw new Error(`${name}: ${value || "nothing"} is not a number.`);
    }
    return [name, Number(value)];
  }
  if (type === "boolean") {
    if (value !== "true" && value !== "false") {
      throw new Error(`${name}: a boolean is true or false.`);
    }
    return [name, value === "true"];
  }
  if (type === "JSON") {
    try {
      return [name, JSON.parse(value)];
    } catch {
      throw new Error(`${name}: this is not JSON.`);
    }
  }
  return [name, value];
}

/**
 * A form that does something when it is submitted, and shows why it could not.
 * @param act - gets the values; may throw
 */
export function form({ fields, submit, act, extra, tone = "", key }) {
  const submitted = async (event) => {
    event.preventDefault();
    const element = event.currentTarget;
    const problem = element.querySelector(".problem");
    const button = element.querySelector("button[type=submit]");
    problem.textContent = "";
    button.disabled = true;
    try {
      await act(valuesOf(element), element);
    } catch (error) {
      problem.textContent = error.message;
    } finally {
      button.disabled = false;
    }
  };
  return h("form", { class: "form", key, own: true, onsubmit: submitted },
    fields.filter(Boolean).map((each) => (each.children ? each : field(each))),
    h("p", { class: "problem", role: "alert" }),
    h("div", { class: "buttons" }, h("button", { type: "submit", class: tone || "primary" }, submit), extra));
}

/** Open a dialog that only says something. */
export function tell({ title, text }) {
  serial += 1;
  const heading = `dialog-${serial}`;
  const dialog = create(h("dialog", { class: "dialog", "aria-labelledby": heading },
    h("h2", { id: heading }, title),
    h("div", { class: "dialog-text" }, text),
    h("div", { class: "buttons" }, h("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "Close"))));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/**
 * Open a dialog with a form. Resolves to true when `act` has succeeded, false when it was cancelled.
 * @param typed - what has to be typed before a dangerous action, or undefined
 */
export function ask({ title, text, fields = [], submit, act, tone, typed }) {
  return new Promise((resolve) => {
    serial += 1;
    const heading = `dialog-${serial}`;
    const all = typed === undefined ? fields : [...fields, { name: "typed", label: `Type ${typed} to confirm`, required: true }];
    const dialog = create(h("dialog", { class: "dialog", "aria-labelledby": heading },
      h("h2", { id: heading }, title),
      text && h("div", { class: "dialog-text" }, text),
      form({
        fields: all, submit, tone,
        act: async (values) => {
          if (typed !== undefined && values.typed !== typed) {
            throw new Error(`Type ${typed} to confirm.`);
          }
          await act(values);
          dialog.returnValue = "done";
          dialog.close("done");
        },
        extra: h("button", { type: "button", onclick: () => dialog.close("") }, "Cancel"),
      })));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "done");
    });
    document.body.append(dialog);
    dialog.showModal();
    dialog.querySelector("input, select, textarea, button")?.focus();
  });
}
