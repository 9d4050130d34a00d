// What an empty broker shows: how to send and receive the first message.

import { h } from "../dom.js";
import { panel } from "../table.js";
import { say } from "../dialogs.js";

/** A program to copy, with this broker's host and port. */
export function firstSteps(overview, user) {
  const port = (overview.listeners ?? []).find((each) => each.protocol === "amqp")?.port ?? 5672;
  const program = `import pika

connection = pika.BlockingConnection(pika.ConnectionParameters(
    host="${location.hostname || "localhost"}", port=${port},
    credentials=pika.PlainCredentials("${user?.name ?? "guest"}", "your password"),
))
channel = connection.channel()
channel.confirm_delivery()  # publish returns once the message is on disk
channel.queue_declare("hello", durable=True)
channel.basic_publish(
    "", "hello", b"the first message",
    pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent),
)
method, properties, body = channel.basic_get("hello")
print(body)
channel.basic_ack(method.delivery_tag)
connection.close()
`;
  const copy = async () => {
    await navigator.clipboard.writeText(program);
    say("Copied.");
  };
  return panel("Send the first message",
    h("p", {}, "There are no queues yet. Install a client with ", h("code", {}, "pip install pika"), " and run this program:"),
    h("pre", { class: "program", tabindex: 0, "aria-label": "Program" }, h("code", {}, program)),
    h("div", { class: "buttons" }, navigator.clipboard && h("button", { type: "button", onclick: copy }, "Copy"), h("a", { class: "button", href: "#/queues" }, "Or add a queue here")));
}
