// Requests to the HTTP API and to the session of this page. Paths are relative to the document, so
// that a reverse proxy may serve it below any prefix.

const HEADERS = { "X-Requested-With": "vouchmq-page" };
// Of what the page asks, the longest takes seconds; a broker that hangs is told within five.
const READ_LIMIT_MS = 30000;
let csrf = "";
let whenSignedOut = () => {};

/** An answer that is not a success. */
export class ApiError extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

/** Call this once the session has ended. */
export function onSignedOut(job) {
  whenSignedOut = job;
}

/** A path below `api/` from parts, each percent-encoded. */
export function path(...parts) {
  return parts.map((each) => encodeURIComponent(each)).join("/");
}

/** What the API answers to a GET; `query` has the parameters. */
export function get(where, query = {}, signal = undefined) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "" && value !== null);
  const suffix = given.length ? `?${new URLSearchParams(given)}` : "";
  return request("GET", `api/${where}${suffix}`, undefined, signal);
}

export function put(where, body) {
  return request("PUT", `api/${where}`, body ?? {});
}

export function post(where, body) {
  return request("POST", `api/${where}`, body ?? {});
}

/** Post a text of JSON as it is: numbers and repeated keys reach the API as they are written. */
export function postText(where, text) {
  return request("POST", `api/${where}`, undefined, undefined, {}, text);
}

export function remove(where, headers = {}) {
  return request("DELETE", `api/${where}`, undefined, undefined, headers);
}

async function request(method, url, body, signal, headers = {}, text = body === undefined ? undefined : JSON.stringify(body)) {
  const given = { ...HEADERS, ...headers };
  if (text !== undefined) {
    given["Content-Type"] = "application/json";
  }
  if (method !== "GET") {
    given["X-CSRF-Token"] = csrf;
  }
  let answer;
  try {
    answer = await fetch(url, {
      method, signal: method === "GET" ? limited(signal) : signal, headers: given, credentials: "same-origin", cache: "no-store", body: text,
    });
  } catch (error) {
    if (error.name === "AbortError") {
      throw error;
    }
    throw new ApiError(0, "The management process does not answer.");
  }
  if (answer.ok) {
    const text = await answer.text();
    return text ? JSON.parse(text) : null;
  }
  const problem = await reasonOf(answer);
  if (problem.status === 401 && problem.isSession) {
    whenSignedOut();
  }
  throw problem;
}

/** A signal that also gives up a read when nothing comes. */
function limited(signal) {
  const limit = AbortSignal.timeout(READ_LIMIT_MS);
  return signal ? AbortSignal.any([signal, limit]) : limit;
}

async function reasonOf(answer) {
  const text = await answer.text();
  let reason = `${answer.status} ${answer.statusText}`;
  let code = "";
  let lastAnswerMs;
  try {
    const told = JSON.parse(text);
    reason = typeof told.reason === "string" ? told.reason : JSON.stringify(told.reason ?? told.error ?? told);
    code = told.error;
    lastAnswerMs = told.last_answer_ms;
  } catch {
    // No JSON: the status line has to do.
  }
  const error = new ApiError(answer.status, reason);
  error.lastAnswerMs = lastAnswerMs;
  error.isSession = code === "session_expired" || code === "not_authorized";
  return error;
}

/** The session that the cookie belongs to, or null. */
export async function currentSession() {
  const answer = await fetch("session", { headers: HEADERS, cache: "no-store" });
  const session = answer.ok ? await answer.json() : null;
  return session && remember(session);
}

export async function signIn(username, password) {
  const answer = await fetch("session", {
    method: "POST", cache: "no-store",
    headers: { ...HEADERS, "Content-Type": "application/json" },
    body: JSON.stringify({ username, password }),
  });
  if (!answer.ok) {
    throw await reasonOf(answer);
  }
  return remember(await answer.json());
}

export async function signOut() {
  await fetch("session", { method: "DELETE", headers: { ...HEADERS, "X-CSRF-Token": csrf } });
  csrf = "";
}

function remember(session) {
  csrf = session.csrf_token;
  return session;
}
