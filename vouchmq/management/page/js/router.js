// Addresses: `#/queues/%2F/orders?tab=messages`. The part behind `#` never reaches the server.

/** The address of a view: parts are percent-encoded, empty values of the query are left out. */
export function href(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const suffix = given.length ? `?${new URLSearchParams(given)}` : "";
  return `#/${parts.map((each) => encodeURIComponent(each === "" ? "amq.default" : each)).join("/")}${suffix}`;
}

/** The parts and the query of an address. */
export function parse(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  return {
    parts: path.split("/").filter(Boolean).map((each) => decodeURIComponent(each)),
    query: Object.fromEntries(new URLSearchParams(query ?? "")),
  };
}

/**
 * The first route that fits.
 * @param routes - [{at: "queues/:vhost/:name", view}]
 */
export function match(routes, parts) {
  for (const route of routes) {
    const wanted = route.at.split("/").filter(Boolean);
    if (wanted.length !== parts.length) {
      continue;
    }
    const params = {};
    const fits = wanted.every((each, index) => {
      if (each.startsWith(":")) {
        params[each.slice(1)] = parts[index];
        return true;
      }
      return each === parts[index];
    });
    if (fits) {
      return { ...route, params };
    }
  }
  return null;
}
