// A form to publish one message.

import { path, post } from "../api.js";
import { form, say } from "../dialogs.js";
import { h } from "../dom.js";

const PROPERTIES = ["content_type", "content_encoding", "priority", "correlation_id", "reply_to", "expiration", "message_id", "timestamp", "type", "user_id", "app_id"];
const NUMBERS = new Set(["priority", "timestamp"]);

/**
 * The form.
 * @param target - {vhost, exchange, key, why}; `key` when the routing key is given
 */
export function publishForm({ reload }, { vhost, exchange, key, why }) {
  if (why) {
    return h("p", { class: "muted" }, why);
  }
  return form({
    key: `publish ${vhost} ${exchange} ${key}`,
    fields: [
      key === undefined && { name: "routing_key", label: "Routing key" },
      { name: "payload", label: "Body", type: "text-area", rows: 5 },
      { name: "payload_encoding", label: "The body is", type: "select", options: [["string", "text"], ["base64", "base64 of bytes"]] },
      { name: "persistent", label: "Persistent", type: "check", value: true, hint: "It is still there after a restart, if its queue is durable." },
      { name: "properties", label: "Properties", type: "table", names: PROPERTIES },
      { name: "headers", label: "Headers", type: "table" },
    ],
    submit: "Publish",
    act: async (values) => {
      const properties = { ...values.properties, delivery_mode: values.persistent ? 2 : 1 };
      for (const name of Object.keys(properties)) {
        if (NUMBERS.has(name)) {
          properties[name] = Number(properties[name]);
        }
      }
      if (Object.keys(values.headers).length) {
        properties.headers = values.headers;
      }
      const answer = await post(path("exchanges", vhost, exchange, "publish"), { properties, routing_key: key ?? values.routing_key, payload: values.payload, payload_encoding: values.payload_encoding });
      say(answer.routed ? "Published." : "Published, but no queue has taken it.", answer.routed ? "good" : "bad");
      await reload();
    },
  });
}
