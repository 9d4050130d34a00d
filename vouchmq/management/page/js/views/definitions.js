// Definitions: export to a file, import from one.

import { get, path, postText } from "../api.js";
import { form, say, tell } from "../dialogs.js";
import { h } from "../dom.js";
import { counted } from "../format.js";
import { panel } from "../table.js";

const KINDS = ["users", "vhosts", "permissions", "policies", "exchanges", "queues", "bindings"];

export async function load() {
  return {};
}

export function render({ vhost }) {
  const where = vhost ? path("definitions", vhost) : "definitions";
  const whole = vhost ? `virtual host ${vhost}` : "the broker";
  return [
    h("div", { class: "title" }, h("h1", {}, "Definitions")),
    h("div", { class: "columns" },
      panel("Export",
        h("p", {}, `Virtual hosts, users, permissions, policies, exchanges, queues and bindings of ${whole}, as JSON. Messages are not in it. RabbitMQ imports it too.`),
        form({ key: `export ${vhost}`, fields: [], submit: "Export", act: () => download(where, vhost) })),
      panel("Import",
        h("p", {}, `Into ${whole}. What the file names is added or changed; nothing is deleted. Files exported from RabbitMQ work.`),
        form({ key: `import ${vhost}`, fields: [{ name: "file", label: "File", type: "file", accept: ".json,application/json", required: true }], submit: "Import", act: ({ file }) => upload(file, where) }))),
  ];
}

async function download(where, vhost) {
  const definitions = await get(where);
  const url = URL.createObjectURL(new Blob([JSON.stringify(definitions, null, 2)], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `definitions-${vhost ? encodeURIComponent(vhost) : "all"}-${new Date().toISOString().slice(0, 10)}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
  say(`Exported ${KINDS.filter((each) => definitions[each]?.length).map((each) => counted(definitions[each].length, each.replace(/ies$/, "y").replace(/s$/, "")).replace("policys", "policies")).join(", ")}.`);
}

async function upload(file, where) {
  let answer;
  try {
    answer = await postText(where, await file.text());
  } catch (error) {
    throw new Error(`${file.name}: ${error.message}`);
  }
  say(`${file.name} imported.`);
  if (answer?.skipped?.length) {
    tell({
      title: `Not imported from ${file.name}`,
      text: [
        h("p", {}, "This broker does not have what the file asks for here. All the rest is imported."),
        h("ul", {}, answer.skipped.map((each) => h("li", {}, each))),
      ],
    });
  }
}
