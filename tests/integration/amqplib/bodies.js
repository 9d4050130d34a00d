// Bodies of every size given on the command line, by get and by consumer; prints lengths and sums.
"use strict";

const crypto = require("crypto");

const { main, until } = require("./scenario");

const digest = (content) => crypto.createHash("sha256").update(content).digest("hex");

main(async (connection, prefix) => {
  const sizes = process.argv.slice(4).map(Number);
  const channel = await connection.createConfirmChannel();
  const { queue } = await channel.assertQueue(prefix, { durable: true });
  const sent = sizes.map((size) => crypto.randomBytes(size));
  for (const content of sent) channel.sendToQueue(queue, content, { persistent: true });
  await channel.waitForConfirms();
  const got = [];
  await channel.consume(queue, (m) => got.push(m.content), { noAck: true });
  await until(() => got.length === sent.length);
  return got.map((content, index) => [content.length, digest(content) === digest(sent[index])]);
});
