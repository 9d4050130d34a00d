// What every scenario shares: the connection, and the result printed as one JSON line.
// Usage: node NAME.js URL PREFIX; NODE_PATH points at the directory that holds amqplib.
"use strict";

const amqp = require("amqplib");

const LIMIT_MS = 8000;

async function run(scenario) {
  const [url, prefix] = process.argv.slice(2);
  const watchdog = setTimeout(() => {
    console.error("the scenario took too long");
    process.exit(3);
  }, LIMIT_MS);
  const connection = await amqp.connect(url);
  try {
    const result = await scenario(connection, prefix, url);
    console.log(JSON.stringify(result));
  } finally {
    clearTimeout(watchdog);
    await connection.close().catch(() => undefined);
  }
}

async function until(claim) {
  while (!claim()) await new Promise((resolve) => setTimeout(resolve, 5));
}

function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

async function drain(channel, queue) {
  const taken = [];
  for (;;) {
    const message = await channel.get(queue, { noAck: true });
    if (message === false) return taken;
    taken.push([message.content.toString(), message.fields.redelivered]);
  }
}

module.exports = {
  amqp,
  drain,
  pause,
  until,
  main(scenario) {
    run(scenario).catch((error) => {
      console.error(error);
      process.exit(1);
    });
  },
};
