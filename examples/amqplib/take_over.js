// A publisher and a consumer that go on when another broker takes over.
//
// They have the addresses of all brokers and try one after the other: standbys refuse connections.
//
// What was not confirmed when the connection broke may be stored or not. The publisher publishes it
// again with the same key, and the queue drops what it has had before: nothing is lost, and nothing
// is there twice. The consumer acknowledges when its work is done. What comes again says so, and
// the consumer looks whether it has done it.
//
// node take_over.js COUNT URL...
"use strict";

const amqp = require("amqplib");

const QUEUE = "example.take_over";
// The queue knows the last keys, also those of messages that have been consumed.
const CHECKED = {
  durable: true,
  arguments: { "x-message-deduplication": true, "x-cache-size": 100000 },
};
const RETRY_MS = 200;
const ATTEMPTS = 600;
const CONNECT_LIMIT_MS = 5000;
const WINDOW = 50;
const PROGRESS = 100;

function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

async function connect(urls) {
  for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
    const url = urls[attempt % urls.length];
    try {
      return await amqp.connect(`${url}?heartbeat=10`, { timeout: CONNECT_LIMIT_MS });
    } catch (error) {
      await pause(RETRY_MS);
    }
  }
  throw new Error(`no broker was there ${ATTEMPTS} times`);
}

// Does the work over a new connection whenever one breaks; gives how many were opened.
async function untilDone(urls, work) {
  for (let opened = 1; ; opened += 1) {
    const connection = await connect(urls);
    // It is followed by `close`.
    connection.on("error", () => {});
    const closed = new Promise((resolve) => connection.once("close", () => resolve(false)));
    const done = work(connection).then(() => true);
    // It fails in many ways, perhaps when nobody waits for it any more.
    done.catch(() => {});
    try {
      if (await Promise.race([done, closed])) {
        await connection.close();
        return opened;
      }
    } catch (error) {
      // A channel may notice first. If its connection is not closed, it was something else.
      const isOpen = await Promise.race([closed, pause(CONNECT_LIMIT_MS).then(() => true)]);
      if (isOpen) throw error;
    }
  }
}

class Publisher {
  constructor(count) {
    this.outbox = new Set(Array.from({ length: count }, (_, order) => order));
    this.confirmed = 0;
    this.published = 0;
  }

  async publish(connection) {
    const channel = await connection.createConfirmChannel();
    channel.on("error", () => {});
    await channel.assertQueue(QUEUE, CHECKED);
    // From the start what is not confirmed: the first of them may be stored already.
    const orders = this.outbox.values();
    await Promise.all(Array.from({ length: WINDOW }, () => this.publishSome(channel, orders)));
  }

  async publishSome(channel, orders) {
    for (const order of orders) {
      await this.publishOne(channel, order);
      this.outbox.delete(order);
      this.confirmed += 1;
      if (this.confirmed % PROGRESS === 0) console.log(`confirmed ${this.confirmed}`);
    }
  }

  publishOne(channel, order) {
    const options = {
      persistent: true,
      mandatory: true,
      headers: { "x-deduplication-header": `order-${order}` },
    };
    this.published += 1;
    return new Promise((resolve, reject) => {
      channel.sendToQueue(QUEUE, Buffer.from(String(order)), options, (error) =>
        error ? reject(error) : resolve(),
      );
    });
  }
}

class Consumer {
  constructor(count) {
    this.count = count;
    this.done = new Set();
    this.again = 0;
    this.copies = 0;
  }

  async consume(connection) {
    const channel = await connection.createChannel();
    channel.on("error", () => {});
    await channel.assertQueue(QUEUE, CHECKED);
    await channel.prefetch(20);
    await new Promise((resolve, reject) => {
      const take = (message) => {
        if (message === null) return;
        this.work(message);
        channel.ack(message);
        if (this.done.size === this.count) resolve();
      };
      channel.consume(QUEUE, take).catch(reject);
    });
    await channel.close();
  }

  work(message) {
    const order = Number(message.content.toString());
    if (!this.done.has(order)) {
      this.done.add(order); // the work, and in the same transaction the note that it is done
    } else if (message.fields.redelivered) {
      this.again += 1;
    } else {
      this.copies += 1;
    }
  }
}

async function main() {
  const count = Number(process.argv[2] || 1000);
  const given = process.argv.slice(3);
  const urls = given.length ? given : ["amqp://guest:guest@127.0.0.1:5672/%2F"];
  const publisher = new Publisher(count);
  const consumer = new Consumer(count);
  const worker = untilDone(urls, (connection) => consumer.consume(connection));
  const opened = await untilDone(urls, (connection) => publisher.publish(connection));
  console.log(`all confirmed after ${publisher.published} publishes over ${opened} connections`);
  await worker;
  console.log(`${consumer.done.size} of ${count} were done, ${consumer.copies} copies were found`);
  console.log(`${consumer.again} came again after they were done`);
  await untilDone(urls, async (connection) => {
    const channel = await connection.createChannel();
    const { messageCount } = await channel.deleteQueue(QUEUE);
    console.log(`${messageCount} were left`);
  });
}

main();
