// Clients of Node as publishers and consumers of headers; see header_clients.py.
// Usage: node headers.js CLIENT publish URL VALUES | node headers.js CLIENT consume URL QUEUE COUNT
"use strict";

const EXCHANGE = "matrix";
const LIMIT_MS = 30000;

const [client, verb, url, ...rest] = process.argv.slice(2);

// Nothing is read any more: fail with what ended it.
function fail(error) {
  console.error(`${client}: ${error && (error.message || error)}`);
  process.exit(1);
}

setTimeout(() => fail(new Error("the client reads nothing any more")), LIMIT_MS).unref();
process.on("uncaughtException", fail);
process.on("unhandledRejection", fail);

function collector(count, done) {
  const seen = {};
  return (body, headers) => {
    seen[body] = headers && headers.v !== undefined ? headers.v : null;
    if (Object.keys(seen).length === count) done(seen);
  };
}

function print(seen) {
  const plain = (_, value) => (typeof value === "bigint" ? Number(value) : value);
  process.stdout.write(JSON.stringify(seen, plain), () => process.exit(0));
}

const clients = {
  async amqplib() {
    const connection = await require("amqplib").connect(url);
    connection.on("error", fail);
    return {
      async publish(values) {
        const channel = await connection.createConfirmChannel();
        for (const [name, value] of values) {
          channel.publish(EXCHANGE, "", Buffer.from(`amqplib/${name}`), { headers: { v: value } });
        }
        await channel.waitForConfirms();
      },
      async consume(queue, take) {
        const channel = await connection.createChannel();
        await channel.consume(queue, (message) => {
          take(message.content.toString(), message.properties.headers);
          channel.ack(message);
        });
      },
    };
  },
  async "rabbitmq-client"() {
    const { Connection } = require("rabbitmq-client");
    const connection = new Connection(url);
    connection.on("error", fail);
    return {
      async publish(values) {
        const publisher = connection.createPublisher({ confirm: true });
        for (const [name, value] of values) {
          const envelope = { exchange: EXCHANGE, routingKey: "", headers: { v: value } };
          await publisher.send(envelope, Buffer.from(`rabbitmq-client/${name}`));
        }
      },
      async consume(queue, take) {
        const options = { queue, queueOptions: { passive: true } };
        connection.createConsumer(options, async (message) => {
          take(message.body.toString(), message.headers);
        });
      },
    };
  },
  async "amqp-client"() {
    const { AMQPClient } = require("@cloudamqp/amqp-client");
    const connection = await new AMQPClient(url).connect();
    connection.onerror = fail;
    const channel = await connection.channel();
    return {
      async publish(values) {
        await channel.confirmSelect();
        for (const [name, value] of values) {
          const body = Buffer.from(`amqp-client/${name}`);
          await channel.basicPublish(EXCHANGE, "", body, { headers: { v: value } });
        }
      },
      async consume(queue, take) {
        await channel.basicConsume(queue, { noAck: false }, async (message) => {
          take(message.bodyToString(), message.properties.headers);
          await message.ack();
        });
      },
    };
  },
};

(async () => {
  const one = await clients[client]();
  if (verb === "publish") {
    await one.publish(Object.entries(JSON.parse(rest[0])));
    process.exit(0);
  }
  await one.consume(rest[0], collector(Number(rest[1]), print));
})();
