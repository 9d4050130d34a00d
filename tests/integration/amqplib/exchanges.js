// Topic, headers and fanout exchanges, an exchange bound to an exchange, an alternate exchange.
"use strict";

const { drain, main } = require("./scenario");

main(async (connection, prefix) => {
  const channel = await connection.createConfirmChannel();
  const made = {};
  for (const type of ["topic", "headers", "fanout"]) {
    made[type] = `${prefix}.${type}`;
    const arguments_ = type === "topic" ? { alternateExchange: `${prefix}.fanout` } : {};
    await channel.assertExchange(made[type], type, { durable: false, ...arguments_ });
  }
  const queue = async (name) => (await channel.assertQueue(`${prefix}.${name}`)).queue;
  const [byTopic, byHeaders, byFanout] = [
    await queue("t"),
    await queue("h"),
    await queue("f"),
  ];
  await channel.bindQueue(byTopic, made.topic, "a.*.c");
  await channel.bindQueue(byHeaders, made.headers, "", { "x-match": "all", k: "v", n: 1 });
  await channel.bindQueue(byFanout, made.fanout, "");
  await channel.bindExchange(made.headers, made.topic, "to.headers");
  const send = (exchange, key, text, headers = {}) =>
    channel.publish(exchange, key, Buffer.from(text), { headers });
  send(made.topic, "a.b.c", "matched");
  send(made.topic, "a.b", "alternate");
  send(made.headers, "", "headers", { k: "v", n: 1 });
  send(made.headers, "", "other", { k: "v", n: 2 });
  send(made.topic, "to.headers", "through", { k: "v", n: 1 });
  await channel.waitForConfirms();
  const result = {};
  for (const name of [byTopic, byHeaders, byFanout]) {
    result[name.slice(prefix.length + 1)] = (await drain(channel, name)).map(([text]) => text);
    await channel.deleteQueue(name);
  }
  for (const name of Object.values(made)) await channel.deleteExchange(name);
  return result;
});
