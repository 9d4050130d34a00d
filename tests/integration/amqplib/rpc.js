// Calls answered over an exclusive reply queue and over direct reply-to.
"use strict";

const { main, until } = require("./scenario");

async function calls(client, requests, replyTo, noAck) {
  const answers = {};
  await client.consume(
    replyTo,
    (m) => {
      answers[m.properties.correlationId] = m.content.toString();
    },
    { noAck },
  );
  for (let n = 0; n < 10; n += 1) {
    client.sendToQueue(requests, Buffer.from(String(n)), { replyTo, correlationId: `c${n}` });
  }
  await until(() => Object.keys(answers).length === 10);
  return answers;
}

main(async (connection, prefix) => {
  const server = await connection.createChannel();
  await server.assertQueue(prefix);
  const replyNames = new Set();
  await server.consume(prefix, (m) => {
    const { replyTo, correlationId } = m.properties;
    replyNames.add(replyTo);
    const square = Number(m.content.toString()) ** 2;
    server.sendToQueue(replyTo, Buffer.from(String(square)), { correlationId });
    server.ack(m);
  });
  const client = await connection.createChannel();
  const { queue } = await client.assertQueue("", { exclusive: true });
  const overQueue = await calls(client, prefix, queue, true);
  const overReplyTo = await calls(client, prefix, "amq.rabbitmq.reply-to", true);
  const direct = [...replyNames].filter((name) => name.startsWith("amq.rabbitmq.reply-to."));
  return { overQueue, overReplyTo, generated: queue.startsWith("amq.gen-"), direct: direct.length };
});
