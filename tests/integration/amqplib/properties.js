// All properties and a table of headers, there and back.
"use strict";

const { main } = require("./scenario");

main(async (connection, prefix) => {
  const channel = await connection.createConfirmChannel();
  const { queue } = await channel.assertQueue(prefix);
  const headers = {
    text: "grüße",
    yes: true,
    no: false,
    int: 42,
    negative: -7,
    large: 2 ** 40,
    float: 2.5,
    nothing: null,
    list: [1, "two", [3.5, null]],
    table: { inner: { deep: "value" } },
    typed: { "!": "timestamp", value: 1700000000 },
  };
  const sent = {
    contentType: "text/plain",
    contentEncoding: "utf-8",
    deliveryMode: 2,
    priority: 9,
    correlationId: "corr-ü",
    replyTo: "reply.here",
    expiration: undefined,
    messageId: "id-1",
    timestamp: 1700000000,
    type: "kind",
    userId: "guest",
    appId: "app",
  };
  channel.sendToQueue(queue, Buffer.from("x"), { headers, ...sent });
  await channel.waitForConfirms();
  const message = await channel.get(queue, { noAck: true });
  const got = message.properties;
  const wrong = Object.keys(sent).filter((name) => got[name] !== sent[name]);
  return { wrong, headers: JSON.stringify(got.headers) === JSON.stringify(headers), got };
});
