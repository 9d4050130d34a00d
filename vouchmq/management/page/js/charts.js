// Charts as SVG: a sparkline, a chart over time with a legend, and a bar of a share.

import { h } from "./dom.js";
import { moment, short } from "./format.js";

const WIDTH = 600;
const HEIGHT = 120;
const pointed = new Map();
let redraw = () => {};

/** What to call when a pointer has moved over a chart. */
export function onPointed(job) {
  redraw = job;
}

function scaleOf(highest) {
  if (highest <= 0) {
    return 1;
  }
  const power = 10 ** Math.floor(Math.log10(highest));
  return [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= highest);
}

function line(points, from, until, top, width, height) {
  const span = Math.max(1, until - from);
  return points.map(([when, value], index) => {
    const x = ((when - from) / span) * width;
    const y = height - (value / top) * (height - 2) - 1;
    return `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
  }).join("");
}

/** A line without axes, for a table or beside a number. */
export function sparkline(points, tone, label) {
  const shown = points.slice(-60);
  const until = shown.at(-1)?.[0] ?? 1;
  const from = Math.min(shown[0]?.[0] ?? 0, until - 30000);
  const top = Math.max(1e-9, ...shown.map(([, value]) => value));
  return h("svg", { class: `spark ${tone}`, viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": label },
    h("path", { class: "line", d: shown.length > 1 ? line(shown, from, until, top * 1.1, 100, 24) : "M0 23L100 23", "vector-effect": "non-scaling-stroke" }));
}

/**
 * A chart over time.
 * @param id - tells charts of one view apart
 * @param series - [{label, tone, points}]
 * @param show - makes text of a value
 */
export function chart(id, title, series, show = short) {
  const points = series.flatMap((each) => each.points);
  // Of what has never happened there are no points, but it is now all the same.
  const until = points.length ? Math.max(...points.map(([when]) => when)) : Date.now();
  const from = Math.min(...points.map(([when]) => when), until - 60000);
  const top = scaleOf(Math.max(0, ...points.map(([, value]) => value)));
  // Of what is counted in wholes there is no half.
  const middle = show(top / 2) === show(top) ? "" : show(top / 2);
  const cursor = pointed.get(id);
  const moved = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    pointed.set(id, from + ((event.clientX - box.left) / box.width) * (until - from));
    redraw();
  };
  const left = () => {
    pointed.delete(id);
    redraw();
  };
  const valueOf = (each) => (cursor === undefined ? each.points.at(-1) : nearest(each.points, cursor))?.[1];
  const x = cursor === undefined ? 0 : ((cursor - from) / (until - from)) * WIDTH;
  return h("figure", { class: "chart" },
    h("figcaption", { class: "chart-head" },
      h("span", { class: "chart-title" }, title),
      h("span", { class: "chart-when" }, cursor === undefined ? "now" : moment(cursor).slice(11))),
    h("div", { class: "plot" },
      h("div", { class: "axis", "aria-hidden": "true" }, h("span", {}, show(top)), h("span", {}, middle), h("span", {}, "0")),
      h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": describe(title, series, show), onpointermove: moved, onpointerleave: left },
        [0.5, HEIGHT / 2, HEIGHT - 0.5].map((y) => h("line", { class: "grid", x1: 0, x2: WIDTH, y1: y, y2: y, "vector-effect": "non-scaling-stroke" })),
        series.map((each) => h("path", { class: `line ${each.tone}`, d: each.points.length > 1 ? line(each.points, from, until, top, WIDTH, HEIGHT) : "", "vector-effect": "non-scaling-stroke" })),
        cursor !== undefined && h("line", { class: "cursor", x1: x, x2: x, y1: 0, y2: HEIGHT, "vector-effect": "non-scaling-stroke" })),
      h("div", { class: "axis-time", "aria-hidden": "true" }, h("span", {}, moment(from).slice(11)), h("span", {}, moment(until).slice(11)))),
    h("ul", { class: "legend" }, series.map((each) =>
      h("li", { class: each.tone }, h("span", { class: "swatch" }), `${each.label} `, h("b", {}, show(valueOf(each)))))));
}

function describe(title, series, show) {
  return `${title}, now: ${series.map((each) => `${each.label} ${show(each.points.at(-1)?.[1])}`).join(", ")}`;
}

function nearest(points, when) {
  let found = points[0];
  for (const each of points) {
    if (Math.abs(each[0] - when) < Math.abs(found[0] - when)) {
      found = each;
    }
  }
  return found;
}

/** How much of a limit is used; without a limit, nothing. */
export function meter(used, limit, label, tone = "") {
  const share = limit > 0 ? Math.min(1, used / limit) : 0;
  return h("span", { class: `meter ${tone}`, role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": limit, "aria-valuenow": used },
    h("span", { class: "meter-fill", style: { width: `${(share * 100).toFixed(1)}%` } }));
}
