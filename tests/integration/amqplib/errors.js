// Soft errors close the channel, hard ones the connection, with code and text.
"use strict";

const { amqp, main } = require("./scenario");

main(async (connection, prefix, url) => {
  const failing = await connection.createChannel();
  const soft = new Promise((resolve) => {
    failing.on("error", (error) => resolve([error.code, error.message]));
  });
  failing.publish(prefix, "", Buffer.from("x"));
  const [softCode, softText] = await soft;

  const doomed = await amqp.connect(url);
  const hard = new Promise((resolve) => {
    doomed.on("error", (error) => resolve([error.code, error.message]));
  });
  const channel = await doomed.createChannel();
  channel.on("error", () => undefined);
  await channel.assertQueue(prefix, { exclusive: true });
  await channel.consume(prefix, () => undefined, { consumerTag: "twice" });
  channel.consume(prefix, () => undefined, { consumerTag: "twice" }).catch(() => undefined);
  const [hardCode, hardText] = await hard;

  const still = await connection.createChannel();
  const { queue } = await still.assertQueue("", { exclusive: true });
  return { softCode, softText, hardCode, hardText, still: queue.length > 0 };
});
