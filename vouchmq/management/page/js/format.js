// Numbers, bytes, times as text. Everything is in English, and digits are grouped.

const GROUPED = new Intl.NumberFormat("en-US");

/** 1234567 as 1,234,567; an unknown number as a dash. */
export function count(value) {
  return typeof value === "number" ? GROUPED.format(value) : "–";
}

/** A short form for charts: 12.3k. */
export function short(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) {
    return "–";
  }
  const size = Math.abs(value);
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= limit) {
      const scaled = unit === "k" ? value / 1e3 : value / limit;
      return `${trim(scaled)}${unit}`;
    }
  }
  return size > 0 && size < 10 && !Number.isInteger(value) ? value.toFixed(1) : GROUPED.format(Math.round(value));
}

function trim(value) {
  return value >= 100 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, "");
}

/** Events a second. */
export function rate(value) {
  if (typeof value !== "number") {
    return "–";
  }
  return value === 0 ? "0/s" : `${short(value)}/s`;
}

/** 1536 as 1.5 KiB. */
export function bytes(value) {
  if (typeof value !== "number") {
    return "–";
  }
  let size = value;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(size) < 1024) {
      return `${unit === "B" ? size : trim(size)} ${unit}`;
    }
    size /= 1024;
  }
  return `${trim(size)} TiB`;
}

/** Milliseconds as the two largest units. */
export function duration(ms) {
  if (typeof ms !== "number" || !Number.isFinite(ms)) {
    return "–";
  }
  if (ms < 1000) {
    return `${ms < 10 && !Number.isInteger(ms) ? ms.toFixed(1) : Math.round(ms)} ms`;
  }
  const seconds = Math.floor(ms / 1000);
  const parts = [["d", Math.floor(seconds / 86400)], ["h", Math.floor(seconds / 3600) % 24], ["m", Math.floor(seconds / 60) % 60], ["s", seconds % 60]];
  const first = parts.findIndex(([, amount]) => amount > 0);
  return parts.slice(first, first + 2).filter(([, amount], at) => at === 0 || amount > 0).map(([unit, amount]) => `${amount} ${unit}`).join(" ");
}

/** A moment in milliseconds since 1970, in local time. */
export function moment(ms) {
  if (typeof ms !== "number") {
    return "–";
  }
  const when = new Date(ms);
  const two = (value) => String(value).padStart(2, "0");
  return `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())} ${two(when.getHours())}:${two(when.getMinutes())}:${two(when.getSeconds())}`;
}

/** How long ago a moment is. */
export function since(ms) {
  return typeof ms === "number" ? duration(Math.max(0, Date.now() - ms)) : "–";
}

/** A value of a field table, on one line. */
export function plain(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** What `a.b.c` is in an object. */
export function at(object, path) {
  return path.split(".").reduce((value, name) => value?.[name], object);
}

/** The name of an exchange: the default one has an empty name. */
export function exchangeName(name) {
  return name === "" || name === "amq.default" ? "(default)" : name;
}

/** A text with a capital letter and a full stop. */
export function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

/** `1 message`, `2 messages`. */
export function counted(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}
