// Series of samples. Those that the API returns are used; where it returns none, a series consists
// of what this page has seen since it was opened.

import { at } from "./format.js";

const KEEP = 360;
const seen = new Map();

/** Parameters that ask for five minutes of samples. */
export const SAMPLES = { lengths_age: 300, lengths_incr: 5, msg_rates_age: 300, msg_rates_incr: 5, data_rates_age: 300, data_rates_incr: 5 };

function remembered(key, value) {
  let points = seen.get(key);
  if (!points) {
    points = [];
    seen.set(key, points);
  }
  const now = Date.now();
  const last = points.at(-1);
  if (typeof value === "number" && (!last || now - last[0] > 400)) {
    points.push([now, value]);
    if (points.length > KEEP) {
      points.shift();
    }
  }
  return points;
}

/** Points [ms, value] of a length such as `messages_ready` of an object. */
export function lengths(id, object, name) {
  const samples = at(object, `${name}_details.samples`);
  const points = remembered(`${id} ${name}`, at(object, name));
  return samples?.length > 1 ? samples.map((each) => [each.timestamp, each.sample]).reverse() : points;
}

/** Points [ms, events a second] of a counter such as `message_stats.publish`. */
export function rates(id, object, name) {
  const details = at(object, `${name}_details`);
  const points = remembered(`${id} ${name}`, details?.rate ?? (object ? 0 : undefined));
  const samples = details?.samples;
  if (!(samples?.length > 2)) {
    return points;
  }
  const found = [];
  for (let index = samples.length - 2; index >= 0; index -= 1) {
    const [before, after] = [samples[index + 1], samples[index]];
    const elapsed = (after.timestamp - before.timestamp) / 1000;
    found.push([after.timestamp, elapsed > 0 ? Math.max(0, after.sample - before.sample) / elapsed : 0]);
  }
  return found;
}

/** Forget everything: somebody else signs in. */
export function clear() {
  seen.clear();
}
