// The routes that RabbitMQ does not have. Where the API does not describe one, its controls are
// greyed out.

import { has, whyNot } from "./access.js";
import { get, path, post, put } from "./api.js";

const QUEUE = "/queues/{vhost}/{name}";

export const PEEK = ["GET", `${QUEUE}/messages`];
export const MOVE = ["POST", `${QUEUE}/move`];
export const RETURN = ["POST", `${QUEUE}/return-dead-letters`];
export const PAUSE = ["PUT", `${QUEUE}/pause`];
export const PREFETCH = ["PUT", "/channels/{channel}/consumers/{consumer}/prefetch"];
export const LEDGER = ["GET", "/ledger"];

export const can = (route) => has(...route);
export const reason = (route) => whyNot(...route);

/** Messages of a queue, without consuming them. */
export function peek(vhost, name, query, signal) {
  return get(`${path("queues", vhost, name)}/messages`, query, signal);
}

/** Move or copy messages to another queue; the answer has `moved`, and why it `stopped`. */
export function move(vhost, name, body) {
  return post(`${path("queues", vhost, name)}/move`, body);
}

/** Move dead letters back to where they died. */
export function returnDeadLetters(vhost, name, body) {
  return post(`${path("queues", vhost, name)}/return-dead-letters`, body);
}

/** Change the prefetch limit of a consumer; 0 is none. */
export function setPrefetch(channel, tag, limit) {
  return put(`${path("channels", channel, "consumers", tag)}/prefetch`, { prefetch_count: limit });
}

/** Pause or resume a queue. */
export function pause(vhost, name, isPaused) {
  return put(`${path("queues", vhost, name)}/${isPaused ? "pause" : "resume"}`);
}
