// The topology as a drawing: exchanges and queues as boxes in columns, bindings as curves.

import { h } from "./dom.js";
import { exchangeName } from "./format.js";

const BOX = { width: 168, height: 28, gapX: 128, gapY: 14 };
const BEND = 18;
const MOST_COLUMNS = 5;
// Characters that fit into a box, and beside a curve.
const NAME = 23;
const KEY = 16;
export const MOST_NODES = 80;

/** Which box a binding starts or ends at. */
const idOf = (kind, name) => `${kind[0]}:${name}`;

/**
 * A drawing of bindings.
 * @param bindings - as the API returns them
 * @param link - the address of a box: (kind, name)
 * @param centre - the id of the box that the drawing is about, or undefined
 */
export function topology(bindings, link, centre = undefined) {
  const graph = graphOf(bindings, centre);
  if (graph.nodes.size === 0) {
    return h("div", { class: "empty" }, "No bindings.");
  }
  const size = place(graph);
  const edges = [...graph.edges.values()];
  return h("div", { class: "topology", tabindex: 0, role: "region", "aria-label": "Topology" },
    h("svg", { viewBox: `0 0 ${size.width} ${size.height}`, style: { width: `${size.width}px`, "max-width": `max(100%, ${Math.min(size.width, 700)}px)` }, role: "img", "aria-label": describe(edges) },
      edges.map((edge) => curve(edge, graph)),
      [...graph.nodes.values()].map((node) => box(node, link, node.id === centre))),
    graph.omitted > 0 && h("p", { class: "muted" }, `${graph.omitted} more bindings are not drawn.`));
}

function graphOf(bindings, centre) {
  const nodes = new Map();
  const edges = new Map();
  let omitted = 0;
  const node = (kind, name) => {
    const id = idOf(kind, name);
    if (!nodes.has(id)) {
      if (nodes.size >= MOST_NODES) {
        return null;
      }
      nodes.set(id, { id, kind, name, column: 0 });
    }
    return nodes.get(id);
  };
  if (centre) {
    node(centre[0] === "e" ? "exchange" : "queue", centre.slice(2));
  }
  for (const binding of bindings) {
    const from = node("exchange", binding.source);
    const to = node(binding.destination_type, binding.destination);
    if (!from || !to) {
      omitted += 1;
      continue;
    }
    const id = `${from.id} ${to.id}`;
    const edge = edges.get(id) ?? { id, from: from.id, to: to.id, keys: [] };
    edge.keys.push(keyOf(binding));
    edges.set(id, edge);
  }
  return { nodes, edges, omitted };
}

function keyOf(binding) {
  const given = Object.entries(binding.arguments ?? {}).map(([name, value]) => `${name}=${value}`);
  return [binding.routing_key, given.length ? `{${given.join(", ")}}` : ""].filter(Boolean).join(" ");
}

/**
 * Columns by the longest way from a source; queues all stand in the last one. A binding that skips
 * columns gets a bend in each of them, which has a place of its own among the boxes.
 */
function place(graph) {
  const edges = [...graph.edges.values()];
  for (let round = 0; round < MOST_COLUMNS; round += 1) {
    for (const edge of edges) {
      const [from, to] = [graph.nodes.get(edge.from), graph.nodes.get(edge.to)];
      if (from !== to && to.column <= from.column && from.column < MOST_COLUMNS) {
        to.column = from.column + 1;
      }
    }
  }
  const nodes = [...graph.nodes.values()];
  const last = Math.max(...nodes.map((each) => each.column), nodes.some((each) => each.kind === "queue") ? 1 : 0);
  for (const each of nodes) {
    if (each.kind === "queue") {
      each.column = last;
    }
  }
  const columns = Array.from({ length: last + 1 }, () => []);
  for (const each of nodes) {
    columns[each.column].push(each);
  }
  const steps = edges.flatMap((edge) => stepsOf(edge, graph, columns));
  for (let round = 0; round < 4; round += 1) {
    for (let index = 1; index <= last; index += 1) {
      order(columns[index], columns[index - 1], steps, "to", "from");
    }
    for (let index = last - 1; index >= 0; index -= 1) {
      order(columns[index], columns[index + 1], steps, "from", "to");
    }
  }
  const heights = columns.map((column) => column.reduce((sum, each) => sum + heightOf(each), 0));
  const height = Math.max(...heights);
  columns.forEach((column, index) => {
    let y = 4 + (height - heights[index]) / 2;
    for (const each of column) {
      each.x = 4 + index * (BOX.width + BOX.gapX);
      each.y = y;
      y += heightOf(each);
    }
  });
  return { width: columns.length * (BOX.width + BOX.gapX) - BOX.gapX + 8, height: height - BOX.gapY + 8 };
}

const heightOf = (node) => (node.kind === "bend" ? BEND : BOX.height + BOX.gapY);
const middleOf = (node) => node.y + (node.kind === "bend" ? 0 : BOX.height / 2);

/** A binding as steps from one column to the next; adds the bends between. */
function stepsOf(edge, graph, columns) {
  const [from, to] = [graph.nodes.get(edge.from), graph.nodes.get(edge.to)];
  edge.bends = [];
  let before = from.id;
  const steps = [];
  for (let column = from.column + 1; column < to.column; column += 1) {
    const bend = { id: `b:${edge.id} ${column}`, kind: "bend", name: "", column };
    columns[column].push(bend);
    edge.bends.push(bend);
    steps.push({ from: before, to: bend.id });
    before = bend.id;
  }
  return [...steps, { from: before, to: to.id }];
}

/** Each box near those that it is bound to: fewer curves cross. */
function order(column, beside, steps, own, other) {
  const rowOf = new Map(beside.map((each, row) => [each.id, row]));
  column.forEach((each, row) => {
    const rows = steps.filter((step) => step[own] === each.id && rowOf.has(step[other])).map((step) => rowOf.get(step[other]));
    each.weight = rows.length ? rows.reduce((sum, value) => sum + value, 0) / rows.length : row;
  });
  column.sort((one, another) => one.weight - another.weight || one.name.localeCompare(another.name));
}

function curve(edge, graph) {
  const [from, to] = [graph.nodes.get(edge.from), graph.nodes.get(edge.to)];
  let [x, y] = [from.x + BOX.width, middleOf(from)];
  let line = `M${x} ${y}`;
  for (const bend of edge.bends) {
    line += `${towards(x, y, bend.x, bend.y)}L${bend.x + BOX.width} ${bend.y}`;
    [x, y] = [bend.x + BOX.width, bend.y];
  }
  const [x2, y2] = [to.x, middleOf(to)];
  line += towards(x, y, x2, y2);
  const keys = edge.keys.filter(Boolean);
  const label = keys.length > 1 ? `${cut(keys[0], KEY)} +${keys.length - 1}` : cut(keys[0] ?? "", KEY);
  return h("g", { key: `c ${edge.id}`, class: "binding" },
    h("title", {}, edge.keys.map((key) => key || "(empty routing key)").join("\n")),
    h("path", { d: line }),
    h("path", { class: "head", d: `M${x2 - 6} ${y2 - 3.5}L${x2} ${y2}L${x2 - 6} ${y2 + 3.5}Z` }),
    label && h("text", { x: x2 - 10, y: y2 - 5, "text-anchor": "end" }, label));
}

function towards(x1, y1, x2, y2) {
  const bend = Math.abs(x2 - x1) / 2;
  return `C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
}

function cut(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function box(node, link, isCentre) {
  const name = node.kind === "exchange" ? exchangeName(node.name) : node.name;
  return h("a", { key: node.id, href: link(node.kind, node.name), class: `box ${node.kind} ${isCentre ? "centre" : ""}` },
    h("title", {}, `${node.kind} ${name}`),
    h("rect", { x: node.x, y: node.y, width: BOX.width, height: BOX.height, rx: node.kind === "exchange" ? 14 : 3 }),
    h("text", { x: node.x + BOX.width / 2, y: node.y + BOX.height / 2 + 4, "text-anchor": "middle" }, cut(name, NAME)));
}

function describe(edges) {
  return edges.slice(0, 20).map((edge) => `${edge.from.slice(2) || "default exchange"} to ${edge.to.slice(2)}`).join("; ");
}
